"""Which value of which query a metric is the mean of: what intervals and paired tests are made from.

Defined once, for every data set: a query's value of a metric is what the data set's own `summarise` gives for that
query alone (of `recall_at_K`, `subset_recall_at_K` and `map_at_K`: hit at K and average precision at K). A metric that
is not the mean of these values, over its queries or over the gallery groups, has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from negbench.metrics.average_precision import average_precision_at_k
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.recall import hits_at_k

Summarise = Callable[[QueryRanks], dict[str, float]]

_EQUAL = 1e-6  # single-precision sums of a data set's own; a metric is in [0, 1]
_CUTOFF = re.compile(r"(recall|map)_at_(\d+)$")
_PLAIN = re.compile(r"(recall|subset_recall|map)_at_(\d+)")  # the whole name: of all queries


@dataclass(frozen=True, eq=False)
class PerQuery:
    """Values of one metric.

    Attributes:
        values: [n] float64 in [0, 1], of the queries that the metric is about.
        rows: [n] int64, which queries of the ranks these are.
        strata: [n] group names where the metric is the unweighted mean of the groups' means; None where it is the mean
            over queries.
    """

    values: NDArray[np.float64]
    rows: NDArray[np.int64]
    strata: NDArray[np.str_] | None

    @property
    def mean(self) -> float:
        """The metric again."""
        return _mean(self.values, self.strata)


@dataclass(frozen=True, eq=False)
class PerQueryReader:
    """Reads per-query values of one data set from ranks; keeps what it has worked out for the next ranks.

    Args:
        summarise: the data set's, e.g. `FashionIQ.summarise`.

    Queries are told apart only by what metrics named `recall_at_K` and `map_at_K` look at, so that `summarise` runs
    some hundred times and not once per query; for a metric that does not follow from these, by all their ranks.
    """

    summarise: Summarise
    _known: dict[Hashable, dict[str, float]] = field(default_factory=dict, repr=False)

    def read(self, ranks: QueryRanks, metrics: Sequence[str]) -> dict[str, PerQuery]:
        """Values of those of `metrics` that are means over queries.

        Args:
            ranks: of all queries of a split.
            metrics: names as `summarise` gives them.

        Raises:
            NegbenchError: ranks that `summarise` refuses.
        """
        reported = self.summarise(ranks)
        found: dict[str, PerQuery] = {}
        everyone = np.arange(len(ranks))
        for name in metrics:
            values = _plain(ranks, name) if name in reported else None
            if values is not None and (checked := _checked(values, everyone, ranks, reported[name])):
                found[name] = checked
        for signatures in (_by_cutoffs(ranks, tuple(reported)), _by_ranks(ranks)):
            wanted = [name for name in metrics if name in reported and name not in found]
            if wanted:
                found |= self._read(ranks, wanted, signatures, reported)
        return {name: found[name] for name in metrics if name in found}

    def _read(
        self, ranks: QueryRanks, metrics: Sequence[str], signatures: Sequence[Hashable], reported: dict[str, float]
    ) -> dict[str, PerQuery]:
        for row, signature in enumerate(signatures):
            if signature not in self._known:
                self._known[signature] = self.summarise(ranks.select([row]))
        alone = [self._known[signature] for signature in signatures]
        found = {}
        for name in metrics:
            rows = np.array([row for row, values in enumerate(alone) if name in values], dtype=np.int64)
            own = np.array([alone[row][name] for row in rows], dtype=np.float64)
            if checked := _checked(own, rows, ranks, reported[name]):
                found[name] = checked
        return found


def _plain(ranks: QueryRanks, metric: str) -> NDArray[np.float64] | None:
    """[Q] hits or average precisions of a metric that is named as such; None for any other name."""
    match = _PLAIN.fullmatch(metric)
    if match is None:
        return None
    if match[1] == "map":
        return np.asarray(average_precision_at_k(ranks.relevant_ranks, int(match[2])).numpy(), dtype=np.float64)
    place = ranks.target_rank if match[1] == "recall" else ranks.subset_rank
    return None if place is None else np.asarray(hits_at_k(place, int(match[2])).numpy(), dtype=np.float64)


def _checked(
    values: NDArray[np.float64], rows: NDArray[np.int64], ranks: QueryRanks, reported: float
) -> PerQuery | None:
    """The values, weighted so that their mean is what was reported; None where no weighting makes it so."""
    groups = np.array(ranks.group)[rows]
    for strata in (groups, None):
        if len(rows) and abs(_mean(values, strata) - reported) < _EQUAL:
            several = strata is not None and len(np.unique(strata)) > 1
            return PerQuery(values, rows, strata if several else None)
    return None


def _mean(values: NDArray[np.float64], strata: NDArray[np.str_] | None) -> float:
    if strata is None:
        return float(values.mean())
    return float(np.mean([values[strata == name].mean() for name in np.unique(strata)]))


def _by_cutoffs(ranks: QueryRanks, metrics: Sequence[str]) -> list[Hashable]:
    """What the recalls and average precisions among `metrics` see of each query."""
    cutoffs: dict[str, set[int]] = {"recall": set(), "map": set()}
    for name in metrics:
        if match := _CUTOFF.search(name):
            cutoffs[match[1]].add(int(match[2]))
    columns: list[list[Hashable]] = [list(ranks.group), list(ranks.aspects or ranks.group)]
    for place in (ranks.target_rank, ranks.subset_rank):
        if place is not None:
            columns += [(place <= k).tolist() for k in sorted(cutoffs["recall"])]
            columns.append((place < 1).tolist())
    if cutoffs["map"] and bool((ranks.relevant_ranks.lengths > 0).all()):
        columns += [average_precision_at_k(ranks.relevant_ranks, k).tolist() for k in sorted(cutoffs["map"])]
        columns.append((ranks.relevant_ranks.lengths > 1).tolist())
    return [("cutoffs", *row) for row in zip(*columns, strict=True)]


def _by_ranks(ranks: QueryRanks) -> list[Hashable]:
    """All that `ranks` holds of each query, but for its id."""
    columns: list[list[Hashable]] = [list(ranks.group), ranks.target_rank.tolist(), ranks.gallery_size.tolist()]
    columns.append([tuple(ranks.relevant_ranks.row(row).tolist()) for row in range(len(ranks))])
    columns.append([None] * len(ranks) if ranks.subset_rank is None else ranks.subset_rank.tolist())
    columns.append(list(ranks.aspects or ranks.group))
    return [("ranks", *row) for row in zip(*columns, strict=True)]
