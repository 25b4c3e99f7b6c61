"""Choose learning rates on queries that are not reported, with the comparison's first seeds.

A rate that suits one strategy or loss may handicap another. Unless `--lr` says otherwise, every group gets the rate
with the highest mean over seeds, in a grid around the configured one. All groups of a table have the same grid and
equally many seeds: where the best rate of one is the lowest or highest tried, all try the next. No rate is preferred: a
rule that leans to one of them decides for the strategies that it suits. The trials are ordinary runs in a comparison of
their own, found again by their hashes; the choice depends only on the finished ones. What it leaves open is a part of
the verdicts (`negbench.analysis.rate_choice`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from negbench.data.scene import DataCache
from negbench.errors import UnknownNameError
from negbench.grid.axis import AXES, GroupKey, group_key
from negbench.grid.cells import Cell
from negbench.grid.comparison import together
from negbench.grid.picked_rate import STEP, PickedRate, best_rate
from negbench.metrics.fixed import DEV_QUERIES
from negbench.metrics.names import metric_named
from negbench.plugins.registry import registry
from negbench.scoring.values import Values, values_of
from negbench.settings.config import RunConfig
from negbench.store.runfolder import RunFolder, best_of

FACTORS = (1.0, 0.3, 3.0)  # multiples of the configured rate
MORE = 2  # how often the grid is extended, at one end or at both
TRIAL_SEEDS = 3  # the first ones of the comparison, or all if it has fewer
DEV_FRACTION = 0.2  # of train, or more if configured: a tenth would rank trials by chance
_MOST = 0.3  # of train that `DEV_QUERIES` may take: trials on much smaller data would prefer other rates

Trials = Mapping[GroupKey, tuple[Cell, ...]]


@dataclass(frozen=True)
class Rates:
    """Learning-rate trials of a comparison.

    Args:
        trials: trials of each group, those of the configured rate first; each rate has one for each seed, and their
            label `settings` names the rate.
        metric: by which rates are chosen, as `metric_named` takes it; None: the data set's main metric.
        common: whether all groups of a table get one rate: the one with the highest mean over them.
    """

    trials: Trials
    metric: str | None = None
    common: bool = False

    @classmethod
    def of(
        cls, cells: Sequence[Cell], runs: Path, cache: DataCache, metric: str | None = None, *, common: bool = False
    ) -> "Rates":
        """Plan each group's trials from its first cells, with those that finished ones ask for."""
        trials = {}
        for place, members in together(cells, lambda cell: group_key(cell.labels)).items():
            rates = [members[0].config.train.lr * factor for factor in FACTORS]
            trials[place] = _trials(members[:TRIAL_SEEDS], rates, runs, cache)
        return cls(trials, metric, common).grown(runs, cache)

    def grown(self, runs: Path, cache: DataCache) -> "Rates":
        """Add the next rates of each table in which the best rate of a group is the lowest or the highest tried.

        Only groups whose trials are all finished ask for more. Which rates a table tries depends on the finished trials
        alone, not on the order in which they were computed.
        """
        grown: dict[GroupKey, tuple[Cell, ...]] = {}
        for places in together(self.trials, _table_of).values():
            known = {place: self.trials[place] for place in places}
            tried = {place: cells[: len(FACTORS) * len(_seeds_of(cells))] for place, cells in known.items()}
            for _ in range(MORE):
                below, above = self._ends(tried, runs)
                if not (below or above):
                    break
                for place, cells in tried.items():
                    tried[place] = (*cells, *_beyond(cells, known[place], below, above, runs, cache))
            grown |= tried
        return replace(self, trials={place: grown[place] for place in self.trials})

    def _ends(self, trials: Trials, runs: Path) -> tuple[bool, bool]:
        """Return whether a group of a table asks for a lower rate, and whether one asks for a higher one."""
        below = False
        above = False
        for cells in trials.values():
            picked = self._pick_rate(cells, runs)
            if len(picked.known) == len(picked.tried):
                below = below or picked.below is not None
                above = above or picked.above is not None
        return below, above

    @property
    def cells(self) -> list[Cell]:
        """All trials."""
        return [cell for trials in self.trials.values() for cell in trials]

    def further_epochs(self) -> int:
        """Return the epochs of the trials that may still be added to these, at most."""
        epochs = 0
        for cells in self.trials.values():
            further = len(FACTORS) + 2 * MORE - len(_rates_of(cells))
            epochs += further * len(_seeds_of(cells)) * cells[0].config.train.epochs
        return epochs

    def chosen(self, runs: Path) -> dict[GroupKey, PickedRate]:
        """Return each group's rate, chosen from the trials finished so far."""
        chosen = {place: self._pick_rate(cells, runs) for place, cells in self.trials.items()}
        if not self.common:
            return chosen
        for places in together(self.trials, _table_of).values():
            number = _common_rate({place: chosen[place] for place in places}, self.trials)
            for place in places:
                picked = chosen[place]
                lr = self.trials[place][0].config.train.lr if number is None else picked.tried[number][0]
                chosen[place] = replace(picked, lr=lr, common=True)
        return chosen

    def _pick_rate(self, cells: Sequence[Cell], runs: Path) -> PickedRate:
        """Return a group's rate, chosen from its own trials."""
        first = cells[0]
        metric = _metric_of(first, self.metric)
        finished: dict[float, tuple[RunFolder, ...]] = {}
        for rate in _rates_of(cells):
            held = [best_of(runs, cell.hash) for cell in cells if cell.config.train.lr == rate]
            folders = tuple(folder for folder in held if folder is not None and folder.status == "finished")
            if len(folders) == len(held):
                finished[rate] = folders
        values = {rate: _read(folders, metric) for rate, folders in finished.items()}
        means = {rate: each.mean for rate, each in values.items()}
        return PickedRate(
            labels={axis: label for axis, label in first.labels.items() if axis != "settings"},
            seeds=tuple(_seeds_of(cells)),
            lr=best_rate(means, first.config.train.lr),
            tried=tuple((rate, means.get(rate)) for rate in _rates_of(cells)),
            runs=tuple((rate, tuple(folder.run_id for folder in folders)) for rate, folders in finished.items()),
            queries=max((each.values.shape[1] for each in values.values()), default=0),
            generated=first.config.eval.dev == "generated",
            metric=metric,
        )


