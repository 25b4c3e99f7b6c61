"""The trials of a study: cells on the dev part, one per seed, computed by one worker or by several processes."""

import copy
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import optuna

from negbench.analysis.words import label_of
from negbench.display import log
from negbench.errors import RunError
from negbench.grid.compute import Execution
from negbench.grid.executors import Event, InProcess, Notify, last_event
from negbench.loop.runs import DATA, RunContext, compute_or_reuse, plan_run
from negbench.loop.types import Callbacks, PlannedRun, RecordPoint
from negbench.machine import files
from negbench.plugins.registry import registry
from negbench.scoring.values import values_of
from negbench.settings.config import RunConfig, resolve
from negbench.store.parents import TRIAL, Parent
from negbench.store.run_result import RunResult
from negbench.store.runfolder import RunFolder, runs_of
from negbench.store.tracking import Tracker
from negbench.tuning.book import SCORE, Objective, Pruned, StudyStore, trial_folder
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
        opens: makes the objective in the worker; importable by name. None: `Trials`.
    """

    folder: Path
    spec: StudySpec
    storage: str | None
    trials: int
    uri: str | None
    opens: "Callable[[Job], Objective] | None" = None

    def open(self) -> StudyStore:
        """Open the study, creating it if absent, and its MLflow run; failed trials are queued again.

        Raises:
            RunError, OptionError: see `StudyStore`.
        """
        book = StudyStore(self.folder, self.spec, self.storage, self.trials)
        for number in book.requeue_failed():
            log.info("%s: trial %d failed; queued again", book.name, number)
        self.parent.open()
        return book

    @property
    def parent(self) -> Parent:
        """The study's run in the MLflow store."""
        return Parent(Tracker.open(self.folder.parent, self.uri), self.folder)

    def tags(self, trial: int) -> dict[str, str]:
        """Return the tags of a trial's MLflow copy."""
        name = self.folder.name
        strategy = str(self.spec.base["strategy"]["name"])
        return {"experiment": name, "study": name, "negbench.kind": "trial", "trial": str(trial), "strategy": strategy}


class Trials:
    """Computes trials; their cells are in `cells` of the study's folder, shared by trials of the same point."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._spec = job.spec
        self._tracker = Tracker.open(job.folder.parent, job.uri)
        cells = job.folder / "cells"
        self._bench = RunContext(cells, Tracker.open(cells, "none"), DATA)  # MLflow shows the trial, not its cells

    def __call__(self, trial: optuna.Trial) -> float:
        """Return a trial's mean score on the dev part, in per cent.

        Raises:
            Pruned: the pruner stopped the trial.
            NegbenchError: the trial cannot be computed.
        """
        space = self._spec.space
        base = self._spec.config
        configs = [space.config(base, trial.params, seed) for seed in self._spec.seeds]
        folder = RunFolder(self._job.folder / trial_folder(trial.number))
        searched = {key.replace("+1", " plus 1"): value for key, value in trial.params.items()}  # MLflow takes no '+'
        with self._copy_run(trial, folder, {**resolve(configs[0]).flat(), **searched}) as values:
            results = list[RunResult]()
            for config in configs:
                before = [score_of(result, self._spec.metric) for result in results]
                results.append(self._cell(config, trial, before))
            trial.set_user_attr("runs", [result.run_id for result in results])
            score = statistics.fmean(score_of(result, self._spec.metric) for result in results)
            values["objective/recall"] = score
            trial.set_user_attr(SCORE, score)
            return 100 * score

    @contextmanager
    def _copy_run(self, trial: optuna.Trial, folder: RunFolder, params: dict[str, Any]) -> Iterator[dict[str, float]]:
        """Yield a dictionary for values; copy the trial into MLflow, and note what a later copy needs."""
        tags = self._job.tags(trial.number)
        values: dict[str, float] = {}
        started = time.monotonic()
        live = None
        try:
            with self._tracker.run(folder, params, tags) as live:
                yield values
                live.metrics(values, self._spec.config.train.epochs or 0)
        finally:
            error = sys.exception()
            if error is None:
                status = "FINISHED"
            elif isinstance(error, Exception):
                status = "FAILED"
            else:
                status = "KILLED"
            trial.set_user_attr("seconds", round(time.monotonic() - started, 3))
            lost = None if live is None else live.error
            contents = {"params": params, "tags": tags, "values": values, "status": status, "lost": lost}
            files.write_json(folder.path / TRIAL, contents)

    def _cell(self, config: RunConfig, trial: optuna.Trial, before: Sequence[float]) -> RunResult:
        planned = plan_run(config, self._bench.cache)
        _name_objective(trial.study, self._spec.metric or planned.card.main)
        callbacks = Callbacks(point=_watch(trial, planned, before, self._spec.metric))
        try:
            result = compute_or_reuse(planned, replace(self._bench, callbacks=callbacks))
        except Pruned:
            self._drop_large_files(planned)
            raise
        self._drop_large_files(planned)
        return result

    def _drop_large_files(self, planned: PlannedRun) -> None:
        """Delete a cell's weights, checkpoint and pools: forty take many gigabytes, and the best is trained again.

        Several processes may have a trial of this cell: one that computes it holds its lock, and deletes them later.
        """
        for folder in runs_of(self._bench.runs, planned.hash):
            with suppress(RunError), folder.lock():
                for pattern in LARGE_FILES:
                    for path in folder.path.glob(pattern):
                        files.delete(path)


def score_of(result: RunResult, metric: str) -> float:
    """Return a run's value of a metric, "": the main one; from its ranks where result.json lacks it."""
    name = metric or result.details["main_metric"]
    if name in result.metrics:
        return float(result.metrics[name])
    return values_of([RunFolder(result.path)], [name])[name].mean


