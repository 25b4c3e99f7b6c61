"""Choose each group's learning rate on queries that are not reported, with the first seed.

A rate that suits one strategy or loss may handicap another. Unless `--lr` says otherwise, every group gets the same
small grid around its configured rate, which is extended while the best rate is the lowest or highest tried. The trials
are ordinary runs in a comparison of their own, found again by their hashes; the choice depends only on the finished
ones.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from negbench.data.scene import DataCache
from negbench.errors import UnknownNameError
from negbench.grid.axis import GroupKey, group_key
from negbench.grid.cells import Cell
from negbench.grid.comparison import together
from negbench.grid.picked_rate import PickedRate
from negbench.metrics.fixed import DEV_QUERIES
from negbench.metrics.names import metric_named
from negbench.plugins.registry import registry
from negbench.scoring.values import Values, values_of
from negbench.settings.config import RunConfig
from negbench.store.runfolder import RunFolder, best_of

FACTORS = (1.0, 0.3, 3.0)  # multiples of the configured rate
MORE = 2  # trials beyond an end of the grid
DEV_FRACTION = 0.2  # of train, or more if configured: a tenth would rank trials by chance
_MOST = 0.3  # of train that `DEV_QUERIES` may take: trials on much smaller data would prefer other rates


@dataclass(frozen=True)
class Rates:
    """Learning-rate trials of a comparison.

    Args:
        trials: trials of each group, that of the configured rate first; their label `settings` names the rate.
        metric: by which rates are chosen, as `metric_named` takes it; None: the data set's main metric.
    """

    trials: Mapping[GroupKey, tuple[Cell, ...]]
    metric: str | None = None

    @classmethod
    def of(cls, cells: Sequence[Cell], runs: Path, cache: DataCache, metric: str | None = None) -> "Rates":
        """Plan each group's trials from its first cell, with those that finished ones ask for."""
        trials = {
            place: tuple(_trial(first, first.config.train.lr * by, runs, cache) for by in FACTORS)
            for place, (first, *_) in together(cells, lambda cell: group_key(cell.labels)).items()
        }
        return cls(trials, metric).grown(runs, cache)

    def grown(self, runs: Path, cache: DataCache) -> "Rates":
        """Add the next trial of each group whose trials are finished and whose best rate is the lowest or highest."""
        trials = dict(self.trials)
        for place, cells in self.trials.items():
            while len(cells) < len(FACTORS) + MORE:
                chosen = _chosen(cells, runs, self.metric)
                beyond = chosen.beyond if all(value is not None for _, value in chosen.tried) else None
                if beyond is None:
                    break
                cells = (*cells, replace(_trial(cells[0], beyond, runs, cache), remarks=()))  # told before
            trials[place] = cells
        return Rates(trials, self.metric)

    @property
    def cells(self) -> list[Cell]:
        """All trials."""
        return [cell for trials in self.trials.values() for cell in trials]

    def chosen(self, runs: Path) -> dict[GroupKey, PickedRate]:
        """Return each group's rate, chosen from the trials finished so far."""
        return {place: _chosen(trials, runs, self.metric) for place, trials in self.trials.items()}


def _chosen(trials: Sequence[Cell], runs: Path, metric: str | None) -> PickedRate:
    by_rate = {cell.config.train.lr: _values(runs, cell, metric) for cell in trials}
    first = trials[0]
    known = {rate: values for rate, values in by_rate.items() if values is not None}
    lr, error = choose(known, first.config.train.lr)
    tried = tuple(sorted((rate, None if values is None else values.mean) for rate, values in by_rate.items()))
    queries = max((values.values.size for values in known.values()), default=0)
    labels = {axis: label for axis, label in first.labels.items() if axis != "settings"}
    generated = first.config.eval.dev == "generated"
    return PickedRate(labels, first.seed, lr, tried, error, queries, generated, metric or "")


