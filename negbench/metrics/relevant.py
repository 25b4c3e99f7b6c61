"""Relevant images other than the target: their recall, and their share of each band of the ranking.

All functions need only per-query ranks (`negbench.metrics.query_ranks`), which a run stores in `ranks.parquet`. A row
of relevant ranks comes from `negbench.metrics.ranks.relevant_ranks` on `Dataset.relevant`: the target's rank is first,
and the ranks of a row are distinct. Every query has a target.
"""

import torch
from torch import Tensor

from negbench.errors import check_option
from negbench.metrics.ragged import Ragged


def others(relevant_ranks: Ragged) -> Ragged:
    """Return the ranks of each query's relevant images except the target.

    Example:
        >>> others(Ragged.of([[2, 7, 3], [1]])).lengths
        tensor([2, 0])
    """
    is_other = torch.ones(len(relevant_ranks.values), dtype=torch.bool)
    is_other[relevant_ranks.offsets[:-1]] = False
    return Ragged(relevant_ranks.values[is_other], relevant_ranks.offsets - torch.arange(len(relevant_ranks) + 1))


def other_recall_at_k(relevant_ranks: Ragged, k: int) -> Tensor:
    r"""Recall of the relevant images that are not the target: their share among the first k.

    .. math:: \bar R@k_i = \frac{|\{r \in R_i \setminus \{r_{t_i}\} : r \le k\}|}{|R_i| - 1}

    Training that pushes them away (relevance suppression, QuRe sec. 1) keeps it below the target's own recall.

    Args:
        relevant_ranks: Q rows of distinct ranks, the target's first.
        k: cut-off, >= 1.

    Returns:
        [Q] float64 in [0, 1]; nan where nothing but the target is relevant.

    Example:
        >>> other_recall_at_k(Ragged.of([[2, 7, 3], [1]]), 3)
        tensor([0.5000,    nan], dtype=torch.float64)
    """
    check_option("k", k, k >= 1, ">= 1")
    other_ranks = others(relevant_ranks)
    row = torch.arange(len(other_ranks)).repeat_interleave(other_ranks.lengths)
    hits = (other_ranks.values <= k).double()
    return torch.zeros(len(other_ranks), dtype=torch.float64).index_add_(0, row, hits) / other_ranks.lengths


def false_negative_rate(relevant_ranks: Ragged, gallery_size: Tensor, band: str) -> float:
    """Share of the images in a band of the ranking that are known to be relevant, over all queries, without targets.

    QuRe and CIRQRS exclude images that score above the target, assuming most are relevant (CIRQRS app. B.2).

    Args:
        relevant_ranks: Q rows of distinct ranks, the target's first, of queries whose relevant images are known.
        gallery_size: [Q] int64, candidates of each query.
        band: "above the target", or ranks: "11-50", "501-". An irrelevant image that ties with the target is above it.

    Returns:
        Value in [0, 1]; nan for an empty band.

    Example:
        >>> false_negative_rate(Ragged.of([[3, 1]]), torch.tensor([9]), "above the target")
        0.5
    """
    target = relevant_ranks.values[relevant_ranks.offsets[:-1]]
    low, _, high = band.partition("-")
    if band == "above the target":
        first = torch.ones_like(target)
        last = target - 1
    else:
        first = torch.full_like(target, int(low))
        last = gallery_size.clamp(max=int(high) if high else None, min=0)
    other_ranks = others(relevant_ranks)
    row = torch.arange(len(other_ranks)).repeat_interleave(other_ranks.lengths)
    inside = (first[row] <= other_ranks.values) & (other_ranks.values <= last[row])
    images = (last - first + 1).clamp(min=0) - ((first <= target) & (target <= last)).long()
    return float(inside.sum() / images.sum())
