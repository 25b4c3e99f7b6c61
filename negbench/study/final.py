"""What a study found: the best trial beside the default on fresh seeds, and tables of listed points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from negbench import statistics
from negbench.config import RunConfig
from negbench.display import Display
from negbench.errors import NegbenchError
from negbench.grid import cells as compare
from negbench.loop.runs import open_run
from negbench.metrics.per_query import PerQueryReader
from negbench.metrics.query_ranks import QueryRanks
from negbench.runfolder import RunFolder, runs_of
from negbench.scene import Scenes
from negbench.study.book import Book

_RESAMPLES_SEED = 0  # of the bootstrap: a table is the same bytes each time it is written


@dataclass(frozen=True)
class Row:
    """One line of a table of points: its values, mean with interval, and the test against the default."""

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


# --- per-query values --------------------------------------------------------------------------------------------


def per_query(
    folders: Sequence[RunFolder], config: RunConfig, metric: str
) -> tuple[NDArray[np.float64], NDArray[np.str_] | None]:
    """[S, Q] values of a metric of S runs on the same queries, and the groups that it averages over."""
    from negbench.registry import registry

    data: Any = registry.get("datasets", config.dataset.name)
    reader = PerQueryReader(data.summarise)
    read = [reader.read(QueryRanks.from_frame(folder.ranks()), [metric]) for folder in folders]
    if not all(metric in found for found in read):
        raise NegbenchError(f"{metric} is no mean over queries: there is no test of it")
    return np.stack([found[metric].values for found in read]), read[0][metric].strata


# --- tables of listed points -------------------------------------------------------------------------------------


def table(book: Book) -> list[Row]:
    """One row per listed point that is finished, in the order listed, on the dev part; the default is the baseline."""
    order = [dict(point) for point in book.spec.space.points]
    done = {_key(trial.params): trial for trial in book.frozen() if trial.state == TrialState.COMPLETE}
    chosen = [done[_key(point)] for point in order if _key(point) in done]
    if not chosen:
        return []
    cells, base = book.folder / "cells", RunConfig.model_validate(book.spec.base)
    values: dict[str, NDArray[np.float64]] = {}
    strata = None
    for trial in chosen:
        folders = [RunFolder(cells / run) for run in trial.user_attrs["runs"]]
        values[str(trial.number)], strata = per_query(folders, base, folders[0].result["main_metric"])
    tests = {}
    if _key(chosen[0].params) == _key(order[0]):
        first = str(chosen[0].number)
        generator = np.random.default_rng(_RESAMPLES_SEED)
        tests = {t.name: t for t in statistics.compare_table(values, first, generator=generator, strata=strata)}
    return [
        Row(
            trial.number,
            dict(trial.params),
            statistics.summarise(
                values[str(trial.number)], generator=np.random.default_rng(_RESAMPLES_SEED), strata=strata
            ),
            tests.get(str(trial.number)),
        )
        for trial in chosen
    ]


def _key(point: Mapping[str, Any]) -> str:
    return repr(sorted(point.items()))


# --- the best beside the default ---------------------------------------------------------------------------------


def compare_best(
    book: Book,
    runs: Path,
    *,
    seeds: int,
    tracking_uri: str | None,
    workers: int,
    progress: compare.Progress | None = None,
    display: Display | None = None,
) -> Final | None:
    """Run the best trial's point and the default on fresh seeds, on the whole train split, scored on val.

    Args:
        book: a study with a finished trial.
        runs: runs folder; the runs make a comparison there, '<study>-final'.
        seeds: how many; the first ones that no trial used.
        tracking_uri, workers, progress: as `negbench.grid.compare.compute`.
        display: shows the preparation.

    Returns:
        None where the default is itself the best.

    Raises:
        NegbenchError: no trial is finished, or a run failed.
    """
    best = next(iter(finished(book)), None)
    if best is None:
        raise NegbenchError(f"study '{book.name}' has no finished trial")
    spec, base = book.spec, RunConfig.model_validate(book.spec.base)
    if best.number == 0 or spec.space.plain(base, best.params) == spec.space.plain(base, spec.space.default):
        return None
    fresh = tuple(range(max(spec.seeds) + 1, max(spec.seeds) + 1 + seeds))
    told = {"default": {}, "best": dict(best.params)}
    scenes, cells = Scenes(), list[compare.Cell]()
    for name, point in told.items():
        for seed in fresh:
            opened = open_run(spec.space.config(base, point, seed, closed=False), display or Display(), scenes)
            found = [folder for folder in runs_of(runs, opened.hash) if folder.status == "finished"]
            labels = {"strategy": f"{base.strategy.name} {name}", "dataset": opened.scene.val.dataset.identity}
            labels |= {"loss": base.loss.name, "backbone": base.backbone.name}
            done = found[0].run_id if found else None
            cells.append(compare.Cell(opened.config, opened.hash, labels, opened.scene.identity, folder=done))
    name = f"{book.name}-final"
    outcomes = compare.compute(
        cells, name=name, runs=runs, tracking_uri=tracking_uri, workers=workers, progress=progress
    )
    if lost := [outcome.error for outcome in outcomes if outcome.error]:
        raise NegbenchError(f"{len(lost)} of {len(cells)} runs of the best and the default failed: {lost[0]}")
    folders = [RunFolder(runs / str(outcome.run_id)) for outcome in outcomes]
    metric = folders[0].result["main_metric"]
    default, strata = per_query(folders[: len(fresh)], base, metric)
    values, _ = per_query(folders[len(fresh) :], base, metric)

    def generator() -> np.random.Generator:
        return np.random.default_rng(_RESAMPLES_SEED)

    return Final(
        metric,
        fresh,
        name,
        statistics.summarise(default, generator=generator(), strata=strata),
        statistics.summarise(values, generator=generator(), strata=strata),
        statistics.compare(values, default, generator=generator(), strata=strata),
    )
