"""What scoring gives: metrics, the values of each query that they are made from, and where all that comes from."""

from __future__ import annotations

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
        main: the metric to look at.
        unit: of the metrics: PERCENT for shares that print in percent, "" for plain numbers.
        remarks: one line each.
        partial: whether images are missing, so that these numbers are not the benchmark's.
    """

    title: str
    metrics: dict[str, float]
    queries: pd.DataFrame
    main: str
    unit: str = PERCENT
    remarks: tuple[str, ...] = ()
    partial: bool = False

    def plain(self) -> dict[str, Any]:
        """For JSON: all but the values of each query."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "queries"}


def benchmark_scores(dataset: Dataset, ranks: QueryRanks, what: str, remarks: tuple[str, ...] = ()) -> Scores:
    """The data set's own metrics of `what`'s ranks."""
    return Scores(
        title=f"{what} on {dataset.identity}",
        metrics=dataset.summarise(ranks),
        queries=ranks.to_frame(),
        main=dataset.card.main,
        remarks=(*dataset.remarks, *remarks),
        partial=dataset.partial,
    )


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
