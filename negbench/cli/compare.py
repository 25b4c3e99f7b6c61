"""`negbench compare`: a grid of strategies, losses, backbones, data sets and seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.cli import options

if TYPE_CHECKING:
    from negbench.grid.axes import Grid
    from negbench.grid.cells import Cell, Outcome
    from negbench.report.verdicts import Rules
    from negbench.runfolder import Overwrite


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "compare",
        help="Compute every combination once and print the table. The same command goes on where it stopped.",
        epilog="Example: negbench compare --strategies all --losses bradley-terry --seeds 3",
    )(compare)


def compare(
    strategies: Annotated[
        str | None, typer.Option(help="'all', or names by comma; options as qure:variant=release [default: all].")
    ] = None,
    losses: Annotated[str | None, typer.Option(help="As --strategies [default: bradley-terry].")] = None,
    backbones: Annotated[str | None, typer.Option(help="As --strategies [default: tiny].")] = None,
    datasets: Annotated[str | None, typer.Option(help="As --strategies [default: synthetic].")] = None,
    seeds: Annotated[str | None, typer.Option(help="A count (3) or a list (0,1,2) [default: 3].")] = None,
    name: Annotated[
        str | None,
        typer.Option(callback=options.folder_name, help="Folder and MLflow experiment [default: from the grid]."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that compute cells.")] = 1,
    overwrite: options.OverwriteFlag = "failed",
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = False,
    baseline: Annotated[
        str | None, typer.Option(help="Strategy that all are compared with [default: in-batch, else all-corpus].")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="What the verdicts are about, e.g. R@1 [default: the data set's main metric].")
    ] = None,
    margin: Annotated[float, typer.Option(help="Differences within this many points are a tie.")] = 0.5,
    alpha: Annotated[float, typer.Option(help="Level of the tests; intervals have the level 1 - alpha.")] = 0.05,
    audit: Annotated[
        bool, typer.Option("--audit/--no-audit", help="Audit the strategies on the untrained model, too.")
    ] = True,
    report: Annotated[bool, typer.Option("--report/--no-report", help="End with the HTML report.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Stop after the plan and its estimate.")] = False,
    recipe: options.Recipe = None,
    sets: options.Sets = None,
    plugin: options.Plugins = None,
    runs_dir: options.RunsDir = None,
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Plan, compute, print."""
    from negbench import files
    from negbench.errors import NegbenchError
    from negbench.executors import executor_of
    from negbench.grid.cells import SCENES, encode, title_of
    from negbench.grid.comparison import ComparisonFolder, default_name
    from negbench.report.comparison import finish
    from negbench.report.verdicts import Rules

    chosen = options.overwrite_of(overwrite)
    rules = Rules.of_flags(baseline, margin, alpha, metric)
    console = options.console()
    axes = {"strategies": strategies, "losses": losses, "backbones": backbones, "datasets": datasets, "seeds": seeds}
    grid = build_grid(axes, options.dataset_layer(None, data_root, allow_missing), recipe, sets, plugin)
    runs = files.runs_dir(runs_dir)
    cells, todo = _plan(console, grid, runs, rules, chosen)
    if dry_run:
        return
    folder = ComparisonFolder(runs / (name or default_name(cells)))
    with options.stages(console, "prepare") as display:
        encode(todo, display, SCENES)
    if workers > 1:
        SCENES.clear()  # a large backbone is not to stay in memory beside those that train
    with _progress(console, runs, cells, todo, workers) as progress:
        outcomes = folder.compute(
            cells, executor_of(workers), tracking_uri=tracking_uri, overwrite=chosen, progress=progress
        )
    failed = [o for o in outcomes if o.error]
    for outcome in failed:
        console.print(f"FAILED {title_of(outcome.cell, cells)}: {outcome.error}", style="red")
    if any(o.run_id for o in outcomes):
        if audit and not grid.variants:  # which differ in more than what an audit looks at
            _audit(console, cells, folder.path)
        finish(console, runs, folder.path.name, tracking_uri, rules, report=report)
    if failed:
        raise NegbenchError(f"{len(failed)} of {len(outcomes)} cells failed; the same command computes them again")


