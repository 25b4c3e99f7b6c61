"""The trials of a study: cells on the dev part, one per seed, computed by one worker or by several processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import optuna

from negbench import files
from negbench.config import RunConfig, resolved
from negbench.errors import NegbenchError
from negbench.executors import Executor, Report
from negbench.grid.cells import SCENES
from negbench.loop.runs import Bench, plan_run, run_config
from negbench.loop.types import RunResult
from negbench.registry import registry
from negbench.runfolder import RunFolder, runs_of
from negbench.tracking import Tracker
from negbench.tuning.book import Book, Objective, trial_folder
from negbench.tuning.spec import StudySpec

LARGE_FILES = ("model.safetensors", "pools-*.bits")  # of a trial's runs, not kept


@dataclass(frozen=True)
class Job:
    """What a worker process needs to know; picklable.

    Args:
        folder: of the study; its name is the MLflow experiment's too.
        spec: its settings on this machine.
        trials: how many to make.
        uri: MLflow store of the trials' copies.
        parent: MLflow run that they hang under.
        opens: makes the objective in the worker; importable by name. `Trials` but in tests.
    """

    folder: Path
    spec: StudySpec
    trials: int
    uri: str | None
    parent: str | None
    opens: Callable[[Job], Objective]

    def tags(self, trial: int) -> dict[str, str]:
        """Tags of a trial's MLflow copy."""
        name = self.folder.name
        tags = {"experiment": name, "study": name, "negbench.kind": "trial", "trial": str(trial)}
        tags["strategy"] = str(self.spec.base["strategy"]["name"])
        return tags | ({"mlflow.parentRunId": self.parent} if self.parent else {})


class Trials:
    """Computes trials; their cells lie in `cells` of the study's folder, and trials of one point share them."""

    def __init__(self, job: Job) -> None:
        self._job, self._spec = job, job.spec
        self._tracker = Tracker.open(job.folder.parent, job.uri)
        cells = job.folder / "cells"
        self._bench = Bench(cells, Tracker.open(cells, "none"), SCENES)  # MLflow shows the trial, not its cells

    def __call__(self, trial: optuna.Trial) -> float:
        """Mean recall of a trial on the dev part.

        Raises:
            NegbenchError: it cannot be computed.
        """
        space, base = self._spec.space, self._spec.config
        configs = [space.config(base, trial.params, seed) for seed in self._spec.seeds]
        folder = RunFolder(self._job.folder / trial_folder(trial.number))
        params = {**resolved(configs[0]).flat(), **trial.params}
        with self._tracker.run(folder, params, self._job.tags(trial.number)) as log:
            started = time.monotonic()
            results = [self._cell(config) for config in configs]
            recall = statistics.fmean(float(r.metrics[r.details["main_metric"]]) for r in results)
            trial.set_user_attr("runs", [result.run_id for result in results])
            trial.set_user_attr("seconds", round(time.monotonic() - started, 3))
            log.metrics({"objective/recall": recall}, configs[0].train.epochs or 0)
            return recall

    def _cell(self, config: RunConfig) -> RunResult:
        """A run without its weights and pools: of forty they are many gigabytes, and the best is trained again."""
        result = run_config(config, self._bench)
        for folder in runs_of(self._bench.runs, plan_run(config, self._bench.scenes).hash):
            for pattern in LARGE_FILES:
                for path in folder.path.glob(pattern):
                    files.delete(path)
        return result


# --- workers ---------------------------------------------------------------------------------------------------------


def open_study(runs: Path, name: str, spec: StudySpec, *, trials: int, tracking_uri: str | None) -> tuple[Book, Job]:
    """The study, made if absent, and the job of its workers.

    Raises:
        RunError, OptionError: see `Book`.
    """
    folder = runs / name
    book, tracker = Book(folder, spec, trials), Tracker.open(runs, tracking_uri)
    parent = tracker.parent(folder / "mlflow.json", name, {"negbench.kind": "study", "study": name})
    return book, Job(folder, spec, trials, tracking_uri, parent, Trials)


def serve(job: Job, report: Report) -> int:
    """Compute trials until the study has all that are asked for; returns how many this worker made."""
    for path in job.spec.base["plugins"]:
        registry.add_file(Path(path))
    return Book(job.folder, job.spec, job.trials).work(job.opens(job), report)


def run_study(job: Job, executor: Executor, report: Report) -> None:
    """Compute a study with all workers of an executor, which share the runs folder.

    Raises:
        NegbenchError: trial 0 failed, or every worker died.
    """
    workers = executor.workers
    if workers == 1 and not executor.elsewhere:
        serve(job, report)
        return
    alive = workers
    for event in executor.run(serve, [job] * workers):
        if event.kind == "note":
            report(event.value)
        elif event.kind == "failed":
            alive -= 1
            if "trial 0, the default" in event.value:
                raise NegbenchError(event.value)
            report(f"worker {event.index}: {event.value}; {alive} of {workers} go on")
            if alive == 0:
                raise NegbenchError(f"every worker died ({event.value}); rerun the command to resume")
