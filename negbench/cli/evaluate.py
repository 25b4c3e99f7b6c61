"""`negbench evaluate`: score a run again, on any data set, or ready-made rankings."""

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

from negbench.cli import command, output
from negbench.settings.command_options import Evaluate

if TYPE_CHECKING:
    from rich.console import Console

    from negbench.scoring.stored import Scores


@command.of(
    Evaluate,
    "negbench evaluate RUN --dataset cirr --split test1 --submission DIR",
    "negbench evaluate RUN --dataset fashioniq",
    "negbench evaluate --ranks rankings.json --dataset circo",
    "negbench evaluate --dataset hp-fashioniq --data-root DIR --scorer recall-at-5",
    "negbench evaluate --ranks rankings.json --dataset fashioniq --data-root DIR --metric cirqrs --scorer RUN",
    help="Score a finished run on any data set, or ready-made rankings without any model; with R@10 by what the texts "
    "change: colour, quantity, appearance, form.",
)
def evaluate(options: Evaluate) -> dict[str, Any]:
    """Score and print."""
    from negbench.scoring import benchmark

    scores, written = benchmark.evaluate(options)
    console = output.console()
    if scores is not None:
        _print(console, scores)
    for path in written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return {} if scores is None else scores.plain()


def _print(console: "Console", scores: "Scores") -> None:
    """Print a row per metric and a column per part (`dress/recall_at_10`); metrics without a part cover all queries."""
    import pandas as pd

    from negbench.analysis.words import label_of
    from negbench.display import Grid, notes
    from negbench.scoring.stored import PERCENT

    notes(scores.remarks)
    if scores.partial:
        console.print("PARTIAL: images are missing; these numbers are not the benchmark's", style="red")
    percent = scores.unit == PERCENT
    parts: dict[str, dict[str, str]] = {}
    for metric, value in scores.metrics.items():
        part, _, name = metric.rpartition("/")
        parts.setdefault(part or "all", {})[label_of(name).replace("_", " ")] = _cell(value, percent)
    names = list(dict.fromkeys(chain.from_iterable(parts.values())))
    table = pd.DataFrame(parts, index=names).fillna("-")
    unit = "%" if percent else scores.unit
    table.insert(0, f"metric ({unit})" if unit else "metric", names)
    _, _, main_name = str(scores.main).rpartition("/")
    main = label_of(main_name).replace("_", " ")
    console.print(Grid(table, f"{scores.title}, {len(scores.queries):,} queries", rest="--json", bold=(main,)))


def _cell(value: float, percent: bool) -> str:
    if math.isnan(value):
        return "-"
    if percent:
        return f"{100 * value:.2f}"
    if 0 < abs(value) < 1e-4:
        return f"{value:.1e}"
    return f"{value:.4f}"