def build_grid(
    axes: dict[str, str | None],
    dataset_layer: dict[str, Any],
    recipe: Path | None,
    sets: list[str] | None,
    plugin: list[Path] | None,
) -> Grid:
    """Axes from flags, then the recipe's table [compare], then the defaults; the recipe's sections lie below them."""
    from negbench.config import merged, read_recipe, set_layer
    from negbench.errors import OptionError, UnknownNameError
    from negbench.grid.axes import Grid, expand, parse_seeds, parse_variants
    from negbench.systems.system import system

    layers = read_recipe(recipe) if recipe else {}
    table = layers.pop("compare", {})
    variants = parse_variants(table.pop("variants", []))
    objective = system(str(layers["system"])).objective if "system" in layers else {}
    defaults: dict[str, Any] = {
        "strategies": "all",
        "losses": [merged([objective, layers]).get("loss", "bradley-terry")],
        "backbones": [layers.get("backbone", "tiny")],
        "datasets": [layers.get("dataset", "synthetic")],
        "seeds": "3",
    }
    for key in table:
        if key not in defaults:
            raise UnknownNameError("key", f"compare.{key}", [f"compare.{k}" for k in (*defaults, "variants")])
    chosen = {key: axes[key] or table.get(key, default) for key, default in defaults.items()}
    seeds = chosen["seeds"]
    if isinstance(seeds, list):
        seeds = ",".join(str(seed) for seed in seeds) + ("," if len(seeds) == 1 else "")
    overrides = [options.plugin_layer(plugin), *map(set_layer, sets or ())]
    grid = Grid(
        base=(layers, *overrides),
        strategies=expand("strategies", chosen["strategies"]),
        losses=expand("losses", chosen["losses"]),
        backbones=_with_sets(expand("backbones", chosen["backbones"]), "backbone", overrides),
        datasets=tuple(
            {**section, **dataset_layer.get("dataset", {})}
            for section in _with_sets(expand("datasets", chosen["datasets"]), "dataset", overrides)
        ),
        seeds=parse_seeds(str(seeds)),
        variants=variants,
    )
    if not (grid.strategies and grid.losses and grid.backbones and grid.datasets):
        raise OptionError("the grid is empty: name at least one strategy, loss, backbone and data set")
    return grid


def _with_sets(
    sections: tuple[dict[str, Any], ...], name: str, overrides: list[dict[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """`--set backbone.KEY=...` reaches every entry of the axis."""
    extra: dict[str, Any] = {}
    for layer in overrides:
        extra.update(layer.get(name, {}) if isinstance(layer.get(name), dict) else {})
    return tuple({**section, **extra} for section in sections)


def _plan(console: Any, grid: Grid, runs: Path, rules: Rules, overwrite: Overwrite) -> tuple[list[Cell], list[Cell]]:
    """All cells, and those that are to be computed."""
    from negbench.grid.cells import SCENES, plan

    notes = list[str]()
    with options.stages(console, "plan") as display:
        configs = grid.configs(notes.append)
        cells = plan(configs, runs, display, SCENES, grid.labels(configs))
    options.notes(console, notes)
    metrics: list[tuple[str, ...]] = []
    if rules.metric is not None:
        sections = {cell.labels["dataset"]: cell.config.dataset for cell in cells}.values()
        metrics = [SCENES.dataset(section, "val", images=False).card.metrics for section in sections]
    rules.check((cell.labels["strategy"] for cell in cells), metrics)
    steps = [cell.step(runs, overwrite) for cell in cells]
    counts = f"{len(grid.strategies)} strategies x {len(grid.losses)} losses x {len(grid.backbones)} backbones"
    counts = f"{len(grid.variants)} variants x {counts}" if grid.variants else counts
    resumed = steps.count("resume")
    console.print(
        f"{len(cells)} cells ({counts} x {len(grid.datasets)} data sets x {len(grid.seeds)} seeds), "
        f"{steps.count('reuse')} of them finished before" + f", {resumed} to go on with" * (resumed > 0),
        highlight=False,
    )
    todo = [cell for cell, step in zip(cells, steps, strict=True) if step in ("resume", "anew")]
    return cells, todo


def _audit(console: Any, cells: list[Cell], folder: Path) -> None:
    from negbench.audit.audit import audit_cells
    from negbench.grid.cells import SCENES

    with options.stages(console, "audit") as display:
        remarks = audit_cells(cells, folder, display, SCENES)
    options.notes(console, [f"audit: {remark}" for remark in remarks])


@contextmanager
def _progress(
    console: Any, runs: Path, cells: list[Cell], todo: list[Cell], workers: int
) -> Iterator[Callable[[Outcome, int], None]]:
    """What to call after every cell: a live bar on a terminal, a line elsewhere, an estimate after the first one."""
    import time

    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from negbench.grid.cells import title_of

    started, told = time.monotonic(), False
    columns = (
        TextColumn("cells"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as live:
        task = live.add_task("", total=len(cells))

        def progress(outcome: Outcome, done: int) -> None:
            nonlocal told
            what = title_of(outcome.cell, cells)
            what = f"{what} FAILED: {outcome.error}" if outcome.error else what
            live.update(task, completed=done, total=len(cells), description=what)
            if outcome.reused:
                return
            if not console.is_terminal:
                typer.echo(f"[{done}/{len(cells)}] {time.monotonic() - started:6.1f} s  {what}")
            if not told and outcome.run_id is not None and done < len(cells):
                told = True
                live.console.print(_estimate(runs / outcome.run_id, outcome.cell, todo, workers), highlight=False)

        yield progress


def _estimate(folder: Path, first: Cell, todo: list[Cell], workers: int) -> str:
    """Time and disk of the rest, from the first cell that was computed."""
    from negbench.grid.estimate import estimate
    from negbench.runfolder import RunFolder

    rest = [cell for cell in todo if cell.hash != first.hash]
    seconds = sum(RunFolder(folder).result["seconds"].values())
    return f"{len(rest)} more to compute: {estimate(rest, seconds, folder, workers).line()} (as the first one went)"
