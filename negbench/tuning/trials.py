"""A trial computed by the engine: its cells on the dev part, one per seed, and its MLflow copy."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna

from negbench import files
from negbench.config import RunConfig, resolved
from negbench.errors import NegbenchError
from negbench.grid.cells import SCENES
from negbench.loop.runs import Bench, plan_run, run_config
from negbench.loop.types import PlannedRun, RunResult
from negbench.runfolder import RunFolder, runs_of
from negbench.tracking import Pruned, RunLog, Tracker
from negbench.tuning.book import Objective, trial_folder
from negbench.tuning.spec import StudySpec, first_refresh

LARGE_FILES = ("model.safetensors", "checkpoint.pt", "pools-*.bits")  # of a trial's runs, not kept


@dataclass(frozen=True)
class Job:
    """What a worker process needs to know; picklable.

    Args:
        folder: of the study; its name is the MLflow experiment's too.
        spec: its settings on this machine.
        storage: Optuna's URL of a database, or None for the journal in the folder.
        trials: how many to make.
        uri: MLflow store of the trials' copies.
        parent: MLflow run that they hang under.
        opens: makes the objective in the worker; importable by name. `Trials` but in tests.
    """

    folder: Path
    spec: StudySpec
    storage: str | None
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

    def __call__(self, trial: optuna.Trial) -> list[float]:
        """Objectives of a trial: mean recall on the dev part, and what is minimised beside it.

        Raises:
            Pruned: it was stopped within an epoch.
            NegbenchError: it cannot be computed.
        """
        space, base = self._spec.space, self._spec.config
        configs = [space.config(base, trial.params, seed) for seed in self._spec.seeds]
        folder = RunFolder(self._job.folder / trial_folder(trial.number))
        params = {**resolved(configs[0]).flat(), **trial.params}
        with self._tracker.run(folder, params, self._job.tags(trial.number)) as log:
            trial.set_user_attr("config", space.plain(base, trial.params))
            return self._values(trial, configs, log)

    def _values(self, trial: optuna.Trial, configs: Sequence[RunConfig], log: RunLog) -> list[float]:
        started, results = time.monotonic(), list[RunResult]()
        for config in configs:
            results.append(self._cell(config, trial, log, [_main(result) for result in results]))
        recall = statistics.fmean(map(_main, results))
        costs = {
            "mining-seconds": statistics.fmean(float(r.details["seconds"].get("mine", 0.0)) for r in results),
            "false-negative-rate": statistics.fmean(_false_negatives(r.details["behaviour"]) for r in results),
        }
        trial.set_user_attr("runs", [result.run_id for result in results])
        trial.set_user_attr("seconds", round(time.monotonic() - started, 3))
        named = {f"objective/{name.replace('-', '_')}": value for name, value in costs.items()}
        log.metrics({"objective/recall": recall, **named}, self._spec.epochs)
        if self._spec.minimise is None:
            return [recall]
        if math.isnan(costs[self._spec.minimise]):
            raise NegbenchError(
                f"--minimise {self._spec.minimise}: the data set knows nothing beyond each query's target, so that no "
                "false negative can be counted"
            )
        return [recall, costs[self._spec.minimise]]

    def _cell(self, config: RunConfig, trial: optuna.Trial, log: RunLog, before: Sequence[float]) -> RunResult:
        planned = plan_run(config, self._bench.scenes)
        try:
            result = run_config(config, self._bench, watch=_Watch(self._spec, trial, log, planned, before))
        except Pruned:
            self._drop_large_files(planned)
            raise
        self._drop_large_files(planned)
        return result

    def _drop_large_files(self, planned: PlannedRun) -> None:
        """Weights, checkpoint and pools of a cell: forty of them are many gigabytes, and the best is trained again."""
        for folder in runs_of(self._bench.runs, planned.hash):
            for pattern in LARGE_FILES:
                for path in folder.path.glob(pattern):
                    files.delete(path)


class _Watch:
    """Passes a cell's points on to the storage and to MLflow, each once, and prunes.

    A trial that goes on after a kill is pruned where it would have been: the pruner is asked again at the last point
    that the storage has, because the kill may have come before it answered.
    """

    def __init__(
        self, spec: StudySpec, trial: optuna.Trial, log: RunLog, planned: PlannedRun, before: Sequence[float]
    ) -> None:
        self._spec, self._trial, self._log, self._before = spec, trial, log, before
        self._stored = trial.study.get_trials(deepcopy=False)[trial.number].last_step
        self._first = first_refresh(planned.config)
        self._main = f"dev/{planned.splits.val.card.main}"
        self._seen: set[tuple[int, str]] = set()

    def __call__(self, epoch: int, values: Mapping[str, float], new: bool) -> None:
        """One point of a run's curves; `new` does not matter here.

        Raises:
            Pruned: the trial is not worth going on with.
        """
        unseen = {name: value for name, value in values.items() if (epoch, name) not in self._seen}
        self._seen.update((epoch, name) for name in unseen)
        step = len(self._before) * self._spec.epochs + epoch
        self._log.metrics(unseen, step + 1)
        stored = -1 if self._stored is None else self._stored
        if self._main not in unseen or self._spec.minimise is not None or step < stored:
            return
        if step > stored:
            self._trial.report(statistics.fmean([*self._before, unseen[self._main]]), step)
        if epoch >= self._first and self._trial.should_prune():
            raise Pruned(f"at step {step}")


def _main(result: RunResult) -> float:
    return float(result.metrics[result.details["main_metric"]])


def _false_negatives(behaviour: Mapping[str, float | None]) -> float:
    value = behaviour.get("false_negative_rate_draws")
    return math.nan if value is None else float(value)
