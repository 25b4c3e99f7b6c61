"""A comparison from its settings to its folder: plan, compute, audit, judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from negbench.analysis.verdicts import Rules
from negbench.commands.cells import computed, raise_failed
from negbench.config import RunConfig, merged, read_recipe, set_layer
from negbench.display import notes, stages
from negbench.errors import OptionError, UnknownNameError
from negbench.executors import Executor
from negbench.grid.axes import Grid, expand, parse_negatives, parse_seeds, parse_variants
from negbench.grid.cells import SCENES, Cell, plan
from negbench.grid.comparison import ComparisonFolder, default_name
from negbench.runfolder import Overwrite
from negbench.systems.system import system

if TYPE_CHECKING:  # what comes after the cells is imported after them
    from negbench.report.loaded import Comparison


def compare_grid(
    grid: Grid,
    runs: Path,
    rules: Rules,
    *,
    console: Console,
    name: str | None = None,
    executor: Executor,
    overwrite: Overwrite = "failed",
    audit: bool = True,
    report: bool = True,
    dry_run: bool = False,
    tuned: int | None = None,
    search: Sequence[str] = (),
    tracking_uri: str | None = None,
) -> Comparison | None:
    """Compute what is missing of a grid, and judge it; arguments as the flags of `negbench compare`.

    Args:
        grid: of `build_grid`.
        runs: runs folder.
        rules: how strategies are compared.
        console: where the tables are printed.
        executor: where cells are computed.

    Returns:
        What was found; None after a dry run.

    Raises:
        NegbenchError: a user's mistake, or cells that failed (the others are finished and judged first).
    """
    if search and tuned is None:
        raise OptionError("--search is what trials move: add --tuned N")
    configs, cells = _plan(console, grid, runs, rules, overwrite)
    if tuned is not None:
        from negbench.commands.tuned import at_equal_tuning, combinations_of

        combinations = combinations_of(console, configs, cells, tuned, search)
    if dry_run:
        return None
    folder = ComparisonFolder(runs / (name or default_name(cells)))
    outcomes = computed(folder, cells, executor=executor, tracking_uri=tracking_uri, overwrite=overwrite)
    from negbench.report.finish import finish
    from negbench.report.loaded import Comparison

    if any(outcome.run_id for outcome in outcomes):
        if audit and not grid.variants:  # which differ in more than what an audit looks at
            _audit(cells, folder.path)
        finish(console, runs, folder.path.name, tracking_uri, rules, report=report)
    if tuned is not None:
        outcomes += at_equal_tuning(
            console,
            combinations,
            folder.path,
            tuned,
            rules,
            executor=executor,
            tracking_uri=tracking_uri,
            overwrite=overwrite,
            report=report,
        )
    raise_failed(outcomes)
    return Comparison(folder.path)


def build_grid(
    axes: Mapping[str, Any],
    dataset_layer: Mapping[str, Any],
    recipe: Path | None = None,
    sets: Sequence[str] | None = None,
    plugins: Mapping[str, Any] | None = None,
    below: Mapping[str, Any] | None = None,
) -> Grid:
    """Axes from flags, then the recipe's table [compare], then the defaults; the recipe's sections lie below them.

    Args:
        axes: strategies, losses, backbones, datasets, seeds, negatives: texts as flags have them or lists as recipes
            have them; None or empty is not given.
        dataset_layer: settings of every data set.
        recipe: file, or name of one that comes with negbench.
        sets: 'section.key=value' texts.
        plugins: layer that names plug-in files, which are registered.
        below: settings under the recipe's.
    """
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
    overrides = [plugins or {}, *map(set_layer, sets or ())]
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
    sections: tuple[dict[str, Any], ...], name: str, overrides: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """`--set backbone.KEY=...` reaches every entry of the axis."""
    extra: dict[str, Any] = {}
    for layer in overrides:
        extra.update(layer.get(name, {}) if isinstance(layer.get(name), dict) else {})
    return tuple({**section, **extra} for section in sections)


def _plan(
    console: Console, grid: Grid, runs: Path, rules: Rules, overwrite: Overwrite
) -> tuple[list[RunConfig], list[Cell]]:
    """All cells, and their configurations as read; says how many are there already."""
    told = list[str]()
    with stages("plan") as display:
        configs = grid.configs(told.append)
        cells = plan(configs, runs, display, SCENES, grid.labels(configs))
    notes(told)
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
    return configs, cells


def _audit(cells: list[Cell], folder: Path) -> None:
    from negbench.own.audit import audit_cells

    with stages("audit") as display:
        remarks = audit_cells(cells, folder, display, SCENES)
    notes([f"audit: {remark}" for remark in remarks])
