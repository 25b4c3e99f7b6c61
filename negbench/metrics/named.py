"""Metrics by name: those that a data set declares, and those that stored ranks give besides.

Besides its own metrics a data set that ranks images has recall at any k, the mean reciprocal rank and nDCG, over all
queries, of a group, or averaged over groups as its own are. They are computed from the ranks, without a new run.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from negbench.metrics.metric import Metric, QueryValues, hits
from negbench.metrics.names import AVERAGE, FROM_RANKS, RANKED
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import sorted_rows


def metric_of_ranks(name: str, declared: Mapping[str, Metric]) -> Metric | None:
    """Return a metric that a data set does not declare, but its ranks give; None for any other name.

    Args:
        name: as `find_metric` returns it.
        declared: the data set's own metrics.
    """
    group, _, plain = name.rpartition("/")
    if FROM_RANKS.fullmatch(plain) is None or not any(RANKED.fullmatch(metric) for metric in declared):
        return None
    values = (_values(plain),)
    if not group:
        return Metric(values)
    if f"{group}/" == AVERAGE:
        return Metric(values, over="groups")
    return Metric(values, group=group)


def _values(name: str) -> QueryValues:
    """Return the function that computes a metric of this name from ranks."""
    kind, _, cutoff = name.partition("_at_")
    if kind == "recall":
        return hits(int(cutoff))
    k = int(cutoff) if cutoff else None
    if kind == "mrr":
        return lambda ranks: reciprocal_rank(ranks.relevant_ranks, k)
    return lambda ranks: normalised_gain(ranks.relevant_ranks, k)


def reciprocal_rank(relevant_ranks: Ragged, k: int | None = None) -> Tensor:
    """[Q] float64, 1 / rank of the first relevant image, as `recip_rank` of trec_eval; 0 if that lies behind rank k.

    Example:
        >>> reciprocal_rank(Ragged.of([[4, 2], [5]]), 4)
        tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    first = torch.stack([relevant_ranks.row(row).min() for row in range(len(relevant_ranks))]).double()
    return torch.where(first <= (k or torch.inf), 1 / first, 0.0)


def normalised_gain(relevant_ranks: Ragged, k: int | None = None) -> Tensor:
    r"""[Q] float64, nDCG at k with gain 1 for each relevant image (Järvelin and Kekäläinen, 2002).

    .. math:: \sum_{r \le k} \frac{1}{\log_2(1 + r)} \Big/ \sum_{i=1}^{\min(n, k)} \frac{1}{\log_2(1 + i)}

    over the ranks r of the n relevant images; k None: all ranks.

    Example:
        >>> normalised_gain(Ragged.of([[1, 3], [2]]), 2)
        tensor([0.6131, 0.6309], dtype=torch.float64)
    """
    ranks = sorted_rows(relevant_ranks)
    row = torch.arange(len(ranks)).repeat_interleave(ranks.lengths)
    ideal_rank = torch.arange(len(row)) - ranks.offsets[row] + 1  # of each relevant image, if all of them were first
    limit = k or torch.inf
    gains = torch.where(ranks.values <= limit, 1 / torch.log2(1.0 + ranks.values.double()), 0.0)
    ideal = torch.where(ideal_rank <= limit, 1 / torch.log2(1.0 + ideal_rank.double()), 0.0)
    zeros = torch.zeros(len(ranks), dtype=torch.float64)
    return zeros.index_add(0, row, gains) / zeros.index_add(0, row, ideal)
