"""A trial computed by the engine: its runs on the dev part, one per seed, and its MLflow copy."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from negbench.config import RunConfig, resolved
from negbench.display import Display
from negbench.errors import NegbenchError, OptionError, RunError
from negbench.loop.runs import OpenRun, RunResult, compute_run, open_run
from negbench.runfolder import RunFolder, new_folder, runs_of
from negbench.scene import Scenes
from negbench.study.book import Claim, StudySpec
from negbench.study.space import Space
from negbench.tracking import Pruned, RunLog, Tracker


def make_spec(
    base: RunConfig, space: Space, *, seeds: int, minimise: str | None, sampler: str, pruner: str
) -> StudySpec:
    """Settings of a study; its sampler and its runs start from the configuration's seed.

    Raises:
        OptionError: an option out of its list, or a second objective that the strategy does not have.
    """
    from negbench.registry import registry

    full = resolved(base)
    strategy: Any = registry.get("strategies", base.strategy.name)
    if minimise == "mining-seconds" and strategy.scope == "batch":
        raise OptionError(f"--minimise mining-seconds: '{base.strategy.name}' is a batch strategy and mines nothing")
    return StudySpec(
        base=base.model_dump(mode="json"),
        space=space,
        seeds=tuple(range(base.seed, base.seed + seeds)),
        minimise=minimise,
        sampler=sampler,
        pruner=pruner,
        seed=base.seed,
        first_refresh=_earliest_refresh(base, space),
        epochs=int(full.train.epochs or 0),
    )


def first_refresh(config: RunConfig) -> int:
    """Epoch (from 0) at which pools first depend on scores; 0 where they never wait."""
    return next(iter(resolved(config).schedule.refresh_epochs or ()), 0)


def _earliest_refresh(base: RunConfig, space: Space) -> int:
    points = [*space.points, space.default]
    for knob in space.knobs:
        points += [{**space.default, knob.key: value} for value in knob.choices or (knob.low, knob.high)]
    return min(first_refresh(space.config(base, point, base.seed)) for point in points)


@dataclass(frozen=True)
class Tracking:
    """Where the MLflow copies of a study's trials go."""

    runs: Path
    uri: str | None
    experiment: str
    parent: str | None

    def tags(self, trial: int, strategy: str) -> dict[str, str]:
        """Tags of a trial's copy."""
        tags = {"experiment": self.experiment, "study": self.experiment, "negbench.kind": "trial"}
        tags |= {"trial": str(trial), "strategy": strategy}
        return tags | ({"mlflow.parentRunId": self.parent} if self.parent else {})


