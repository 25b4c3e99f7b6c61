"""`negbench study`: tune what the papers set by hand, and say how much it matters."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from negbench.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "study",
        help="Search a strategy's knobs on a dev part of train; then run the best beside the default on fresh seeds, "
        "scored on val. The same command goes on where it stopped, and joins from any number of machines.",
        epilog="Example: negbench study --strategy dqe --backbone tiny --dataset synthetic --trials 40",
    )(study)


def study(
    strategy: options.Strategy = None,
    backbone: options.Backbone = None,
    dataset: options.Dataset = None,
    loss: options.Loss = None,
    seed: options.Seed = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials in all; a higher number goes on [default: 40].")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs per trial; their mean counts [default: 1].")] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=LOW:HIGH", help="Set or add a range; :log behind it, or KEY=a|b|c for a choice."),
    ] = None,
    claims: Annotated[
        str | None,
        typer.Option(
            help="Search worlds in which these claims hold (numbers, or qure, cirqrs, dqe, hycole, by comma)."
        ),
    ] = None,
    fix: Annotated[
        list[str] | None, typer.Option(metavar="KEY[=VALUE]", help="Do not search this key; leave it, or set it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Search more than five knobs.")] = False,
    minimise: Annotated[
        str | None, typer.Option(help="Second objective: mining-seconds or false-negative-rate (nothing is pruned).")
    ] = None,
    sampler: Annotated[
        str | None, typer.Option(help="tpe, gp, random, cmaes, or grid over listed values [default: tpe].")
    ] = None,
    pruner: Annotated[str | None, typer.Option(help="median, hyperband or none [default: median].")] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="postgresql://USER@HOST/DATABASE or sqlite:///FILE [default: a journal file in RUNS/NAME]."),
    ] = None,
    workers: options.Workers = None,
    executor: options.Executor = "pool",
    address: options.Address = None,
    final_seeds: Annotated[
        int | None, typer.Option(min=0, help="Fresh seeds of the best beside the default; 0 for none [default: 3].")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(callback=options.folder_name, help="Folder and MLflow experiment [default: from the settings]."),
    ] = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = False,
    recipe: options.Recipe = None,
    sets: options.Sets = None,
    plugin: options.Plugins = None,
    runs_dir: options.RunsDir = None,
    tracking_uri: options.TrackingUri = None,
) -> dict[str, Any]:
    """Read the settings, compute, print."""
    from negbench import files
    from negbench.commands.study import compute_study, read_study
    from negbench.grid.compute import executor_of

    named = {"strategy": strategy, "backbone": backbone, "loss": loss}
    flags = options.plugin_flags(plugin, named, dataset, data_root, allow_missing)
    flags |= {} if seed is None else {"seed": seed}
    told: dict[str, Any] = {"trials": trials, "seeds": seeds, "search": search, "fix": fix, "minimise": minimise}
    told |= {"sampler": sampler, "pruner": pruner, "final_seeds": final_seeds, "force": force or None, "claims": claims}
    asked = read_study(flags, {key: value for key, value in told.items() if value is not None}, recipe, sets or [])
    runs = files.runs_dir(runs_dir)
    found = compute_study(
        asked,
        runs,
        console=options.console(),
        name=name,
        storage=storage,
        executor=executor_of(executor, address, workers, runs),
        tracking_uri=tracking_uri,
    )
    return found.plain()
