"""`negbench encode`: fill the feature store ahead of the runs."""

from __future__ import annotations

from typing import Annotated

import typer

from negbench.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "encode",
        help="Store a backbone's image features of a data set, once for all runs. Interrupted, it goes on.",
        epilog="Example: negbench encode --backbone blip2 --dataset fashioniq --data-root DIR --set compute.workers=8",
    )(encode)


def encode(
    backbone: options.Backbone = None,
    dataset: options.Dataset = None,
    splits: Annotated[str, typer.Option("--splits", help="Splits of the data set, by comma.")] = "train,val",
    verify: Annotated[
        bool, typer.Option("--verify", help="Read what is stored first; encode anew what is damaged.")
    ] = False,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = False,
    recipe: options.Recipe = None,
    sets: options.Sets = None,
    plugin: options.Plugins = None,
    executor: options.Executor = "pool",
    address: options.Address = None,
) -> None:
    """Plan, encode with progress, report."""
    from negbench.config import build_config, recipe_settings, resolved, set_layer
    from negbench.data.scene import Scenes
    from negbench.display import Display, progress_console
    from negbench.grid.compute import executor_of
    from negbench.grid.encoding import EncodingPlan
    from negbench.grid.encoding import encode as fill
    from negbench.systems.system import with_system

    flags = options.plugin_flags(plugin, {"backbone": backbone}, dataset, data_root, allow_missing)
    flags["strategy"] = {"name": "all-corpus"}  # a configuration needs one; it plays no part here
    whole, remarks = with_system([recipe_settings(recipe), flags, *map(set_layer, sets or ())], Scenes())
    options.notes(remarks)
    config = resolved(build_config([whole]))
    where = executor_of(executor, address, None)

    def planned(plan: EncodingPlan) -> None:
        if verify:
            typer.echo(f"{plan.damaged} damaged shards thrown away")
        size = f"{plan.bytes / 2**20:,.1f} MiB"
        typer.echo(f"{plan.images:,} images, {plan.missing:,} to encode, {size} in {plan.store.folder}")

    display = Display(progress_console())
    with display.live(), display.stage("encode") as advance:
        report = fill(config, splits.split(","), where, verify=verify, planned=planned, progress=advance)
    typer.echo(
        f"encoded {report.encoded:,} at {report.images_per_second:,.1f} images/s; "
        f"{report.reused:,} were stored before; {report.seconds:,.1f} s in all, {report.bytes / 2**20:,.1f} MiB written"
    )
