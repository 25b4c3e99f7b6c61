"""What a study found: the best trial beside the default on fresh seeds, and tables of listed points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from negbench import statistics
from negbench.config import resolved
from negbench.display import Display
from negbench.errors import NegbenchError
from negbench.executors import Executor
from negbench.grid.cells import SCENES, Outcome, plan
from negbench.grid.comparison import ComparisonFolder
from negbench.runfolder import RunFolder
from negbench.scoring.stored import values_of
from negbench.tuning.book import Book

_RESAMPLES_SEED = 0  # of the bootstrap: a table is the same bytes each time it is written


@dataclass(frozen=True)
class ListedPoint:
    """A listed point that is finished: its values, mean with interval, and the test against the default."""

    trial: int
    point: dict[str, Any]
    summary: statistics.Summary
    test: statistics.Comparison | None  # None for the default itself


@dataclass(frozen=True)
class Final:
    """The best trial beside the default, on seeds that no trial saw and on the reported split."""

    metric: str
    seeds: tuple[int, ...]
    comparison: str  # name of the comparison that holds the runs
    default: statistics.Summary
    best: statistics.Summary
    test: statistics.Comparison


# --- trials ------------------------------------------------------------------------------------------------------


def finished(book: Book) -> list[FrozenTrial]:
    """Trials that ran to their end, best recall on the dev part first."""
    done = [trial for trial in book.frozen() if trial.state == TrialState.COMPLETE]
    return sorted(done, key=lambda trial: (-trial.values[0], trial.number))


def front(book: Book) -> list[FrozenTrial]:
    """Trials that no other one beats on both objectives, best recall first; the best alone with one objective."""
    done = finished(book)
    if book.spec.minimise is None:
        return done[:1]
    return [t for t in done if not any(_dominates(other.values, t.values) for other in done)]


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """More recall and less of the cost; no worse in either and better in one."""
    return one[0] >= other[0] and one[1] <= other[1] and tuple(one) != tuple(other)


# --- statistics --------------------------------------------------------------------------------------------------


def _tested(
    runs: Mapping[str, Sequence[RunFolder]], baseline: str | None
) -> tuple[dict[str, statistics.Summary], dict[str, statistics.Comparison]]:
    """Means of the main metric by name, and the tests of all others against the baseline where there is one.

    Args:
        runs: name -> runs by seed, of one data set and the same seeds for all.
        baseline: one of the names.

    Raises:
        NegbenchError: a main metric that is no mean over queries.
    """
    metric = next(iter(runs.values()))[0].result["main_metric"]
    found = {name: values_of(folders, [metric]) for name, folders in runs.items()}
    if not all(found.values()):
        raise NegbenchError(f"{metric} is no mean over queries: there is no test of it")
    values = {name: own[metric].values for name, own in found.items()}
    strata = next(iter(found.values()))[metric].strata

    def generator() -> np.random.Generator:
        return np.random.default_rng(_RESAMPLES_SEED)

    means = {name: statistics.summarise(own, generator=generator(), strata=strata) for name, own in values.items()}
    if baseline is None:
        return means, {}
    tests = statistics.compare_table(values, baseline, generator=generator(), strata=strata)
    return means, {test.name: test for test in tests}


def listed_points(book: Book) -> list[ListedPoint]:
    """The listed points that are finished, in the order listed, on the dev part; the default is the baseline."""
    points, cells = book.spec.space.points, book.folder / "cells"
    trials = [next((t for t in finished(book) if t.params == point), None) for point in points]
    done = {str(trial.number): trial for trial in trials if trial is not None}
    if not done:
        return []
    runs = {name: [RunFolder(cells / run) for run in trial.user_attrs["runs"]] for name, trial in done.items()}
    means, tests = _tested(runs, None if trials[0] is None else str(trials[0].number))
    return [ListedPoint(t.number, dict(t.params), means[name], tests.get(name)) for name, t in done.items()]


# --- the best beside the default ---------------------------------------------------------------------------------


def compare_best(
    book: Book,
    runs: Path,
    executor: Executor,
    *,
    seeds: int,
    tracking_uri: str | None = None,
    progress: Callable[[Outcome, int], None] | None = None,
) -> Final | None:
    """Run the best trial's point and the default on fresh seeds, on the whole train split, scored on val.

    Args:
        book: a study with a finished trial.
        runs: runs folder; the runs make a comparison there, '<study>-final'.
        executor: where they are computed.
        seeds: how many; the first ones that no trial used.
        tracking_uri, progress: as `ComparisonFolder.compute`.

    Returns:
        None where the default is itself the best.

    Raises:
        NegbenchError: no trial is finished, or a run failed.
    """
    best = next(iter(finished(book)), None)
    if best is None:
        raise NegbenchError(f"study '{book.name}' has no finished trial")
    spec, base = book.spec, book.spec.config
    fresh = tuple(range(max(spec.seeds) + 1, max(spec.seeds) + 1 + seeds))
    points: dict[str, dict[str, Any]] = {"default": {}, "best": best.params}
    configs = [spec.space.config(base, point, seed, closed=False) for point in points.values() for seed in fresh]
    if resolved(configs[0]).identity() == resolved(configs[len(fresh)]).identity():
        return None
    planned = plan(configs, runs, Display(), SCENES)
    names = [f"{base.strategy.name} {name}" for name in points for _ in fresh]
    cells = [replace(c, labels={**c.labels, "strategy": name}) for c, name in zip(planned, names, strict=True)]
    comparison = ComparisonFolder(runs / f"{book.name}-final")
    outcomes = comparison.compute(cells, executor, tracking_uri=tracking_uri, progress=progress)
    if lost := [outcome.error for outcome in outcomes if outcome.error]:
        raise NegbenchError(f"{len(lost)} of {len(cells)} runs of the best and the default failed: {lost[0]}")
    folders = [RunFolder(runs / str(outcome.run_id)) for outcome in outcomes]
    means, tests = _tested({"default": folders[: len(fresh)], "best": folders[len(fresh) :]}, "default")
    metric = folders[0].result["main_metric"]
    return Final(metric, fresh, comparison.path.name, means["default"], means["best"], tests["best"])
