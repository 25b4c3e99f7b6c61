"""`negbench study`: tune what the papers set by hand, and say how much it matters."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from negbench.cli import options

if TYPE_CHECKING:
    from negbench.config import RunConfig
    from negbench.grid.cells import Outcome
    from negbench.study.book import Book
    from negbench.study.claimed import BestWorld
    from negbench.study.final import Final
    from negbench.study.spec import StudySpec
    from negbench.study.trials import Job

_TRIALS, _FINAL_SEEDS = 40, 3


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
    workers: Annotated[int, typer.Option(min=1, help="Processes of this machine.")] = 1,
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
) -> None:
    """Read the settings, compute, print."""
    from negbench import files

    named = {"strategy": strategy, "backbone": backbone, "loss": loss}
    flags = options.plugin_flags(plugin, named, dataset, data_root, allow_missing)
    flags |= {} if seed is None else {"seed": seed}
    told: dict[str, Any] = {"trials": trials, "seeds": seeds, "search": search, "fix": fix, "minimise": minimise}
    told |= {"sampler": sampler, "pruner": pruner, "final_seeds": final_seeds, "force": force or None, "claims": claims}
    asked = read_study(flags, {key: value for key, value in told.items() if value is not None}, recipe, sets or [])
    what = "claims" if asked.spec.claims else asked.base.strategy.name
    title = name or f"study-{what}-{asked.spec.digest}"
    _compute(asked, files.runs_dir(runs_dir), title, storage, workers, tracking_uri)


@dataclass(frozen=True)
class AskedStudy:
    """What the command line and the recipe ask for."""

    base: RunConfig
    spec: StudySpec
    trials: int
    final_seeds: int
    remarks: tuple[str, ...] = ()  # what the backbone or the data set cannot carry of the system


_DEFAULTS: dict[str, Any] = {
    "trials": None,
    "seeds": 1,
    "search": [],
    "fix": [],
    "points": [],
    "force": False,
    "minimise": None,
    "sampler": "tpe",
    "pruner": "median",
    "final_seeds": None,
    "claims": None,
}


def read_study(flags: dict[str, Any], told: dict[str, Any], recipe: Path | None, sets: list[str]) -> AskedStudy:
    """Flags, then the recipe's table [study], then the defaults; the recipe's sections lie below the flags.

    Raises:
        NegbenchError: an unknown key, or settings that make no study.
    """
    from negbench.config import build_config, read_recipe, resolved, set_layer
    from negbench.errors import OptionError, UnknownNameError
    from negbench.scene import Scenes
    from negbench.study.space import build_space, fixed_layer
    from negbench.study.spec import StudySpec
    from negbench.study.tuned import DEV_FRACTION
    from negbench.systems.system import with_system

    layers = read_recipe(recipe) if recipe else {}
    table = layers.pop("study", {})
    for key in table:
        if key not in _DEFAULTS:
            raise UnknownNameError("key", f"study.{key}", [f"study.{k}" for k in _DEFAULTS])
    chosen = {**_DEFAULTS, **table, **told}
    numbers = _claims(chosen["claims"])
    below: dict[str, Any] = {"eval": {"dev_fraction": DEV_FRACTION}}
    if numbers:
        below = {"strategy": {"name": "qure"}, "dataset": {"name": "vectors"}, "backbone": {"name": "vectors"}}
    whole, remarks = with_system([below, layers, flags, *map(set_layer, sets)], Scenes())
    layered = [whole]
    known = list(resolved(build_config(layered)).flat()) if chosen["fix"] else []
    fixed = dict(fixed_layer(text, known) for text in chosen["fix"])
    base = build_config([*layered, *fixed.values()])
    points, grid = chosen["points"], chosen["sampler"] == "grid"
    if points and (chosen["search"] or fixed or "sampler" in told):
        raise OptionError("study.points lists all that is computed: leave out --search, --fix and --sampler")
    space = build_space(
        base,
        search=chosen["search"],
        fix=list(fixed),
        points=points,
        grid=grid,
        force=bool(chosen["force"]),
        worlds=bool(numbers),
    )
    spec = StudySpec.of(
        base,
        space,
        seeds=int(chosen["seeds"]),
        minimise=chosen["minimise"],
        sampler="grid" if points else chosen["sampler"],
        pruner=chosen["pruner"],
        claims=numbers,
    )
    final = chosen["final_seeds"]
    if final is None:
        final = 0 if points else _FINAL_SEEDS
    listed = len(space.points)
    trials = min(chosen["trials"] or listed, listed) if listed else chosen["trials"] or _TRIALS
    return AskedStudy(base, spec, trials, final, remarks)


def _claims(given: str | None) -> tuple[int, ...]:
    """Numbers of the claims that are asked for."""
    from negbench.claims.claim import chosen

    return tuple(claim.number for claim in chosen(given, "--claims")) if given else ()


def _compute(asked: AskedStudy, runs: Path, title: str, storage: str | None, workers: int, uri: str | None) -> None:
    from negbench.report.study import finish, header
    from negbench.study.final import Final
    from negbench.study.work import open_study, run_study
    from negbench.tracking import Tracker

    console, trials = options.console(), asked.trials
    options.notes(console, asked.remarks)
    book, job = open_study(runs, title, asked.spec, trials=trials, storage=storage, workers=workers, tracking_uri=uri)
    for line in header(book, trials):
        console.print(line, highlight=False, soft_wrap=True)
    started = time.monotonic()

    def report(text: str) -> None:
        counts = book.counts()
        ended = counts["finished"] + counts["pruned"] + counts["failed"]
        typer.echo(f"[{ended}/{trials}] {time.monotonic() - started:6.1f} s  {text}")

    if workers > 1 and not asked.spec.claims:
        _encode(asked)
    with Tracker.open(runs, uri).working(book.folder / "mlflow.json"):
        run_study(job, workers, report)
    typer.echo(f"{trials} trials, {time.monotonic() - started:.1f} s of this command")
    final = _final(asked, book, job, workers, started) if asked.final_seeds else None
    finish(console, runs, book, final if isinstance(final, Final) else None, uri)


def _encode(asked: AskedStudy) -> None:
    """What the feature store lacks, before several workers ask for it at once."""
    from negbench.display import Display
    from negbench.grid.cells import SCENES
    from negbench.loop.runs import open_run

    open_run(asked.spec.space.corners(asked.base)[0], Display(), SCENES)


def _final(asked: AskedStudy, book: Book, job: Job, workers: int, started: float) -> Final | BestWorld | None:
    from negbench.executors import executor_of
    from negbench.study.claimed import best_world
    from negbench.study.final import compare_best

    def progress(outcome: Outcome, done: int) -> None:
        cell = outcome.cell
        what = f"{cell.labels['strategy']} seed {cell.seed}" + f" FAILED: {outcome.error}" * (outcome.error is not None)
        total = "" if asked.spec.claims else f"/{2 * asked.final_seeds}"
        typer.echo(f"[{done}{total}] {time.monotonic() - started:6.1f} s  {what}")

    return (best_world if asked.spec.claims else compare_best)(
        book,
        job.runs,
        executor_of(workers),
        seeds=asked.final_seeds,
        tracking_uri=job.uri,
        progress=progress,
    )
