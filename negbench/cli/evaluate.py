"""`negbench evaluate`: score a run again, on any data set, or ready-made rankings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from negbench.cli import command, output
from negbench.command_options import Evaluate

if TYPE_CHECKING:
    from rich.console import Console

    from negbench.scoring.stored import Scores


@command.of(
    Evaluate,
    "negbench evaluate RUN --dataset cirr --split test1 --submission DIR",
    "negbench evaluate RUN --dataset fashioniq",
    "negbench evaluate --ranks rankings.json --dataset circo",
    help="Score a finished run on any data set, or ready-made rankings without any model.",
)
def evaluate(given: Mapping[str, Any]) -> dict[str, Any]:
    """Score and print."""
    from negbench.scoring import benchmark

    asked, console = Evaluate.parsed(given), output.console()
    found = benchmark.evaluate(asked)
    if found.scores is not None:
        _print(console, found.scores)
    for path in found.written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return {} if found.scores is None else found.scores.plain()


def _print(console: Console, found: Scores) -> None:
    """A row a metric, a column for each part (`dress/recall_at_10`); what has no part is of all queries."""
    from rich.table import Table

    from negbench.scoring.stored import PERCENT

    output.remarks(console, found.remarks)
    if found.partial:
        console.print("PARTIAL: images are missing; these numbers are not the benchmark's", style="red")
    console.print(f"{found.title}, {len(found.queries):,} queries", highlight=False, soft_wrap=True)
    parts: dict[str, dict[str, float]] = {}
    for metric, value in found.metrics.items():
        part, _, name = metric.rpartition("/")
        parts.setdefault(part or "all", {})[name] = value
    percent = found.unit == PERCENT
    table = Table(f"metric ({'%' if percent else found.unit})" if found.unit else "metric")
    for part in parts:
        table.add_column(part, justify="right")
    for name in dict.fromkeys(name for values in parts.values() for name in values):
        row = [_cell(values.get(name, math.nan), percent) for values in parts.values()]
        table.add_row(_label(name), *row, style="bold" if name == str(found.main).rpartition("/")[2] else "")
    console.print(table)


def _label(metric: str) -> str:
    from negbench.analysis.words import label_of

    return label_of(metric).replace("_", " ")


def _cell(value: float, percent: bool) -> str:
    if math.isnan(value):
        return "-"
    return f"{100 * value:.2f}" if percent else f"{value:.1e}" if 0 < abs(value) < 1e-4 else f"{value:.4f}"
