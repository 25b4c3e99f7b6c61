"""What scoring gives: metrics, the values of each query that they are made from, and where all that comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd
from torch import Tensor

from negbench.datasets._preferences import PreferenceFormat
from negbench.datasets.dataset import Dataset
from negbench.metrics.query_ranks import QueryRanks

PERCENT = "%"


@dataclass(frozen=True, eq=False)
class Scores:
    """Metrics of one model, or of stored ranks.

    Attributes:
        title: what was scored on what.
        metrics: name -> value; `GROUP/NAME` where a data set has groups.
        queries: one row a query.
        main: the metric to look at; None where the data set was not loaded.
        unit: of the metrics: PERCENT for shares that print in percent, "" for plain numbers.
        remarks: one line each.
        partial: whether images are missing, so that these numbers are not the benchmark's.
    """

    title: str
    metrics: dict[str, float]
    queries: pd.DataFrame
    main: str | None
    unit: str = PERCENT
    remarks: tuple[str, ...] = ()
    partial: bool = False

    def plain(self) -> dict[str, Any]:
        """For JSON: all but the values of each query."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "queries"}


@dataclass(frozen=True, eq=False)
class Ranked:
    """Per-query ranks, from which any metric of ranks follows; attributes as `Scores`'."""

    title: str
    ranks: QueryRanks
    summarise: Callable[[QueryRanks], dict[str, float]]
    main: str | None = None
    remarks: tuple[str, ...] = ()
    partial: bool = False

    @classmethod
    def on(cls, dataset: Dataset, ranks: QueryRanks, what: str, remarks: tuple[str, ...] = ()) -> Ranked:
        """Ranks of `what` on a loaded data set."""
        title, remarks = f"{what} on {dataset.identity}", (*dataset.remarks, *remarks)
        return cls(title, ranks, dataset.summarise, dataset.card.main, remarks, dataset.partial)

    def benchmark(self) -> Scores:
        """The data set's own metrics."""
        metrics = self.summarise(self.ranks)
        frame = self.ranks.to_frame()
        return Scores(self.title, metrics, frame, self.main, remarks=self.remarks, partial=self.partial)


def judged(dataset: PreferenceFormat, sets: Tensor, what: str, remarks: tuple[str, ...] = ()) -> Scores:
    """Agreement of [Q, 2] scores of sets with people's choices."""
    return Scores(
        title=f"{what} on {dataset.identity}",
        metrics=dataset.judge(sets),
        queries=dataset.table(sets),
        main=dataset.card.main,
        unit="",
        remarks=(*dataset.remarks, *remarks),
        partial=dataset.partial,
    )
