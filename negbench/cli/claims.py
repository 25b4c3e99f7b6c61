"""`negbench claims`: what four papers say of negatives, tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.cli import options

if TYPE_CHECKING:
    from negbench.claims.work import ClaimsPlan
    from negbench.executors import Executor
    from negbench.grid.cells import Outcome
    from negbench.grid.comparison import ComparisonFolder
    from negbench.runfolder import Overwrite


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "claims",
        help="Test what the papers claim about negatives: each is confirmed, refuted, undecided or not testable here. "
        "Computes the runs that are missing; the same command goes on where it stopped.",
        epilog="Example: negbench claims --only 5,8,17 --seeds 3",
    )(claims)


def claims(
    only: Annotated[
        str | None, typer.Option(help="Numbers of claims, or papers (qure, ...), by comma [default: all].")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the claims and their tests; compute nothing.")] = False,
    compare: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Compute nothing: read the runs of this comparison that the claims need."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="A count (3) or a list (0,1,2) [default: 3; with --compare, those it has].")
    ] = None,
    backbone: options.Backbone = None,
    dataset: options.Dataset = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = False,
    name: Annotated[
        str | None,
        typer.Option(callback=options.folder_name, help="Folder and MLflow experiment [default: from the runs]."),
    ] = None,
    workers: options.Workers = None,
    executor: options.Executor = "pool",
    address: options.Address = None,
    overwrite: options.OverwriteFlag = "failed",
    recipe: Annotated[
        Path | None,
        typer.Option("--recipe", help="TOML file whose backbone, data set and training are used; the rest is not."),
    ] = None,
    sets: options.Sets = None,
    plugin: options.Plugins = None,
    runs_dir: options.RunsDir = None,
    tracking_uri: options.TrackingUri = None,
) -> dict[str, Any]:
    """Plan, compute or read, judge, print."""
    from negbench import files
    from negbench.claims import table
    from negbench.claims.claim import chosen
    from negbench.claims.work import findings
    from negbench.grid.compute import executor_of, raise_failed

    console, asked = options.console(), chosen(only)
    if list_:
        console.print(table.listed(asked))
        return {"claims": [asdict(claim) for claim in asked]}
    rule = options.overwrite_of(overwrite)
    base = _base(recipe, sets, plugin, backbone, options.dataset_layer(dataset, data_root, allow_missing))
    runs = files.runs_dir(runs_dir)
    plan = _plan(console, asked, base, seeds, compare, runs)
    if compare is not None:
        folder, outcomes = _read(compare, plan, runs)
    else:
        folder, outcomes = _compute(
            console, plan, runs, name, executor_of(executor, address, workers, runs), rule, tracking_uri
        )
    with options.stages("judge") as display:
        found = findings(plan, outcomes, runs, display)
    console.print(table.shown(found))
    about = f"{plan.config.dataset.name}, {plan.config.backbone.name}, seeds {', '.join(map(str, plan.seeds))}"
    console.print(f"{table.counts(found)} ({about})", highlight=False, soft_wrap=True)
    for path in table.write(found, folder.path, about):
        console.print(str(path), highlight=False, soft_wrap=True)
    raise_failed(outcomes)
    document: dict[str, Any] = files.read_json(folder.path / "claims.json")
    return document


def _base(
    recipe: Path | None,
    sets: list[str] | None,
    plugin: list[Path] | None,
    backbone: str | None,
    dataset: dict[str, Any],
) -> list[dict[str, Any]]:
    """Layers of backbone, data set and training."""
    from negbench.claims.work import held_layer
    from negbench.config import read_recipe, set_layer

    plugins = options.plugin_layer(plugin)  # first: another flag may name what they define
    layers = [held_layer(read_recipe(recipe), f"--recipe {recipe}", strict=False)] if recipe else []
    layers += [plugins, options.named("backbone", backbone), dataset]
    return [*layers, *(held_layer(set_layer(text), f"--set {text}", strict=True) for text in sets or ())]


def _plan(
    console: Any, asked: Sequence[Any], base: list[dict[str, Any]], seeds: str | None, compare: str | None, runs: Path
) -> ClaimsPlan:
    from negbench.claims.work import plan_claims
    from negbench.grid.cells import SCENES
    from negbench.grid.comparison import groups_of
    from negbench.options import parse_seeds

    numbers = parse_seeds(seeds or "3")
    if compare is not None:
        groups = groups_of(runs, compare)  # raises where there is no such comparison
        if seeds is None:
            numbers = tuple(sorted({run.config.seed for group in groups for run in group.runs}))
    with options.stages("plan") as display:
        plan = plan_claims(asked, base, numbers, runs, display, SCENES)
    options.notes(plan.remarks)
    return plan


def _read(name: str, plan: ClaimsPlan, runs: Path) -> tuple[ComparisonFolder, list[Outcome]]:
    """The runs of a finished comparison."""
    from negbench.claims.work import outcomes_in
    from negbench.grid.comparison import ComparisonFolder

    folder = ComparisonFolder(runs / name)
    return folder, outcomes_in(folder, plan.cells)


def _compute(
    console: Any,
    plan: ClaimsPlan,
    runs: Path,
    name: str | None,
    executor: Executor,
    rule: Overwrite,
    tracking_uri: str | None,
) -> tuple[ComparisonFolder, list[Outcome]]:
    """What is missing."""
    from negbench.grid.comparison import ComparisonFolder, default_name
    from negbench.grid.compute import computed

    distinct = {cell.hash: cell for cell in plan.cells}.values()
    done = sum(cell.step(runs, rule) == "reuse" for cell in distinct)
    console.print(
        f"{len(plan.claims)} claims need {len(distinct)} runs ({len(plan.seeds)} seeds), "
        f"{done} of them finished before",
        highlight=False,
    )
    folder = ComparisonFolder(runs / (name or default_name(plan.cells).replace("compare-", "claims-")))
    return folder, computed(folder, plan.cells, executor=executor, tracking_uri=tracking_uri, overwrite=rule)
