"""The trials of a study: cells on the dev part, one per seed, computed by one worker or by several processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import optuna

from negbench.errors import NegbenchError
from negbench.grid.cells import SCENES
from negbench.grid.executors import Executor, Notify
from negbench.loop.runs import Bench, plan_run, run_config
from negbench.loop.types import Log, PlannedRun, RunResult, Watch
from negbench.machine import files
from negbench.plugins.registry import registry
from negbench.settings.config import RunConfig, resolved
from negbench.store.parents import Parent
from negbench.store.runfolder import RunFolder, runs_of
from negbench.store.tracking import Tracker
from negbench.tuning.book import Book, Objective, Pruned, trial_folder
from negbench.tuning.spec import StudySpec, first_refresh

LARGE_FILES = ("model.safetensors", "checkpoint.pt", "pools-*.bits")  # deleted from a trial's runs


@dataclass(frozen=True)
class Job:
    """Picklable description of a study for a worker process.

    Args:
        folder: folder of the study; its name is also that of the MLflow experiment.
        spec: its settings on this machine.
        storage: database URL for Optuna, or None for the journal in the folder.
        trials: number of trials to compute.
        uri: MLflow store of the trials' copies.
        opens: makes the objective in the worker; importable by name. `Trials`, except in tests.
    """

    folder: Path
    spec: StudySpec
    storage: str | None
    trials: int
    uri: str | None
    opens: Callable[[Job], Objective]

    def tags(self, trial: int) -> dict[str, str]:
        """Return the tags of a trial's MLflow copy."""
        name = self.folder.name
        tags = {"experiment": name, "study": name, "negbench.kind": "trial", "trial": str(trial)}
        tags["strategy"] = str(self.spec.base["strategy"]["name"])
        return tags


class Trials:
    """Computes trials; their cells are in `cells` of the study's folder, shared by trials of the same point."""

    def __init__(self, job: Job) -> None:
        self._job, self._spec = job, job.spec
        self._tracker = Tracker.open(job.folder.parent, job.uri)
        cells = job.folder / "cells"
        self._bench = Bench(cells, Tracker.open(cells, "none"), SCENES)  # MLflow shows the trial, not its cells

    def __call__(self, trial: optuna.Trial) -> float:
        """Return a trial's mean recall on the dev part.

        Raises:
            Pruned: the pruner stopped the trial.
            NegbenchError: the trial cannot be computed.
        """
        space, base = self._spec.space, self._spec.config
        configs = [space.config(base, trial.params, seed) for seed in self._spec.seeds]
        folder = RunFolder(self._job.folder / trial_folder(trial.number))
        params = {**resolved(configs[0]).flat(), **trial.params}
        with self._tracker.run(folder, params, self._job.tags(trial.number)) as log:
            started, results = time.monotonic(), list[RunResult]()
            for config in configs:
                results.append(self._cell(config, trial, [_main(result) for result in results]))
            recall = statistics.fmean(map(_main, results))
            trial.set_user_attr("runs", [result.run_id for result in results])
            trial.set_user_attr("seconds", round(time.monotonic() - started, 3))
            log.metrics({"objective/recall": recall}, configs[0].train.epochs or 0)
            return recall

    def _cell(self, config: RunConfig, trial: optuna.Trial, before: Sequence[float]) -> RunResult:
        planned = plan_run(config, self._bench.scenes)
        try:
            result = run_config(planned, replace(self._bench, watch=Watch(point=_watch(trial, planned, before))))
        except Pruned:
            self._drop_large_files(planned)
            raise
        self._drop_large_files(planned)
        return result

    def _drop_large_files(self, planned: PlannedRun) -> None:
        """Delete a cell's weights, checkpoint and pools: forty take many gigabytes, and the best is trained again."""
        for folder in runs_of(self._bench.runs, planned.hash):
            for pattern in LARGE_FILES:
                for path in folder.path.glob(pattern):
                    files.delete(path)


def _main(result: RunResult) -> float:
    return float(result.metrics[result.details["main_metric"]])


def _watch(trial: optuna.Trial, planned: PlannedRun, before: Sequence[float]) -> Log:
    """Return a callback that reports the mean recall over this and earlier cells to Optuna each epoch, and prunes.

    A trial resumed after a kill is pruned where it would have been: epochs before the last one in the storage are not
    judged again; the last one is, because the kill may have come before the pruner answered.
    """
    epochs, first = planned.config.train.epochs, first_refresh(planned.config)
    main, last = f"dev/{planned.card.main}", trial.study.get_trials(deepcopy=False)[trial.number].last_step
    stored = -1 if last is None else last

    def watch(values: Mapping[str, float], step: int, epoch: int) -> None:
        at = len(before) * epochs + epoch
        if epoch < 0 or main not in values or at < stored:
            return
        if at > stored:
            trial.report(statistics.fmean([*before, values[main]]), at)
        if epoch >= first and trial.should_prune():
            raise Pruned

    return watch


# --- workers ---------------------------------------------------------------------------------------------------------


def open_study(
    runs: Path, name: str, spec: StudySpec, *, trials: int, storage: str | None = None, tracking_uri: str | None
) -> tuple[Book, Job]:
    """Open the study, creating it if absent, and return it with the job of its workers.

    Raises:
        RunError, OptionError: see `Book`.
    """
    folder = runs / name
    book = Book(folder, spec, storage, trials)
    Parent(Tracker.open(runs, tracking_uri), folder).open()
    return book, Job(folder, spec, storage, trials, tracking_uri, Trials)


def serve(job: Job, notify: Notify) -> int:
    """Compute trials until the study has as many as requested; return how many this worker computed."""
    for path in job.spec.base["plugins"]:
        registry.add_file(Path(path))
    return Book(job.folder, job.spec, job.storage, job.trials).work(job.opens(job), notify)


def run_study(job: Job, executor: Executor, notify: Notify) -> None:
    """Compute a study with all workers of an executor, which share the runs folder.

    Raises:
        NegbenchError: trial 0 failed, or every worker died.
    """
    workers = executor.workers
    if workers == 1 and not executor.elsewhere:
        serve(job, notify)
        return
    alive = workers
    for event in executor.run(serve, [job] * workers):
        if event.kind == "note":
            notify(event.value)
        elif event.kind == "failed":
            alive -= 1
            if "trial 0, the default" in event.value:
                raise NegbenchError(event.value)
            notify(f"worker {event.index}: {event.value}; {alive} of {workers} workers continue")
            if alive == 0:
                raise NegbenchError(f"every worker died ({event.value}); rerun the command to resume")
