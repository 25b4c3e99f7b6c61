"""`negbench merge`: packs of several people as one comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from negbench.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "merge",
        help="Make one comparison of packs, and print its tables. Cells on other data than the others of their table "
        "are refused, and so is a pack that is damaged or holds anything else.",
        epilog="Example: negbench merge ours.negbench.zip theirs.negbench.zip --name both",
    )(merge)


def merge(
    packs: Annotated[list[Path], typer.Argument(help="Files that `negbench pack` wrote.")],
    name: Annotated[
        str, typer.Option(callback=options.folder_name, help="Folder of the comparison in the runs folder.")
    ] = "merged",
    baseline: Annotated[
        str | None, typer.Option(help="Strategy that all are compared with [default: in-batch, else all-corpus].")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="What the verdicts are about, e.g. R@1 [default: the data set's main metric].")
    ] = None,
    plugin: options.Plugins = None,
    runs_dir: options.RunsDir = None,
) -> dict[str, Any]:
    """Check, merge, print."""
    from negbench import files
    from negbench.analysis.verdicts import Rules
    from negbench.grid.comparison import groups_of
    from negbench.grid.pack import merge
    from negbench.report.finish import finish
    from negbench.report.loaded import Comparison

    console, runs = options.console(), files.runs_dir(runs_dir)
    plugins = options.plugin_layer(plugin).get("plugins", [])
    options.notes(merge(packs, runs, name, plugins))
    groups, rules = groups_of(runs, name), Rules(baseline, metric=metric)
    rules.check((g.labels["strategy"] for g in groups), [tuple(g.results[0]["metrics"]) for g in groups])
    finish(console, runs, name, "none", rules)
    return Comparison(runs / name).plain()