def _name_objective(study: optuna.Study, metric: str) -> None:
    """Name the study's values, for Optuna's plots and its dashboard."""
    names = [f"{label_of(metric)} (%)"]
    if study.metric_names != names:
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            study.set_metric_names(names)


def _watch(trial: optuna.Trial, planned: PlannedRun, before: Sequence[float], metric: str) -> RecordPoint:
    """Return a callback that reports the mean score over this and earlier cells (%) to Optuna each epoch, and prunes.

    The default, trial 0, is never pruned. A pruner's answer is noted before it is obeyed, as Hyperband gives it once.
    Curves have the data set's own metrics alone: by another one nothing is reported, nor pruned.
    """
    epochs = planned.config.train.epochs
    first = first_refresh(planned.config)
    main = f"dev/{metric or planned.card.main}"
    answered = trial.user_attrs.get("pruned")

    def watch(values: Mapping[str, float], step: int, epoch: int) -> None:
        at = len(before) * epochs + epoch
        if epoch < 0 or main not in values:
            return
        # `report` would keep that of a dead run
        score = statistics.fmean([*before, values[main]])
        trial.storage.set_trial_intermediate_value(trial._trial_id, at, 100 * score)
        if epoch >= first and (at == answered or _ask_pruner(trial, at)) and trial.number > 0:
            trial.set_user_attr("pruned", at)
            raise Pruned

    return watch


def _ask_pruner(trial: optuna.Trial, at: int) -> bool:
    """Ask the pruner about a trial at a step; later reports, which Optuna keeps, are of a run that died."""
    frozen = copy.copy(trial.study.get_trials(deepcopy=False)[trial.number])
    frozen.intermediate_values = {step: value for step, value in frozen.intermediate_values.items() if step <= at}
    return trial.study.pruner.prune(trial.study, frozen)


# --- workers ---------------------------------------------------------------------------------------------------------


def serve(job: Job, notify: Notify) -> int:
    """Compute trials until the study has as many as requested; return how many this worker computed."""
    for path in job.spec.base["plugins"]:
        registry.add_file(Path(path))
    return StudyStore(job.folder, job.spec, job.storage, job.trials).work((job.opens or Trials)(job), notify)


@dataclass(frozen=True, eq=False)
class TrialSearch:
    """The trials of studies, computed by all workers of an executor, which share the runs folder.

    Attributes:
        studies: each with the job of its workers.
        errors: index of a study in `studies` -> why it ended early: its default failed, or all its workers died.
    """

    studies: Sequence[tuple[StudyStore, Job]]
    errors: dict[int, str] = field(default_factory=dict)

    def run(self, execution: Execution) -> None:
        """Compute them, log when one ends, and keep the MLflow runs of the studies open meanwhile."""
        executor = execution.executor
        count = len(self.studies)
        several = math.ceil(executor.workers / count)  # workers of a study, so that none is idle
        jobs = several * [job for _, job in self.studies]
        alive = dict.fromkeys(range(count), several)  # index of a study -> its workers that have not failed
        started = time.monotonic()

        def take(event: Event) -> None:
            study_index = event.index % count
            text = event.value
            book = self.studies[study_index][0]
            if event.kind == "failed":
                alive[study_index] -= 1
                text = f"worker {event.index // count}: {event.value}; {alive[study_index]} of {several} continue"
                if "trial 0, the default" in event.value or not alive[study_index]:
                    self.errors.setdefault(study_index, str(event.value))
                if event.detail:
                    files.write_text(book.folder / "fault.txt", event.detail)
            if event.kind != "done":
                name = f"{book.spec.base['strategy']['name']}: " if count > 1 else ""
                log.info(
                    "[%d/%d] %6.1f s  %s%s", self._count_ended(), self._total, time.monotonic() - started, name, text
                )

        with ExitStack() as parents:
            for _, job in self.studies:
                parents.enter_context(job.parent.working())
            if type(executor) is InProcess:  # whose events come when a task ends
                for index, job in enumerate(jobs):
                    take(last_event(serve, index, job, take))
            else:
                DATA.clear()  # the workers load their own
                for event in executor.run(serve, jobs):
                    take(event)
                    if len(self.errors) == count:
                        break
        for _, job in self.studies:
            job.parent.complete()

    @property
    def _total(self) -> int:
        return sum(job.trials for _, job in self.studies)

    def _count_ended(self) -> int:
        ended = 0
        for book, _ in self.studies:
            counts = book.counts()
            ended += counts["finished"] + counts["pruned"] + counts["failed"]
        return ended

    def say_finished(self) -> str:
        """Say what is finished, after an interruption."""
        folders = ", ".join(str(book.folder) for book, _ in self.studies)
        return f"{self._count_ended()} of {self._total} trials are finished and kept in {folders}"
