"""`negbench aggregate`: several tables as one answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from negbench.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "aggregate",
        help="Over several data sets and backbones, of one comparison or of several: interquartile mean, performance "
        "profile, probability of improvement, Elo, win rates, ranks with their critical difference, and what another "
        "rule of choosing the epoch would change.",
        epilog="Example: negbench aggregate fashioniq cirr --name both",
    )(aggregate)


def aggregate(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Comparisons, merged ones and maps too.")],
    name: Annotated[
        str, typer.Option(callback=options.folder_name, help="Folder in the runs folder that it is written to.")
    ] = "aggregate",
    baseline: Annotated[
        str | None, typer.Option(help="Strategy whose Elo is 1000 [default: in-batch, else all-corpus].")
    ] = None,
    alpha: Annotated[float, typer.Option(help="Level of the tests; intervals have the level 1 - alpha.")] = 0.05,
    runs_dir: options.RunsDir = None,
) -> dict[str, Any]:
    """Read, aggregate, print."""
    from negbench import files
    from negbench.analysis.verdicts import Rules
    from negbench.report.aggregate import FILE, finish
    from negbench.report.loaded import stored_document

    rules = Rules.of_flags(baseline, 0.0, alpha)
    runs = files.runs_dir(runs_dir)
    finish(options.console(), runs, names, name, rules)
    return stored_document(runs / name, FILE, "overall", "selection")
