"""Declaration of a benchmark's metric by its data set: which per-query value, of which queries, averaged over what.

Reported numbers, intervals and paired tests use the same declaration, so a test is about the number in the table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from negbench.errors import DataError
from negbench.metrics.average_precision import average_precision_at_k
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.recall import hits_at_k

QueryValues = Callable[[QueryRanks], Tensor]  # ranks of Q queries -> [Q] float


def hits(k: int) -> QueryValues:
    """[Q] 1 where the target is among the first k, else 0."""
    return lambda ranks: hits_at_k(ranks.target_rank, k)


def subset_hits(k: int) -> QueryValues:
    """[Q] as `hits`, within each query's subset (CIRR's image group)."""

    def values(ranks: QueryRanks) -> Tensor:
        if ranks.subset_rank is None:
            raise DataError("subset recall needs CIRR's ranks within image groups, and these ranks have none")
        return hits_at_k(ranks.subset_rank, k)

    return values


def precision(k: int) -> QueryValues:
    """[Q] average precision at k over all relevant images."""
    return lambda ranks: average_precision_at_k(ranks.relevant_ranks, k)


def value_of_ranking(name: str) -> QueryValues:
    """[Q] a value that was measured while ranking; 0 for queries without one, the others scaled to their own mean."""

    def values(ranks: QueryRanks) -> Tensor:
        measured = ~ranks.values[name].isnan()
        return ranks.values[name].nan_to_num() * (len(ranks) / measured.sum())

    return values


def by_answers(values: QueryValues) -> QueryValues:
    """[Q] the values, each weighted by its query's number of relevant images; weights have mean 1 over the queries.

    Their mean is a mean over (query, relevant image) pairs.
    """

    def weighted_values(ranks: QueryRanks) -> Tensor:
        weights = ranks.relevant_ranks.lengths.double()
        return values(ranks) * weights / weights.mean()

    return weighted_values


@dataclass(frozen=True, eq=False)
class PerQuery:
    """Per-query values of one metric, for intervals and paired tests.

    Attributes:
        values: [n] float64, of the queries that the metric covers; in [0, 1] unless weighted (`by_answers`).
        rows: [n] int64, which queries of the ranks these are.
        strata: [n] group names where the metric is the unweighted mean of several groups' means; None where it is the
            mean over queries.
    """

    values: NDArray[np.float64]
    rows: NDArray[np.int64]
    strata: NDArray[np.str_] | None

    @property
    def mean(self) -> float:
        """The metric's value."""
        if self.strata is None:
            return float(self.values.mean())
        return float(np.mean([self.values[self.strata == name].mean() for name in np.unique(self.strata)]))


@dataclass(frozen=True)
class Metric:
    """A mean over queries of one value each.

    Args:
        per_query: functions of ranks; a query's value is the mean of theirs (usually there is one).
        over: "queries" is the mean over queries, "groups" the unweighted mean of the gallery groups' means.
        group: only the queries of this gallery group.

    Example:
        >>> from negbench.metrics.ragged import Ragged
        >>> rank = torch.tensor([1, 20, 3])
        >>> ranks = QueryRanks(("a", "b", "c"), ("x", "x", "y"), rank, rank, Ragged.of([[1], [20], [3]]))
        >>> Metric((hits(10),)).mean(ranks), Metric((hits(10),), over="groups").mean(ranks)
        (0.6666666666666666, 0.75)
    """

    per_query: tuple[QueryValues, ...]
    over: Literal["queries", "groups"] = "queries"
    group: str | None = None

    def rows(self, ranks: QueryRanks) -> list[int]:
        """Return the indices of the queries that the metric covers."""
        return [row for row, group in enumerate(ranks.group) if self.group in (None, group)]

    def mean(self, ranks: QueryRanks) -> float:
        """Return the metric. Raises NegbenchError without any query, or if a query lacks what the metric needs."""
        covered = self._select_group(ranks)
        parts = [covered.of_group(name) for name in covered.groups] if self.over == "groups" else [covered]
        total = 0.0
        for values in self.per_query:
            total += sum(float(values(part).double().mean()) for part in parts) / len(parts)
        return total / len(self.per_query)

    def of(self, ranks: QueryRanks) -> PerQuery:
        """Return the metric's per-query values. Raises as `mean`."""
        covered = self._select_group(ranks)
        values = torch.stack([values(covered).double() for values in self.per_query]).mean(0)
        several = self.over == "groups" and len(covered.groups) > 1
        return PerQuery(values.numpy(), np.array(self.rows(ranks)), np.array(covered.group) if several else None)

    def _select_group(self, ranks: QueryRanks) -> QueryRanks:
        return ranks if self.group is None else ranks.of_group(self.group)
