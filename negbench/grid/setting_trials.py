"""Choose each row's learning rate, its temperature, or both on queries that are not reported.

A rate or a temperature that suits one strategy or loss may handicap another. Unless `--lr` says otherwise, every group
gets the rate with the highest mean over the comparison's first seeds, in a grid around the configured one; with
`--temperature grid` the pair of rate and temperature, of all pairs. All groups of a table have the same grid and
equally many seeds: where the best setting of one has the lowest or highest rate or fixed temperature tried, all try the
next. No setting is preferred: a rule that leans to one of them decides for the strategies that it suits. The trials are
ordinary runs in a comparison of their own, found again by their hashes; the choice depends only on the finished ones.
What it leaves open is a part of the verdicts (`negbench.analysis.setting_choice`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from negbench.data.scene import DataCache
from negbench.errors import UnknownNameError
from negbench.grid.axis import AXES, GroupKey, group_key
from negbench.grid.cells import Cell
from negbench.grid.setting import COMMON, OWN, ChosenSetting, Temperature, TrialSetting, best_setting
from negbench.machine.grouping import group_by
from negbench.metrics.fixed import DEV_QUERIES
from negbench.metrics.names import find_metric
from negbench.plugins.registry import registry
from negbench.scoring.values import Values, values_of
from negbench.settings.config import LEARNED, RunConfig
from negbench.store.runfolder import RunFolder, best_of

FACTORS = (1.0, 0.3, 3.0)  # multiples of the configured rate
TEMPERATURES: tuple[Temperature, ...] = (LEARNED, 0.07, 0.1, 0.15, 0.3)  # beside the configured one
MORE = 2  # how often the grid is extended, at one end or at both
TRIAL_SEEDS = 3  # the first ones of the comparison, or all if it has fewer
DEV_FRACTION = 0.2  # of train, or more if configured: a tenth would rank trials by chance
_MOST = 0.3  # of train that `DEV_QUERIES` may take: trials on much smaller data would prefer other rates

TrialsByGroup = Mapping[GroupKey, tuple[Cell, ...]]


@dataclass(frozen=True)
class SettingGrid:
    """What trials choose.

    Attributes:
        rates: whether learning rates; else all have the configured one.
        temperatures: whether temperatures, too.
    """

    rates: bool = True
    temperatures: bool = False

    @property
    def words(self) -> str:
        """'the learning rate and the temperature'."""
        names = []
        if self.rates:
            names.append("the learning rate")
        if self.temperatures:
            names.append("the temperature")
        return " and ".join(names)

    def setting(self, config: RunConfig) -> TrialSetting:
        """Return the setting of a resolved configuration."""
        return TrialSetting.of(config, temperature=self.temperatures)

    def first(self, config: RunConfig) -> list[TrialSetting]:
        """Return the settings that a group of this resolved configuration tries first, the configured one foremost."""
        configured = self.setting(config)
        rates = [_round_value(configured.lr * factor) for factor in FACTORS] if self.rates else [configured.lr]
        temperatures: list[Temperature | None] = [configured.temperature]
        if self.temperatures:
            temperatures += [value for value in TEMPERATURES if value != configured.temperature]
        return [TrialSetting(rate, temperature) for rate, temperature in product(rates, temperatures)]

    def most(self, config: RunConfig) -> int:
        """Return how many settings a group may try in all, with every extension."""
        first = self.first(config)
        rates = len({setting.lr for setting in first})
        temperatures = len({setting.temperature for setting in first})
        if self.rates:
            rates += 2 * MORE
        if self.temperatures:
            temperatures += 2 * MORE
        return rates * temperatures


@dataclass(frozen=True)
class SettingTrials:
    """Trials of a comparison.

    Args:
        by_group: trials of each group, those of the configured setting first; each setting has one for each seed, and
            their label `settings` names it. A group's label `settings` is left out of its key.
        metric: by which settings are chosen, as `find_metric` takes it; None: the data set's main metric.
        common: whether all groups of a table get one setting: the one with the highest mean over them.
        grid: what is chosen.
    """

    by_group: TrialsByGroup
    metric: str | None = None
    common: bool = False
    grid: SettingGrid = SettingGrid()

    @classmethod
    def of(
        cls,
        cells: Sequence[Cell],
        runs: Path,
        cache: DataCache,
        metric: str | None = None,
        *,
        common: bool = False,
        grid: SettingGrid = SettingGrid(),
    ) -> "SettingTrials":
        """Plan each group's trials from its first cells, with those that finished ones ask for."""
        by_group = {}
        for group, members in group_by(cells, lambda cell: _group_of(cell.labels)).items():
            by_seed = {cell.seed: cell for cell in reversed(members)}  # of the common and the own setting, one
            first = [by_seed[seed] for seed in _seeds_of(members)][:TRIAL_SEEDS]
            by_group[group] = _trials(first, grid.first(first[0].config), runs, cache)
        return cls(by_group, metric, common, grid).extend(runs, cache)

    def extend(self, runs: Path, cache: DataCache) -> "SettingTrials":
        """Add the next settings of each table in which the best setting of a group is at an end of the grid.

        Only groups whose trials are all finished ask for more. Which settings a table tries depends on the finished
        trials alone, not on the order in which they were computed.
        """
        extended: dict[GroupKey, tuple[Cell, ...]] = {}
        for groups in group_by(self.by_group, _table_of).values():
            tried = {group: self._first_trials(self.by_group[group]) for group in groups}
            for _ in range(MORE):
                rates, temperatures = self._wanted_values(tried, runs)
                if not (rates or temperatures):
                    break
                for group, cells in tried.items():
                    wanted = _added_settings(self._settings_of(cells), rates, temperatures)
                    tried[group] = (*cells, *self._further_trials(cells, self.by_group[group], wanted, runs, cache))
            extended |= tried
        return replace(self, by_group={group: extended[group] for group in self.by_group})

    def _first_trials(self, cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
        """Return a group's trials without those of further settings, which stand behind them."""
        settings = self.grid.first(cells[0].config)
        return cells[: len(settings) * len(_seeds_of(cells))]

    def _wanted_values(self, trials: TrialsByGroup, runs: Path) -> tuple[set[float], set[float]]:
        """Return the further rates and the further fixed temperatures that the groups of a table ask for."""
        rates: set[float] = set()
        temperatures: set[float] = set()
        for cells in trials.values():
            picked = self._pick(cells, runs)
            if len(picked.known) == len(picked.tried):
                rates |= {_round_value(rate) for rate in picked.further_rates}
                temperatures |= {_round_value(temperature) for temperature in picked.further_temperatures}
        return rates, temperatures

    def _further_trials(
        self,
        cells: Sequence[Cell],
        earlier: Sequence[Cell],
        wanted: Sequence[TrialSetting],
        runs: Path,
        cache: DataCache,
    ) -> list[Cell]:
        """Return a group's trials at further settings: those that were planned earlier, or else new ones.

        Args:
            cells: the group's trials so far.
            earlier: all trials planned before.
            wanted: the further settings.
            runs, cache: as in `SettingTrials.of`.
        """
        first = cells[: len(_seeds_of(cells))]
        further = []
        for setting in wanted:
            trials = [cell for cell in earlier if self.grid.setting(cell.config) == setting]
            if not trials:  # the trials' own options, at another setting
                trials = [replace(_at(cell, setting, runs, cache), remarks=()) for cell in first]
            further += trials
        return further

    @property
    def cells(self) -> list[Cell]:
        """All trials."""
        return [cell for trials in self.by_group.values() for cell in trials]

    def further_epochs(self) -> int:
        """Return the epochs of the trials that may still be added to these, at most."""
        epochs = 0
        for cells in self.by_group.values():
            further = self.grid.most(cells[0].config) - len(self._settings_of(cells))
            epochs += further * len(_seeds_of(cells)) * cells[0].config.train.epochs
        return epochs

    def choose(self, runs: Path) -> list[ChosenSetting]:
        """Return each group's setting, chosen from the trials finished so far.

        Where temperatures are chosen, each group has two: the common one of its table, and its own; their label
        `settings` says which.
        """
        best = {group: self._pick(cells, runs) for group, cells in self.by_group.items()}
        if not (self.common or self.grid.temperatures):
            return list(best.values())
        common = {}
        for groups in group_by(self.by_group, _table_of).values():
            index = _best_on_average([best[group] for group in groups], self._setting_of(groups[0]))
            for group in groups:
                picked = best[group]
                setting = self._setting_of(group) if index is None else picked.tried[index][0]
                common[group] = replace(picked, setting=setting, common=True)
        if self.common:
            return list(common.values())
        return [*_with_label(common.values(), COMMON), *_with_label(best.values(), OWN)]

    def apply(self, cells: Sequence[Cell], best: Sequence[ChosenSetting], runs: Path, cache: DataCache) -> list[Cell]:
        """Return the comparison's cells, each at its group's setting."""
        setting_of = {group_key(picked.labels): picked.setting for picked in best}
        with_settings = []
        for cell in cells:
            setting = setting_of[group_key(cell.labels)]
            if setting != self.grid.setting(cell.config):
                cell = cell.with_config(setting.apply(cell.given), runs, cache)
            with_settings.append(replace(cell, remarks=()))  # the trials have the same remarks
        return with_settings

    def _setting_of(self, group: GroupKey) -> TrialSetting:
        """Return the setting that a group's configuration names."""
        return self.grid.setting(self.by_group[group][0].config)

    def _settings_of(self, cells: Sequence[Cell]) -> list[TrialSetting]:
        """Return the settings of a group's trials, lowest first."""
        return sorted({self.grid.setting(cell.config) for cell in cells})

    def _pick(self, cells: Sequence[Cell], runs: Path) -> ChosenSetting:
        """Return a group's setting, chosen from its own trials."""
        first = cells[0]
        metric = _metric_of(first, self.metric)
        finished: dict[TrialSetting, tuple[RunFolder, ...]] = {}
        for setting in self._settings_of(cells):
            of_setting = [cell for cell in cells if self.grid.setting(cell.config) == setting]
            stored = [best_of(runs, cell.hash) for cell in of_setting]
            folders = tuple(folder for folder in stored if folder is not None and folder.status == "finished")
            if len(folders) == len(of_setting):
                finished[setting] = folders
        values = {setting: _read(folders, metric) for setting, folders in finished.items()}
        means = {setting: of_setting.mean for setting, of_setting in values.items()}
        return ChosenSetting(
            labels={axis: label for axis, label in first.labels.items() if axis != "settings"},
            seeds=tuple(_seeds_of(cells)),
            setting=best_setting(means, self.grid.setting(first.config)),
            tried=tuple((setting, means.get(setting)) for setting in self._settings_of(cells)),
            runs=tuple((setting, tuple(folder.run_id for folder in folders)) for setting, folders in finished.items()),
            queries=max((of_setting.values.shape[1] for of_setting in values.values()), default=0),
            generated=first.config.eval.dev == "generated",
            metric=metric,
        )


def _with_label(picked: Iterable[ChosenSetting], settings: str) -> list[ChosenSetting]:
    """Return these with a label `settings`."""
    return [replace(group, labels={**group.labels, "settings": settings}) for group in picked]


def _added_settings(tried: Sequence[TrialSetting], rates: set[float], temperatures: set[float]) -> list[TrialSetting]:
    """Return the settings that further rates and temperatures add to a grid, so that all pairs are tried."""
    pairs = product(
        [*dict.fromkeys(setting.lr for setting in tried), *sorted(rates)],
        [*dict.fromkeys(setting.temperature for setting in tried), *sorted(temperatures)],
    )
    settings = [TrialSetting(rate, temperature) for rate, temperature in pairs]
    return [setting for setting in settings if setting not in tried]


def _best_on_average(groups: Sequence[ChosenSetting], configured: TrialSetting) -> int | None:
    """Return the index in `tried` of the setting with the highest mean over a table's groups; None if there is none.

    Groups without a finished trial do not count; the others must all have finished the setting.
    """
    rows = [picked for picked in groups if picked.known]
    if not rows:
        return None
    means = {}
    for number, (setting, _) in enumerate(rows[0].tried):
        values = [picked.tried[number][1] for picked in rows]
        finished = [value for value in values if value is not None]
        if len(finished) == len(rows):
            means[setting] = sum(finished) / len(finished)
    if not means:
        return None
    return [setting for setting, _ in rows[0].tried].index(best_setting(means, configured))


def _group_of(labels: Mapping[str, str]) -> GroupKey:
    """Return the key of the group whose trials a cell shares: its own, whichever setting it will have."""
    return group_key({**labels, "settings": ""})


def _table_of(group: GroupKey) -> tuple[str, ...]:
    """Return what all groups of a table share: the labels of its group without the strategy."""
    return tuple(label for axis, label in zip(AXES, group, strict=True) if axis != "strategy")


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
    named = find_metric(metric, list(card.metrics))
    if named is None:
        raise UnknownNameError("--metric", metric, list(card.metrics))
    return named


def _trials(
    members: Sequence[Cell], settings: Sequence[TrialSetting], runs: Path, cache: DataCache
) -> tuple[Cell, ...]:
    """Return trials of these cells at these settings; remarks are those of the first trial, as all have the same."""
    trials = [_trial(cell, setting, members[0].seed, runs, cache) for setting in settings for cell in members]
    return (trials[0], *(replace(trial, remarks=()) for trial in trials[1:]))


def _round_value(value: float) -> float:
    """Round a rate or temperature, so that 0.3 x 0.003 is the same run as 0.0009."""
    return float(f"{value:.6g}")


def _at(trial: Cell, setting: TrialSetting, runs: Path, cache: DataCache) -> Cell:
    """Return a trial at another setting."""
    return trial.with_config(setting.apply(trial.given), runs, cache, settings=str(setting))


def _trial(cell: Cell, setting: TrialSetting, dev_seed: int, runs: Path, cache: DataCache) -> Cell:
    """Return a cell at another setting, scored on generated queries of the same world, or else on a part of train.

    Args:
        cell: of the comparison.
        setting: the trial's.
        dev_seed: which part of train that is, unless the configuration says so: one for all seeds.
        runs, cache: as in `SettingTrials.of`.
    """
    own_eval = cell.config.eval
    changes: dict[str, Any] = {"reported": False, "select": "dev" if own_eval.select == "val" else own_eval.select}
    changes |= generated_dev(cell.config)
    if "dev" not in changes:
        if cell.given.eval.dev_seed is None:
            changes["dev_seed"] = dev_seed
        if own_eval.reported:
            plain = cell.config.model_copy(update={"eval": own_eval.model_copy(update={"select": "last"})})
            enough = DEV_QUERIES / len(cache.splits(plain).train.queries)
            changes["dev_fraction"] = max(own_eval.dev_fraction, DEV_FRACTION, min(_MOST, float(f"{enough:.3g}")))
    if changes["select"] == "last":
        changes["every"] = cell.config.train.epochs  # only the last epoch is compared
    config = setting.apply(cell.config).model_copy(update={"eval": own_eval.model_copy(update=changes)})
    return cell.with_config(config, runs, cache, settings=str(setting))


def generated_dev(config: RunConfig) -> dict[str, str]:
    """Return the options of `eval` that score a trial on generated queries; none if its data set generates none."""
    data: Any = registry.get("datasets", config.dataset.name)
    return {"dev": "generated"} if data.generates_dev else {}


@lru_cache(maxsize=1024)  # planning, each look and the answer ask for the same trials
def _read(runs: tuple[RunFolder, ...], metric: str) -> Values:
    """Return the per-query values of finished trials, one for each seed."""
    return values_of(runs, [metric])[metric]
