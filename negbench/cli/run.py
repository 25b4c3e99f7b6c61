"""`negbench run`: train and score one strategy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.cli import options

if TYPE_CHECKING:
    from negbench.loop.types import RunResult


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "run",
        help="Train and score one run. Ends with its metrics and where it is stored.",
        epilog="Example: negbench run --strategy qure --backbone tiny --dataset synthetic",
    )(run)


def run(
    system: options.System = None,
    strategy: options.Strategy = None,
    backbone: options.Backbone = None,
    dataset: options.Dataset = None,
    loss: options.Loss = None,
    seed: options.Seed = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = False,
    recipe: options.Recipe = None,
    sets: options.Sets = None,
    plugin: options.Plugins = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with an interrupted run.")
    ] = None,
    overwrite: options.OverwriteFlag = "failed",
    runs_dir: options.RunsDir = None,
    tracking_uri: options.TrackingUri = None,
) -> dict[str, Any] | None:
    """Build the configuration, compute, print."""
    from negbench.display import Display, progress_console
    from negbench.systems.system import load_config

    console = options.console()
    named = {"strategy": strategy, "backbone": backbone, "loss": loss}
    flags: dict[str, Any] = options.plugin_flags(plugin, named, dataset, data_root, allow_missing)
    flags |= {"seed": seed, "system": system}
    given = {key for key, value in flags.items() if value is not None}
    if resume is not None and (given or recipe or sets):
        from negbench.errors import OptionError

        raise OptionError(
            f"--resume takes the run's own configuration: leave out {', '.join(sorted(given)) or 'the rest'}"
        )
    told = list[str]()
    config = None if resume is not None else load_config(recipe=recipe, flags=flags, sets=sets or (), note=told.append)
    options.notes(told)
    from negbench.grid.cells import SCENES
    from negbench.loop.runs import Bench, run_config
    from negbench.loop.runs import resume as resume_run

    display = Display(progress_console())
    with display.live():
        tags = {"system": system} if system else {}
        bench = Bench.open(runs_dir, tracking_uri, scenes=SCENES, display=display, tags=tags)
        if config is None:
            result = resume_run(str(resume), bench)
        else:
            result = run_config(config, bench, overwrite=options.overwrite_of(overwrite))
    if os.environ.get("RANK", "0") != "0":  # under `accelerate launch` one process speaks
        return None
    _print(console, result, tracking_uri)
    return {"run": result.run_id, "path": result.path, "reused": result.reused, **result.details}


def _print(console: Any, result: RunResult, tracking_uri: str | None) -> None:
    from negbench.analysis.tables import behaviour_lines, run_table

    manifest = result.folder.manifest
    options.remarks(console, [*manifest["dataset"]["remarks"], *result.details["remarks"]])
    if manifest["dataset"]["partial"]:
        console.print("PARTIAL: images are missing; these numbers are not the benchmark's", style="red")
    console.print(run_table(result.folder))
    for line in behaviour_lines(result.folder):
        console.print(line, highlight=False)
    if result.reused:
        console.print("finished before; --overwrite always computes it anew", highlight=False)
    console.print(f"run    {result.run_id}", highlight=False, soft_wrap=True)
    console.print(f"stored {result.path}", highlight=False, soft_wrap=True)
    if result.tracking_error:
        console.print(
            f"the MLflow copy failed ({result.tracking_error}): `negbench ui` copies it again",
            style="yellow",
        )
    elif tracking_uri != "none":
        console.print(f"look   negbench ui{f' --runs-dir {result.path.parent}'}", highlight=False, soft_wrap=True)