def _common_rate(chosen: Mapping[GroupKey, PickedRate], trials: Trials) -> int | None:
    """Return the place in `tried` of the rate with the highest mean over a table's groups; None if there is none.

    Groups without a finished trial do not count; the others must all have finished the rate.
    """
    rows = [picked for picked in chosen.values() if picked.known]
    if not rows:
        return None
    configured = trials[next(iter(chosen))][0].config.train.lr
    means = {}
    for number, (rate, _) in enumerate(rows[0].tried):
        values = [picked.tried[number][1] for picked in rows]
        finished = [value for value in values if value is not None]
        if len(finished) == len(rows):
            means[rate] = sum(finished) / len(finished)
    if not means:
        return None
    return [rate for rate, _ in rows[0].tried].index(best_rate(means, configured))


def _table_of(place: GroupKey) -> tuple[str, ...]:
    """Return what all groups of a table share: the labels of its group without the strategy."""
    return tuple(label for axis, label in zip(AXES, place, strict=True) if axis != "strategy")


def _rates_of(cells: Sequence[Cell]) -> list[float]:
    """Return the rates of a group's trials, lowest first."""
    return sorted({cell.config.train.lr for cell in cells})


def _seeds_of(cells: Sequence[Cell]) -> list[int]:
    """Return the seeds of a group's trials, in the comparison's order."""
    return list(dict.fromkeys(cell.seed for cell in cells))


def _metric_of(cell: Cell, metric: str | None) -> str:
    """Return the metric by which rates are chosen, None: the data set's main metric.

    Raises:
        UnknownNameError: the data set has no such metric.
    """
    card = cell.run.card
    if metric is None:
        return card.main
    named = metric_named(metric, list(card.metrics))
    if named is None:
        raise UnknownNameError("--metric", metric, list(card.metrics))
    return named


def at_rates(cells: Sequence[Cell], chosen: Mapping[GroupKey, PickedRate], runs: Path, cache: DataCache) -> list[Cell]:
    """Return the cells, each at its group's rate."""
    with_rates = []
    for cell in cells:
        lr = chosen[group_key(cell.labels)].lr
        if lr != cell.config.train.lr:
            cell = cell.with_config(_with_rate(cell.given, lr), runs, cache)
        with_rates.append(replace(cell, remarks=()))  # the trials have the same remarks
    return with_rates


def _trials(members: Sequence[Cell], rates: Sequence[float], runs: Path, cache: DataCache) -> tuple[Cell, ...]:
    """Return trials of these cells at these rates; remarks are those of the first trial, as all have the same."""
    trials = [_trial(cell, rate, members[0].seed, runs, cache) for rate in rates for cell in members]
    return (trials[0], *(replace(trial, remarks=()) for trial in trials[1:]))


def _beyond(
    cells: Sequence[Cell], known: Sequence[Cell], below: bool, above: bool, runs: Path, cache: DataCache
) -> list[Cell]:
    """Return a group's trials at the rates beyond the ends of its grid: those that are known, or else new ones.

    Args:
        cells: the group's trials so far.
        known: all trials planned before.
        below, above: at which ends.
        runs, cache: as in `Rates.of`.
    """
    rates = _rates_of(cells)
    wanted = []
    if below:
        wanted.append(_round_rate(rates[0] / STEP))
    if above:
        wanted.append(_round_rate(rates[-1] * STEP))
    first = cells[: len(_seeds_of(cells))]
    found = []
    for rate in wanted:
        planned = [cell for cell in known if cell.config.train.lr == rate]
        if not planned:  # the trials' own settings, at another rate
            planned = [replace(_at_rate(cell, rate, runs, cache), remarks=()) for cell in first]
        found += planned
    return found


def _round_rate(rate: float) -> float:
    """Round a rate, so that 0.3 x 0.003 is the same run as 0.0009."""
    return float(f"{rate:.6g}")


def _at_rate(trial: Cell, rate: float, runs: Path, cache: DataCache) -> Cell:
    """Return a trial at another rate."""
    return trial.with_config(_with_rate(trial.given, rate), runs, cache, settings=f"lr={rate:g}")


def _trial(cell: Cell, rate: float, dev_seed: int, runs: Path, cache: DataCache) -> Cell:
    """Return a cell at another rate, scored on generated queries of the same world, or else on a part of train.

    Args:
        cell: of the comparison.
        rate: the trial's.
        dev_seed: which part of train that is, unless the configuration says so: one for all seeds.
        runs, cache: as in `Rates.of`.
    """
    rate = _round_rate(rate)
    chosen = cell.config.eval
    closed: dict[str, Any] = {"reported": False, "select": "dev" if chosen.select == "val" else chosen.select}
    closed |= generated_dev(cell.config)
    if "dev" not in closed:
        if cell.given.eval.dev_seed is None:
            closed["dev_seed"] = dev_seed
        if chosen.reported:
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


@lru_cache(maxsize=1024)  # planning, each look and the answer ask for the same trials
def _read(runs: tuple[RunFolder, ...], metric: str) -> Values:
    """Return the per-query values of finished trials, one for each seed."""
    return values_of(runs, [metric])[metric]
