"""Per-query values of some runs on one metric, read from their folders."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from negbench.errors import RunError
from negbench.plugins.registry import registry
from negbench.store.runfolder import RunFolder

if TYPE_CHECKING:
    from negbench.metrics.metric import PerQuery
    from negbench.metrics.query_ranks import QueryRanks

_LAST_BITS = 1e-6  # by which the same metric of the same ranks may differ between machines


@dataclass(frozen=True, eq=False)
class Values:
    """Per-query values of some runs on one metric.

    `values` [S, Q]; `seeds`, one per row; `strata` [Q] or None; `clusters` [Q] of queries that vary together, or None;
    `nested`: whether every seed has its own queries (a generated world for each seed).
    """

    values: NDArray[np.float64]
    seeds: tuple[int, ...]
    strata: NDArray[np.str_] | None
    clusters: NDArray[np.str_] | None = None
    nested: bool = False

    @property
    def mean(self) -> float:
        """Mean over seeds and queries; with strata, the mean of the strata's means."""
        if self.strata is None or not len(self.strata):
            return float(np.mean(self.values))
        means = [self.values[:, self.strata == name].mean() for name in np.unique(self.strata)]
        return float(np.mean(means))

    def of_seeds(self, seeds: Collection[int]) -> Values:
        """Keep the rows of these seeds; seeds without a row are ignored."""
        rows = [row for row, seed in enumerate(self.seeds) if seed in seeds]
        return replace(self, values=self.values[rows], seeds=tuple(self.seeds[row] for row in rows))


KnownQueries = dict[int, tuple[str, tuple[str, ...]]]  # seed -> world and query ids; real data have the "seed" -1


def values_of(
    runs: Sequence[RunFolder], metrics: Iterable[str], queries: KnownQueries | None = None
) -> dict[str, Values]:
    """Read metric -> per-query values of finished runs on one data set, one row per run.

    Args:
        runs: one for each seed.
        metrics: names of means over queries; others are left out.
        queries: worlds and query ids of the runs read before; those of these runs are added.

    Raises:
        RunError: stored ranks are of other queries or another world than earlier ones of the same data or seed, or do
            not give the metrics of result.json.
    """
    from negbench.metrics.query_ranks import QueryRanks  # here, as reading results that were judged needs no torch

    metrics = list(metrics)
    queries = {} if queries is None else queries
    data = _dataset_of(runs[0])
    of_runs: list[dict[str, PerQuery]] = []
    worlds: set[str] = set()
    for run in runs:
        ranks = QueryRanks.from_frame(run.ranks())
        world = run.manifest.get("dataset", {}).get("world")
        world = "" if world is None else str(world)
        worlds.add(world)
        key = run.config.seed if world else -1
        if queries.setdefault(key, (world, ranks.query)) != (world, ranks.query):
            raise RunError(f"run {run.run_id} has ranks of other queries than the runs before it: rerun it")
        _check_result(run, data, ranks)
        of_runs.append(data.per_query(ranks, metrics))
    seeds = tuple(run.config.seed for run in runs)
    clusters = None if ranks.cluster is None else np.array(ranks.cluster)
    values: dict[str, Values] = {}
    for name in metrics:
        if any(name not in of_run for of_run in of_runs):
            continue
        parts = [of_run[name] for of_run in of_runs]
        if len({(len(part.values), str(part.strata)) for part in parts}) > 1:
            raise RunError(f"the worlds of {runs[0].run_id} and the runs after it have different numbers of queries")
        last = parts[-1]
        values[name] = Values(
            np.stack([part.values for part in parts]),
            seeds,
            last.strata,
            None if clusters is None else clusters[last.rows],
            nested=len(worlds) > 1,
        )
    return values


def check_metrics(run: RunFolder) -> None:
    """Raise RunError unless a finished run's ranks give the metrics of its result.json."""
    from negbench.metrics.query_ranks import QueryRanks

    _check_result(run, _dataset_of(run), QueryRanks.from_frame(run.ranks()))


def _dataset_of(run: RunFolder) -> Any:
    """Return the class of a run's data set; RunError if it is a plug-in that the user has not named."""
    config = run.config
    plugin = registry.plugins("datasets").get(config.dataset.name)
    if plugin is None or plugin.path is not None:
        run.check_plugins()
    return registry.get("datasets", config.dataset.name)


def _check_result(run: RunFolder, data: Any, ranks: QueryRanks) -> None:
    """Raise RunError if a finished run's result.json has other metrics than its ranks give."""
    if run.status != "finished":
        return
    result = run.result
    reported = {**result["metrics"], **result.get("mistakes", {})}
    for name, value in {**data.summarise(ranks), **data.summarise_mistakes(ranks)}.items():
        in_result = reported.get(name)
        if in_result is not None and not math.isclose(in_result, value, abs_tol=_LAST_BITS, rel_tol=_LAST_BITS):
            raise RunError(
                f"run {run.run_id}: by its result.json {name} is {in_result:.6g}, but its ranks give {value:.6g}: move "
                "its folder elsewhere and rerun the command that wrote it"
            )
