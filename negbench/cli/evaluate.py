"""`negbench evaluate`: score a run again, on any data set, or ready-made rankings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from negbench.cli import command, output
from negbench.command_options import Evaluate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from negbench.scoring.result import Scores


def register(app: typer.Typer) -> None:
    """Add the command."""
    command.add(
        app,
        "evaluate",
        Evaluate,
        evaluate,
        help="Score a finished run on any data set, or ready-made rankings without any model.",
        examples=[
            "negbench evaluate RUN --dataset cirr --split test1 --submission DIR",
            "negbench evaluate RUN --dataset fashioniq",
            "negbench evaluate --ranks rankings.json --dataset circo",
        ],
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
    from negbench.scoring.result import PERCENT

    output.remarks(console, found.remarks)
    if found.partial:
        console.print("PARTIAL: images are missing; these numbers are not the benchmark's", style="red")
    console.print(f"{found.title}, {len(found.queries):,} queries", highlight=False, soft_wrap=True)
    console.print(_list(found) if found.unit == PERCENT else _grid(found))


def _list(found: Scores) -> Table:
    """One line a metric, in percent."""
    from rich.table import Table

    from negbench.analysis.words import percent

    table = Table()
    table.add_column("metric")
    table.add_column("%", justify="right")
    for metric, value in found.metrics.items():
        table.add_row(_label(metric), percent(value, 2), style="bold" if metric == found.main else "")
    return table


def _grid(found: Scores) -> Table:
    """A column for each part (`consistent/spearman`); what has no part is of all queries."""
    from rich.table import Table

    parts: dict[str, dict[str, float]] = {}
    for metric, value in found.metrics.items():
        part, _, name = metric.rpartition("/")
        parts.setdefault(part or "all", {})[name] = value
    main_part, _, main = str(found.main).rpartition("/")
    table = Table("metric")
    for part in parts:
        table.add_column(part, justify="right")
    for name in next(iter(parts.values())):
        cells = [_cell(values[name], part == (main_part or "all") and name == main) for part, values in parts.items()]
        table.add_row(_label(name), *cells)
    return table


def _label(metric: str) -> str:
    from negbench.analysis.words import label_of

    return label_of(metric).replace("_", " ")


def _cell(value: float, bold: bool) -> str:
    small = 0 < abs(value) < 1e-4
    text = "-" if math.isnan(value) else f"{value:.1e}" if small else f"{value:.4f}"
    return f"[bold]{text}[/bold]" if bold else text