class Trials:
    """Computes trials; data and features are prepared once.

    Args:
        folder: of the study; runs go to `folder/cells`, where one with the same hash is used again or gone on with.
        spec: of the study.
        tracking: of the MLflow copies.
    """

    def __init__(self, folder: Path, spec: StudySpec, tracking: Tracking) -> None:
        self.folder, self.spec, self.tracking = folder, spec, tracking
        self.base = RunConfig.model_validate(spec.base)
        self.scenes = Scenes()
        self._tracker = Tracker.open(tracking.runs, tracking.uri)

    def __call__(self, claim: Claim) -> list[float]:
        """Objectives of a trial: mean recall on the dev part, and what is minimised beside it.

        Raises:
            Pruned: it was stopped within an epoch.
            Superseded: it was taken from this worker.
            NegbenchError: it cannot be computed.
        """
        configs = [self.spec.space.config(self.base, claim.point, seed) for seed in self.spec.seeds]
        log = RunLog(self._tracker, RunFolder(self.folder / "trials" / f"trial-{claim.number:04d}"))
        params = {**resolved(configs[0]).flat(), **claim.point}
        log.start(params, self.tracking.tags(claim.number, self.base.strategy.name))
        claim.note("config", self.spec.space.plain(self.base, claim.point))
        if log.run_id:
            claim.note("mlflow", log.run_id)
        status = "FAILED"
        try:
            values = self._values(claim, configs, log)
            status = "FINISHED"
        except (KeyboardInterrupt, Pruned):
            status = "KILLED"
            raise
        finally:
            log.finish(status)
        return values

    def _values(self, claim: Claim, configs: Sequence[RunConfig], log: RunLog) -> list[float]:
        started, results = time.monotonic(), list[RunResult]()
        for config in configs:
            results.append(self._cell(config, claim, log, [_main(result) for result in results]))
        recall = statistics.fmean(_main(result) for result in results)
        costs = {
            "mining_seconds": statistics.fmean(float(r.details["seconds"].get("mine", 0.0)) for r in results),
            "false_negative_rate": statistics.fmean(_false_negatives(r.details["behaviour"]) for r in results),
        }
        claim.note("runs", [result.run_id for result in results])
        claim.note("seconds", round(time.monotonic() - started, 3))
        for name, value in costs.items():
            claim.note(name, None if math.isnan(value) else value)
        log.metrics({"objective/recall": recall, **{f"objective/{k}": v for k, v in costs.items()}}, self.spec.epochs)
        if self.spec.minimise is None:
            return [recall]
        second = costs[self.spec.minimise.replace("-", "_")]
        if math.isnan(second):
            raise NegbenchError(
                f"--minimise {self.spec.minimise}: the data set knows nothing beyond each query's target, so that no "
                "false negative can be counted"
            )
        return [recall, second]

    def _cell(self, config: RunConfig, claim: Claim, log: RunLog, before: Sequence[float]) -> RunResult:
        opened = open_run(config, Display(), self.scenes)
        watch = _Watch(self.spec, claim, log, opened, before)
        cells = self.folder / "cells"
        found = runs_of(cells, opened.hash)
        for folder in found:
            if folder.status == "finished":
                watch.replay(folder)
                return RunResult(folder, folder.result)
        tracker = Tracker.open(cells, "none")  # the trial is what MLflow shows
        try:
            folder = found[0] if found else new_folder(cells, opened.name)
            try:
                watch.replay(folder)
                result = compute_run(opened, folder, tracker, {}, watch)
            except RunError:  # another worker computes the same point just now
                folder = new_folder(cells, opened.name)
                opened = open_run(config, Display(), self.scenes)
                result = compute_run(opened, folder, tracker, {}, watch)
        except Pruned:
            _drop_large_files(folder)
            raise
        _drop_large_files(folder)
        return result


class _Watch:
    """Passes a run's points on to the storage and to MLflow, each once, also where the run is one gone on with."""

    def __init__(self, spec: StudySpec, claim: Claim, log: RunLog, opened: OpenRun, before: Sequence[float]) -> None:
        self._spec, self._claim, self._log, self._before = spec, claim, log, before
        self._first = first_refresh(opened.config)
        self._main = f"{opened.scene.scored}/{opened.scene.val.dataset.card.main}"
        self._seen: set[tuple[int, str]] = set()

    def __call__(self, epoch: int, values: Mapping[str, float], *, prunable: bool = True) -> None:
        new = {name: value for name, value in values.items() if (epoch, name) not in self._seen}
        self._seen.update((epoch, name) for name in new)
        step = len(self._before) * self._spec.epochs + epoch
        self._log.metrics(new, step + 1)
        if self._main in new:
            so_far = statistics.fmean([*self._before, new[self._main]])
            self._claim.report(step, so_far, prunable=prunable and epoch >= self._first)

    def replay(self, folder: RunFolder) -> None:
        """The points that a run has already; nothing is pruned on them."""
        for point in folder.metrics():
            if point["epoch"] >= 0:
                values = {name: value for name, value in point.items() if name not in ("step", "epoch")}
                self(int(point["epoch"]), values, prunable=False)


def _main(result: RunResult) -> float:
    return float(result.metrics[result.details["main_metric"]])


def _false_negatives(behaviour: Mapping[str, float | None]) -> float:
    value = behaviour.get("false_negative_rate_draws")
    return math.nan if value is None else float(value)


def _drop_large_files(folder: RunFolder) -> None:
    """Weights, checkpoint and pools of a trial: forty of them are many gigabytes, and the best is trained again."""
    for pattern in ("model.safetensors", "checkpoint.pt", "pools-*.bits"):
        for path in folder.path.glob(pattern):
            with contextlib.suppress(OSError):
                path.unlink()