def choose(known: Mapping[float, Values], configured: float) -> tuple[float, float | None]:
    """Return the rate nearest to the configured one of those within one standard error of the best.

    Args:
        known: rate -> per-query values of its trial.
        configured: the configured rate; returned if no trial is known.

    Returns the rate, and the standard error of the difference between the best two; None if fewer are known.
    """
    best, *rest = sorted(known, key=lambda rate: -known[rate].mean) or [configured]
    near = [best, *(r for r in rest if known[best].mean - known[r].mean <= paired_error(known[best], known[r]))]
    nearest = min(near, key=lambda rate: round(abs(math.log(rate / configured)), 3))  # of two as near, the better
    return nearest, paired_error(known[best], known[rest[0]]) if rest else None


def paired_error(first: Values, second: Values) -> float:
    """Return the standard error of the difference of two runs' means, paired over queries and by cluster of queries."""
    gaps = (first.values - second.values)[0]
    strata = np.zeros(len(gaps)) if first.strata is None else first.strata
    names, of = np.unique(strata, return_inverse=True)
    sizes = np.bincount(of)
    residuals = (gaps - (np.bincount(of, gaps) / sizes)[of]) / sizes[of] / len(names)
    clusters = np.arange(len(gaps)) if first.clusters is None else np.unique(first.clusters, return_inverse=True)[1]
    sums = np.bincount(clusters, residuals)
    return float(np.sqrt((sums**2).sum() * len(sums) / max(1, len(sums) - 1)))


def at_rates(cells: Sequence[Cell], chosen: Mapping[GroupKey, PickedRate], runs: Path, cache: DataCache) -> list[Cell]:
    """Return the cells, each at its group's rate."""
    with_rates = []
    for cell in cells:
        lr = chosen[group_key(cell.labels)].lr
        if lr != cell.config.train.lr:
            cell = cell.with_config(_with_rate(cell.given, lr), runs, cache)
        with_rates.append(replace(cell, remarks=()))  # the trials have the same remarks
    return with_rates


def _trial(cell: Cell, rate: float, runs: Path, cache: DataCache) -> Cell:
    """Return a cell at another rate, scored on generated queries of the same world, or else on a part of train."""
    rate = float(f"{rate:.6g}")  # so that 0.3 x 0.003 is the same run as 0.0009
    chosen = cell.config.eval
    closed: dict[str, Any] = {"reported": False, "select": "dev" if chosen.select == "val" else chosen.select}
    closed |= generated_dev(cell.config)
    if "dev" not in closed and chosen.reported:
        plain = cell.config.model_copy(update={"eval": chosen.model_copy(update={"select": "last"})})
        enough = DEV_QUERIES / len(cache.splits(plain).train.queries)
        closed["dev_fraction"] = max(chosen.dev_fraction, DEV_FRACTION, min(_MOST, float(f"{enough:.3g}")))
    if closed["select"] == "last":
        closed["every"] = cell.config.train.epochs  # only the last epoch is compared
    config = _with_rate(cell.config, rate).model_copy(update={"eval": chosen.model_copy(update=closed)})
    return cell.with_config(config, runs, cache, settings=f"lr={rate:g}")


def generated_dev(config: RunConfig) -> dict[str, str]:
    """Return the options of `eval` that score a trial on generated queries; none if its data set generates none."""
    data: Any = registry.get("datasets", config.dataset.name)
    return {"dev": "generated"} if data.generates_dev else {}


def _with_rate(config: RunConfig, rate: float) -> RunConfig:
    return config.model_copy(update={"train": config.train.model_copy(update={"lr": rate})})


def _values(runs: Path, cell: Cell, metric: str | None) -> Values | None:
    """Return the per-query values of a finished trial on a metric, None: its main metric."""
    held = best_of(runs, cell.hash)
    return None if held is None or held.status != "finished" else _read(held, metric)


@lru_cache(maxsize=1024)  # planning, each look and the answer ask for the same trials
def _read(run: RunFolder, metric: str | None) -> Values:
    result = run.result
    name = result["main_metric"] if metric is None else metric_named(metric, list(result["metrics"]))
    if name is None:
        raise UnknownNameError("--metric", str(metric), list(result["metrics"]))
    return values_of([run], [name])[name]
