"""`negbench compare`: a grid of strategies, losses, backbones, data sets and seeds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from negbench.cli import options


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
            "--strategies",
            "--strategy",
            help="Names by comma, options as qure:variant=release; cir: the papers' and their opponents; all: every "
            "one that needs no guide and goes with any loss [default: cir].",
        ),
    ] = None,
    losses: Annotated[
        str | None, typer.Option("--losses", "--loss", help="As --strategies [default: bradley-terry].")
    ] = None,
    backbones: Annotated[
        str | None, typer.Option("--backbones", "--backbone", help="As --strategies [default: tiny].")
    ] = None,
    datasets: Annotated[
        str | None, typer.Option("--datasets", "--dataset", help="As --strategies [default: synthetic].")
    ] = None,
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
    workers: options.Workers = None,
    executor: options.Executor = "pool",
    address: options.Address = None,
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
) -> dict[str, Any] | None:
    """Plan, compute, print."""
    from negbench import files
    from negbench.analysis.verdicts import Rules
    from negbench.commands.cells import executor_of
    from negbench.commands.compare import build_grid, compare_grid

    chosen = options.overwrite_of(overwrite)
    rules = Rules.of_flags(baseline, margin, alpha, metric)
    axes = {"strategies": strategies, "losses": losses, "backbones": backbones, "datasets": datasets, "seeds": seeds}
    axes["negatives"] = negatives
    plugins = options.plugin_layer(plugin)  # first: another flag may name what they define
    grid = build_grid(axes, options.dataset_layer(None, data_root, allow_missing), recipe, sets, plugins)
    runs = files.runs_dir(runs_dir)
    found = compare_grid(
        grid,
        runs,
        rules,
        console=options.console(),
        name=name,
        executor=executor_of(executor, address, workers, runs),
        overwrite=chosen,
        audit=audit,
        report=report,
        dry_run=dry_run,
        tuned=tuned,
        search=search or (),
        tracking_uri=tracking_uri,
    )
    return None if found is None else found.plain()
