"""`negbench map`: which strategy is ahead in which world, dial by dial."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.cli import options

if TYPE_CHECKING:
    from negbench.grid.map import Dial

_WORLD = {"dataset": {"name": "vectors"}, "backbone": {"name": "vectors"}}  # a cell takes about a second


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "map",
        help="Move settings of a world, all else held fixed, and see which strategy is ahead where, by how much and "
        "how surely. The same command goes on where it stopped.",
        epilog="Example: negbench map --dial dataset.twins=1,2,4 --dial backbone.tokens=1,8 --strategies "
        "qure,cirqrs,dqe,in-batch,all-corpus --seeds 5",
    )(map_)


def map_(
    dials: Annotated[
        list[str] | None,
        typer.Option(
            "--dial", metavar="KEY=V,V", help="A setting and its values; repeat for more [default: recipe's]."
        ),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="So many of all combinations, drawn at random [default: all of them].")
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(help="Names by comma, options as qure:variant=release; cir: the papers'; all [default: cir]."),
    ] = None,
    loss: Annotated[str | None, typer.Option(help="Loss [default: the recipe's or system's, bradley-terry].")] = None,
    backbone: Annotated[str | None, typer.Option(help="Model family [default: vectors].")] = None,
    dataset: Annotated[str | None, typer.Option(help="Data set [default: vectors].")] = None,
    seeds: Annotated[str | None, typer.Option(help="A count (5) or a list (0,1,2) [default: 3].")] = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = False,
    name: Annotated[str, typer.Option(callback=options.folder_name, help="Folder and MLflow experiment.")] = "map",
    workers: options.Workers = None,
    executor: options.Executor = "pool",
    address: options.Address = None,
    overwrite: options.OverwriteFlag = "failed",
    recipe: options.Recipe = None,
    sets: options.Sets = None,
    plugin: options.Plugins = None,
    runs_dir: options.RunsDir = None,
    tracking_uri: options.TrackingUri = None,
) -> dict[str, Any] | None:
    """Plan, compute, print."""
    from negbench import files
    from negbench.commands.cells import computed, executor_of, raise_failed
    from negbench.commands.compare import build_grid
    from negbench.errors import OptionError
    from negbench.grid.cells import SCENES
    from negbench.grid.comparison import ComparisonFolder
    from negbench.grid.map import Design, map_cells
    from negbench.report.loaded import stored_document
    from negbench.report.map import FILE, finish

    chosen = options.overwrite_of(overwrite)
    console = options.console()
    axes = {"strategies": strategies, "losses": loss, "backbones": backbone, "datasets": dataset, "seeds": seeds}
    dataset_layer = options.dataset_layer(None, data_root, allow_missing)
    grid = build_grid(axes, dataset_layer, recipe, sets, options.plugin_layer(plugin), below=_WORLD)
    if max(map(len, (grid.losses, grid.backbones, grid.datasets))) > 1 or grid.variants or grid.negatives:
        raise OptionError("a map has one loss, one backbone and one data set, which its dials move")
    runs = files.runs_dir(runs_dir)
    folder = ComparisonFolder(runs / name)
    where = executor_of(executor, address, workers, runs)
    table = recipe_table(recipe)
    design = Design.of(dials_of(dials, table), sample or table.get("sample"))
    with options.stages("plan") as display:
        cells, undefined = map_cells(design, grid, runs=runs, display=display, scenes=SCENES)
    options.notes([f"there is no world at {label}: {reason}" for label, reason in undefined.items()])
    distinct = list({cell.hash: cell for cell in cells}.values())
    done = sum(cell.step(runs, chosen) == "reuse" for cell in distinct)
    size = f"{len(design.points) - len(undefined)} points x {len(grid.strategies)} strategies x {len(grid.seeds)} seeds"
    console.print(f"{size}: {len(cells)} cells, {done} of them finished before", highlight=False)
    design.write(folder.path)
    outcomes = computed(folder, cells, executor=where, tracking_uri=tracking_uri, overwrite=chosen)
    if any(outcome.run_id for outcome in outcomes):
        finish(console, runs, folder.path.name, tracking_uri)
    raise_failed(outcomes)
    return stored_document(folder.path, FILE, "map", "crossings")


def recipe_table(recipe: Path | None) -> dict[str, Any]:
    """A recipe's table [map]: `dials` and `sample`."""
    from negbench.config import read_recipe
    from negbench.errors import OptionError

    table: dict[str, Any] = read_recipe(recipe).get("map", {}) if recipe else {}
    unknown = [key for key in table if key not in ("dials", "sample")]
    if unknown or not isinstance(table.get("dials", []), list) or not isinstance(table.get("sample", 1), int):
        raise OptionError(f'--recipe {recipe}: the table [map] holds dials = ["KEY=V,V", ...] and sample = NUMBER')
    return table


def dials_of(given: list[str] | None, table: dict[str, Any]) -> list[Dial]:
    """From flags, or the recipe's table [map]."""
    from negbench.errors import OptionError
    from negbench.grid.map import parse_dial

    listed = given or table.get("dials", [])
    if not listed:
        raise OptionError("no dial: give --dial dataset.twins=1,2,4, or a recipe with [map] dials = [...]")
    return [parse_dial(str(text)) for text in listed]
