"""What the ranks of all relevant images say of those that are not the target: their recall, and where they rank.

Everything here follows from per-query ranks (`negbench.metrics.query_ranks`) and so from a run's `ranks.parquet`. A row
of relevant ranks is as `negbench.metrics.ranks.relevant_ranks` makes it from `Dataset.relevant`: the target's rank
comes first, and the ranks of a row are distinct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from negbench.errors import NegbenchError, check_option
from negbench.metrics.ragged import Ragged


def others(relevant_ranks: Ragged) -> Ragged:
    """Ranks of each query's relevant images but the target.

    Raises:
        NegbenchError: a query without a target.

    Example:
        >>> others(Ragged.of([[2, 7, 3], [1]])).lengths
        tensor([2, 0])
    """
    _check_targets(relevant_ranks)
    kept = torch.ones(len(relevant_ranks.values), dtype=torch.bool)
    kept[relevant_ranks.offsets[:-1]] = False
    return Ragged(relevant_ranks.values[kept], relevant_ranks.offsets - torch.arange(len(relevant_ranks) + 1))


def other_recall_at_k(relevant_ranks: Ragged, k: int) -> Tensor:
    r"""Recall of the relevant images that are not the target: their share among the first k.

    .. math:: \bar R@k_i = \frac{|\{r \in R_i \setminus \{r_{t_i}\} : r \le k\}|}{|R_i| - 1}

    Training that punishes them (QuRe sec. 1 calls it relevance suppression) keeps it below the target's own recall.

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
    rest = others(relevant_ranks)
    return _row_sums(rest, rest.values <= k) / rest.lengths


@dataclass(frozen=True)
class RankBand:
    """Images of one part of the ranking, over all queries and without their targets.

    Attributes:
        name: "above the target", "below the target", or the ranks, e.g. "11-50".
        images: how many.
        relevant: how many of them are known to be relevant.
    """

    name: str
    images: int
    relevant: int

    @property
    def rate(self) -> float:
        """The false-negative rate of the band: share of its images known to be relevant; nan of an empty band."""
        return self.relevant / self.images if self.images else float("nan")


def false_negatives_by_rank(
    relevant_ranks: Ragged, gallery_size: Tensor, edges: Sequence[int] = (10, 50, 100, 500)
) -> list[RankBand]:
    """Where in the ranking the false negatives are: above the target against below, and by bands of ranks.

    QuRe and CIRQRS leave out what scores above the target because most of it were relevant (CIRQRS app. B.2).

    Args:
        relevant_ranks: Q rows of distinct ranks, the target's first, of queries whose relevant images are known.
        gallery_size: [Q] int64, candidates of each query.
        edges: last rank of each band but the last, rising, >= 1.

    Returns:
        Above, below, then a band for each edge and one for the rest. An irrelevant image that ties with the target is
        above it.

    Raises:
        NegbenchError: a query without a target.

    Example:
        >>> bands = false_negatives_by_rank(Ragged.of([[3, 1]]), torch.tensor([9]), [2])
        >>> [(band.name, band.images, band.relevant) for band in bands]
        [('above the target', 2, 1), ('below the target', 6, 0), ('1-2', 2, 1), ('3-', 6, 0)]
    """
    _check_targets(relevant_ranks)
    target = relevant_ranks.values[relevant_ranks.offsets[:-1]]
    one, end = torch.ones_like(target), gallery_size.clamp(min=0)
    parts = [("above the target", one, target - 1), ("below the target", target + 1, end)]
    for low, high in zip((0, *edges), (*edges, None), strict=True):
        last = end if high is None else end.clamp(max=high)
        parts.append((f"{low + 1}-{'' if high is None else high}", one * (low + 1), last))
    row = torch.arange(len(relevant_ranks)).repeat_interleave(relevant_ranks.lengths)
    ranks, is_target = relevant_ranks.values, torch.zeros(len(row), dtype=torch.bool)
    is_target[relevant_ranks.offsets[:-1]] = True
    bands = []
    for name, first, last in parts:
        holds_target = (first <= target) & (target <= last)
        inside = (first[row] <= ranks) & (ranks <= last[row]) & ~is_target
        images = (last - first + 1).clamp(min=0) - holds_target.long()
        bands.append(RankBand(name, int(images.sum()), int(inside.sum())))
    return bands


def _check_targets(relevant_ranks: Ragged) -> None:
    empty = int((relevant_ranks.lengths < 1).sum())
    if empty:
        raise NegbenchError(f"the ranks of relevant images start with the target's: {empty} queries have no target")


def _row_sums(rows: Ragged, counted: Tensor) -> Tensor:
    """[rows] float64 sums of a value for each entry of the rows."""
    row = torch.arange(len(rows)).repeat_interleave(rows.lengths)
    return torch.zeros(len(rows), dtype=torch.float64).index_add_(0, row, counted.double())
