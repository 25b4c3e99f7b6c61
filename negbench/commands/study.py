"""A study from its settings to its folder: trials, and the best beside the default."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from negbench.claims.claim import chosen as claims_named
from negbench.config import RunConfig, build_config, read_recipe, recipe_settings, resolved, set_layer
from negbench.data.scene import Scenes
from negbench.display import Display, log, notes
from negbench.errors import OptionError, UnknownNameError
from negbench.executors import Executor
from negbench.grid.cells import SCENES, Outcome
from negbench.grid.encoding import encode_run
from negbench.report.loaded import Study
from negbench.report.study import finish, header
from negbench.signals import Stopped
from negbench.systems.system import with_system
from negbench.tracking import Tracker
from negbench.tuning.book import Book
from negbench.tuning.claimed import BestWorld, best_world
from negbench.tuning.final import Final, compare_best
from negbench.tuning.space import build_space, fixed_layer
from negbench.tuning.spec import StudySpec
from negbench.tuning.trials import Job
from negbench.tuning.tuned import DEV_FRACTION
from negbench.tuning.work import open_study, run_study

_TRIALS, _FINAL_SEEDS = 40, 3


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


def read_study(flags: dict[str, Any], told: dict[str, Any], recipe: Path | None, sets: Sequence[str]) -> AskedStudy:
    """Flags, then the recipe's table [study], then the defaults; the recipe's sections lie below the flags.

    Raises:
        NegbenchError: an unknown key, or settings that make no study.
    """
    table = read_recipe(recipe).get("study", {}) if recipe else {}
    for key in table:
        if key not in _DEFAULTS:
            raise UnknownNameError("key", f"study.{key}", [f"study.{k}" for k in _DEFAULTS])
    chosen = {**_DEFAULTS, **table, **told}
    numbers = _claims(chosen["claims"])
    below: dict[str, Any] = {"eval": {"dev_fraction": DEV_FRACTION}}
    if numbers:
        below = {"strategy": {"name": "qure"}, "dataset": {"name": "vectors"}, "backbone": {"name": "vectors"}}
    whole, remarks = with_system([below, recipe_settings(recipe), flags, *map(set_layer, sets)], Scenes())
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
    return tuple(claim.number for claim in claims_named(given, "--claims")) if given else ()


def compute_study(
    asked: AskedStudy,
    runs: Path,
    *,
    console: Console,
    name: str | None = None,
    storage: str | None = None,
    executor: Executor,
    tracking_uri: str | None = None,
) -> Study:
    """Compute the trials that are missing and the best beside the default; arguments as the flags of `negbench study`.

    Args:
        asked: of `read_study`.
        runs: runs folder.
        console: where the tables are printed.
        executor: where trials are computed.

    Raises:
        NegbenchError: see `open_study` and `run_study`.
    """
    what = "claims" if asked.spec.claims else asked.base.strategy.name
    trials, title = asked.trials, name or f"study-{what}-{asked.spec.digest}"
    notes(asked.remarks)
    book, job = open_study(
        runs, title, asked.spec, trials=trials, storage=storage, workers=executor.workers, tracking_uri=tracking_uri
    )
    for line in header(book, trials):
        console.print(line, highlight=False, soft_wrap=True)
    started = time.monotonic()

    def report(text: str) -> None:
        counts = book.counts()
        ended = counts["finished"] + counts["pruned"] + counts["failed"]
        log.info("[%d/%d] %6.1f s  %s", ended, trials, time.monotonic() - started, text)

    if (executor.elsewhere or executor.workers > 1) and not asked.spec.claims:
        encode_run(asked.spec.space.corners(asked.base)[0], executor, Display(), SCENES)
    try:
        with Tracker.open(runs, tracking_uri).working(book.folder / "mlflow.json"):
            run_study(job, executor, report)
    except (KeyboardInterrupt, Stopped):
        log.warning("%d of %d trials are finished and kept in %s", book.counts()["finished"], trials, book.folder)
        raise
    log.info("%d trials, %.1f s of this command", trials, time.monotonic() - started)
    final = _final(asked, book, job, executor, started) if asked.final_seeds else None
    finish(console, runs, book, final if isinstance(final, Final) else None, tracking_uri)
    return Study(book.folder)


def _final(asked: AskedStudy, book: Book, job: Job, executor: Executor, started: float) -> Final | BestWorld | None:
    def progress(outcome: Outcome, done: int) -> None:
        cell = outcome.cell
        what = f"{cell.labels['strategy']} seed {cell.seed}" + f" FAILED: {outcome.error}" * (outcome.error is not None)
        total = "" if asked.spec.claims else f"/{2 * asked.final_seeds}"
        log.info("[%d%s] %6.1f s  %s", done, total, time.monotonic() - started, what)

    return (best_world if asked.spec.claims else compare_best)(
        book,
        job.runs,
        executor,
        seeds=asked.final_seeds,
        tracking_uri=job.uri,
        progress=progress,
    )
