"""`negbench swap`: every published system with its negatives replaced by every strategy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from negbench.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "swap",
        help="Replace every system's negatives by every strategy's, all else untouched, and take each system's gain "
        "over the plain one apart. The same command goes on where it stopped.",
        epilog="Example: negbench swap --systems all --strategies cir --seeds 5 --workers 2",
    )(swap)


def swap(
    systems: Annotated[str, typer.Option(help="'all', or names by comma (see `list systems`).")] = "all",
    strategies: Annotated[
        str, typer.Option(help="Names by comma, options as qure:variant=release; cir: the papers'; all.")
    ] = "cir",
    seeds: Annotated[str, typer.Option(help="A count (5) or a list (0,1,2).")] = "5",
    backbone: options.Backbone = None,
    dataset: options.Dataset = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = False,
    name: Annotated[str, typer.Option(callback=options.folder_name, help="Folder and MLflow experiment.")] = "swap",
    workers: options.Workers = None,
    executor: options.Executor = "pool",
    address: options.Address = None,
    overwrite: options.OverwriteFlag = "failed",
    recipe: options.Recipe = None,
    sets: options.Sets = None,
    plugin: options.Plugins = None,
    runs_dir: options.RunsDir = None,
    tracking_uri: options.TrackingUri = None,
) -> dict[str, Any]:
    """Plan, compute, print."""
    from negbench import files
    from negbench.commands.cells import computed, executor_of, raise_failed
    from negbench.config import config_layers
    from negbench.grid.axes import expand, parse_seeds
    from negbench.grid.cells import SCENES
    from negbench.grid.comparison import ComparisonFolder
    from negbench.grid.swap import swap_matrix
    from negbench.report.loaded import stored_document
    from negbench.report.swap import finish
    from negbench.systems.system import system as system_of
    from negbench.systems.system import systems as known

    chosen = options.overwrite_of(overwrite)
    console = options.console()
    flags = options.plugin_flags(plugin, {"backbone": backbone}, dataset, data_root, allow_missing)
    layers = config_layers(recipe=recipe, flags=flags, sets=sets or ())
    base = [{key: value for key, value in layer.items() if key != "system"} for layer in layers]  # each row is its own
    names = list(known()) if systems == "all" else [part.strip() for part in systems.split(",") if part.strip()]
    for each in names:
        system_of(each)  # raises
    runs = files.runs_dir(runs_dir)
    folder = ComparisonFolder(runs / name)
    where = executor_of(executor, address, workers, runs)
    with options.stages("plan") as display:
        matrix = swap_matrix(
            base,
            names,
            expand("strategies", strategies),
            parse_seeds(seeds),
            runs=runs,
            display=display,
            scenes=SCENES,
        )
    options.notes(matrix.remarks)
    distinct = list({cell.hash: cell for cell in matrix.cells}.values())
    done = sum(cell.step(runs, chosen) == "reuse" for cell in distinct)
    console.print(
        f"{len(matrix.cells)} cells of {len(names)} systems, {len(distinct)} different runs, {done} of them finished "
        f"before; {len(matrix.undefined)} strategies not defined in a system",
        highlight=False,
    )
    outcomes = computed(folder, matrix.cells, executor=where, tracking_uri=tracking_uri, overwrite=chosen)
    finish(console, runs, folder.path.name, matrix, tracking_uri)
    raise_failed(outcomes)
    return stored_document(folder.path, "swap.json", "swap", "decomposition")
