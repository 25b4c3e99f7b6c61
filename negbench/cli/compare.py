"""`negbench compare`: a grid of strategies, losses, backbones, data sets and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.cli import options

if TYPE_CHECKING:
    from negbench.config import RunConfig
    from negbench.grid.axes import Grid
    from negbench.grid.cells import Cell
    from negbench.report.verdicts import Rules
    from negbench.runfolder import Overwrite


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "compare",
        help="Compute every combination once and print the table. The same command goes on where it stopped.",
        epilog="Example: negbench compare --strategies cir --losses bradley-terry --seeds 3",
    )(compare)


def compare(
    strategies: Annotated[
        str | None,
        typer.Option(
            help="Names by comma, options as qure:variant=release; cir: the papers' and their opponents; all: every "
            "one that needs no guide [default: cir]."
        ),
    ] = None,
    losses: Annotated[str | None, typer.Option(help="As --strategies [default: bradley-terry].")] = None,
    backbones: Annotated[str | None, typer.Option(help="As --strategies [default: tiny].")] = None,
    datasets: Annotated[str | None, typer.Option(help="As --strategies [default: synthetic].")] = None,
    seeds: Annotated[str | None, typer.Option(help="A count (3) or a list (0,1,2) [default: 3].")] = None,
    negatives: Annotated[
        str | None, typer.Option(help="Per query and step, an axis: 1,5,63 [default: each strategy's own number].")
    ] = None,
    tuned: Annotated[
        int | None,
        typer.Option(
            min=1, help="Also compare at equal tuning: so many trials for every strategy, on a part of train."
        ),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=LOW:HIGH", help="With --tuned: search this too, for every strategy (:log behind it)."
        ),
    ] = None,
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Stop after the plan, which says what is finished.")
    ] = False,
    recipe: options.Recipe = None,
    sets: options.Sets = None,
    plugin: options.Plugins = None,
    runs_dir: options.RunsDir = None,
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Plan, compute, print."""
    from negbench import files
    from negbench.cli.cells import computed, raise_failed
    from negbench.cli.tuned import at_equal_tuning, combinations_of
    from negbench.grid.comparison import ComparisonFolder, default_name
    from negbench.report.comparison import finish
    from negbench.report.verdicts import Rules

    chosen = options.overwrite_of(overwrite)
    rules = Rules.of_flags(baseline, margin, alpha, metric)
    console = options.console()
    axes = {"strategies": strategies, "losses": losses, "backbones": backbones, "datasets": datasets, "seeds": seeds}
    axes["negatives"] = negatives
    grid = build_grid(axes, options.dataset_layer(None, data_root, allow_missing), recipe, sets, plugin)
    runs = files.runs_dir(runs_dir)
    configs, cells = _plan(console, grid, runs, rules, chosen)
    combinations = combinations_of(console, configs, cells, tuned, search)
    if dry_run:
        return
    folder = ComparisonFolder(runs / (name or default_name(cells)))
    outcomes = computed(console, folder, cells, workers=workers, tracking_uri=tracking_uri, overwrite=chosen)
    if any(outcome.run_id for outcome in outcomes):
        if audit and not grid.variants:  # which differ in more than what an audit looks at
            _audit(console, cells, folder.path)
        finish(console, runs, folder.path.name, tracking_uri, rules, report=report)
    if tuned is not None:
        outcomes += at_equal_tuning(
            console,
            combinations,
            folder.path,
            tuned,
            rules,
            workers=workers,
            tracking_uri=tracking_uri,
            overwrite=chosen,
            report=report,
        )
    raise_failed(outcomes)


def build_grid(
    axes: dict[str, str | None],
    dataset_layer: dict[str, Any],
    recipe: Path | None,
    sets: list[str] | None,
    plugin: list[Path] | None,
    below: Mapping[str, Any] | None = None,
) -> Grid:
    """Axes from flags, then the recipe's table [compare], then the defaults; the recipe's sections lie below them.

    `below`: settings under the recipe's.
    """
    from negbench.config import merged, read_recipe, set_layer
    from negbench.errors import OptionError, UnknownNameError
    from negbench.grid.axes import Grid, expand, parse_negatives, parse_seeds, parse_variants
    from negbench.systems.system import system

    layers = merged([below or {}, read_recipe(recipe) if recipe else {}])
    layers.pop("map", None)
    table = layers.pop("compare", {})
    variants = parse_variants(table.pop("variants", []))
    negatives = parse_negatives(axes.get("negatives") or table.pop("negatives", []))
    objective = system(str(layers["system"])).objective if "system" in layers else {}
    defaults: dict[str, Any] = {
        "strategies": "cir",
        "losses": [merged([objective, layers]).get("loss", "bradley-terry")],
        "backbones": [layers.get("backbone", "tiny")],
        "datasets": [layers.get("dataset", "synthetic")],
        "seeds": "3",
    }
    for key in table:
        if key not in defaults:
            raise UnknownNameError(
                "key", f"compare.{key}", [f"compare.{k}" for k in (*defaults, "variants", "negatives")]
            )
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
        negatives=negatives,
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


def _plan(
    console: Any, grid: Grid, runs: Path, rules: Rules, overwrite: Overwrite
) -> tuple[list[RunConfig], list[Cell]]:
    """All cells, and their configurations as read; says how many are there already."""
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
    for line in _stacked(cells):
        console.print(line, highlight=False)
    return configs, cells


def _stacked(cells: list[Cell]) -> list[str]:
    """How the cells go into stacks, where they are asked for, and why some do not."""
    from collections import Counter

    from negbench.grid.cells import stacks

    together = [cell for cell in cells if cell.config.train.stacked]
    alone = Counter(cell.alone for cell in cells if cell.alone)
    if not together and not alone:
        return []
    lines = [f"{len(together)} cells in {len(stacks(together, 1))} stacks"]
    return lines + [f"{count} cells by themselves: {reason}" for reason, count in alone.items()]


def _audit(console: Any, cells: list[Cell], folder: Path) -> None:
    from negbench.audit.audit import audit_cells
    from negbench.grid.cells import SCENES

    with options.stages(console, "audit") as display:
        remarks = audit_cells(cells, folder, display, SCENES)
    options.notes(console, [f"audit: {remark}" for remark in remarks])
