"""Choose each group's learning rate, its temperature, or both on queries that are not reported.

A rate or a temperature that suits one strategy or loss may handicap another. Unless `--lr` says otherwise, every group
gets the rate with the highest mean over the comparison's first seeds, in a grid around the configured one; with
`--temperature grid` the pair of rate and temperature, of all pairs. All groups of a table have the same grid and
equally many seeds: where the best setting of one has the lowest or highest rate or fixed temperature tried, all try the
next. No setting is preferred: a rule that leans to one of them decides for the strategies that it suits. The trials are
ordinary runs in a comparison of their own, found again by their hashes; the choice depends only on the finished ones.
What it leaves open is a part of the verdicts (`negbench.analysis.setting_choice`).

`SettingTrials.of` plans the trials. Whenever those planned are computed, `extend` adds what they ask for, until nothing
is added. Then `choose` picks a setting for each group, and `apply` gives it to the comparison's cells.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from negbench.data.scene import DataCache
from negbench.errors import UnknownNameError
from negbench.grid.axis import AXES, GroupKey, group_key
from negbench.grid.cells import Cell
from negbench.grid.setting import COMMON_SETTING, OWN_SETTING, ChosenSetting, Temperature, TrialSetting, best_setting
from negbench.machine.grouping import group_by
from negbench.metrics.fixed import DEV_QUERIES
from negbench.metrics.names import find_metric
from negbench.plugins.registry import registry
from negbench.scoring.values import Values, values_of
from negbench.settings.config import LEARNED, ResolvedConfig, RunConfig
from negbench.store.runfolder import RunFolder, best_of

FACTORS = (1.0, 0.3, 3.0)  # multiples of the configured rate
TEMPERATURES: tuple[Temperature, ...] = (LEARNED, 0.07, 0.1, 0.15, 0.3)  # beside the configured one
MORE = 2  # how often the grid is extended, at one end or at both
TRIAL_SEEDS = 3  # the first ones of the comparison, or all if it has fewer
DEV_FRACTION = 0.2  # of train, or more if configured: a tenth would rank trials by chance
_LARGEST_DEV_FRACTION = 0.3  # that `DEV_QUERIES` may take: trials on much smaller data would prefer other rates


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
        rates = [configured.lr]
        if self.rates:
            rates = [_round_value(configured.lr * factor) for factor in FACTORS]
        temperatures = [configured.temperature]
        if self.temperatures:
            temperatures += [value for value in TEMPERATURES if value != configured.temperature]
        return [TrialSetting(rate, temperature) for rate, temperature in product(rates, temperatures)]

    def most(self, first: Collection[TrialSetting]) -> int:
        """Return how many settings a group that tries these first may try in all, with every extension."""
        rates = len({setting.lr for setting in first})
        temperatures = len({setting.temperature for setting in first})
        if self.rates:
            rates += 2 * MORE
        if self.temperatures:
            temperatures += 2 * MORE
        return rates * temperatures


@dataclass(frozen=True)
class GroupTrials:
    """The trials of one group.

    Attributes:
        first: settings that it tries whatever comes out, the configured one foremost.
        by_setting: setting -> its trials, one for each seed; those of `first`, then the further ones. Their label
            `settings` names the setting.
    """

    first: tuple[TrialSetting, ...]
    by_setting: Mapping[TrialSetting, tuple[Cell, ...]]

    @property
    def configured(self) -> TrialSetting:
        """The configured setting."""
        return self.first[0]

    @property
    def cells(self) -> list[Cell]:
        """All trials."""
        return [cell for trials in self.by_setting.values() for cell in trials]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of each setting, in the comparison's order."""
        return tuple(cell.seed for cell in self.by_setting[self.configured])

    def without_further(self) -> "GroupTrials":
        """Return the trials of the first settings alone."""
        return replace(self, by_setting={setting: self.by_setting[setting] for setting in self.first})


TrialsByGroup = Mapping[GroupKey, GroupTrials]


@dataclass(frozen=True)
class SettingTrials:
    """Trials of a comparison.

    Args:
        by_group: trials of each group. A group's label `settings` is left out of its key.
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
            by_group[group] = _first_trials(members, grid, runs, cache)
        return cls(by_group, metric, common, grid).extend(runs, cache)

    @property
    def cells(self) -> list[Cell]:
        """All trials."""
        return [cell for trials in self.by_group.values() for cell in trials.cells]

    def further_epochs(self) -> int:
        """Return the epochs of the trials that may still be added to these, at most."""
        epochs = 0
        for trials in self.by_group.values():
            further_settings = self.grid.most(trials.first) - len(trials.by_setting)
            epochs += further_settings * len(trials.seeds) * trials.cells[0].config.train.epochs
        return epochs

    def extend(self, runs: Path, cache: DataCache) -> "SettingTrials":
        """Add the next settings of each table in which the best setting of a group is at an end of the grid.

        Every call begins with the first trials. So the settings that a table tries depend on the finished trials alone,
        not on the order in which they were computed.
        """
        extended: dict[GroupKey, GroupTrials] = {}
        for groups in group_by(self.by_group, _table_of).values():
            extended |= self._extend_table({group: self.by_group[group] for group in groups}, runs, cache)
        return replace(self, by_group={group: extended[group] for group in self.by_group})

    def _extend_table(self, planned: TrialsByGroup, runs: Path, cache: DataCache) -> TrialsByGroup:
        """Return the first trials of a table's groups, and those that the finished ones ask for.

        Args:
            planned: the trials of these groups that were planned before; further ones among them are used again.
            runs, cache: as in `SettingTrials.of`.
        """
        table = {group: trials.without_further() for group, trials in planned.items()}
        for _ in range(MORE):
            rates, temperatures = self._further_values(table, runs)
            if not rates and not temperatures:
                break
            for group, trials in table.items():
                settings = _further_settings(sorted(trials.by_setting), rates, temperatures)
                table[group] = _add_settings(trials, settings, planned[group], runs, cache)
        return table

    def _further_values(self, table: TrialsByGroup, runs: Path) -> tuple[set[float], set[float]]:
        """Return the further rates and the further fixed temperatures that the groups of a table ask for.

        Only groups whose trials are all finished ask.
        """
        rates: set[float] = set()
        temperatures: set[float] = set()
        for trials in table.values():
            chosen = self._choose_for_group(trials, runs)
            if len(chosen.means) == len(chosen.tried):
                rates |= {_round_value(rate) for rate in chosen.further_rates}
                temperatures |= {_round_value(temperature) for temperature in chosen.further_temperatures}
        return rates, temperatures

    def choose(self, runs: Path) -> list[ChosenSetting]:
        """Return each group's setting, chosen from the trials finished so far.

        Where temperatures are chosen, each group has two: the common one of its table, and its own; their label
        `settings` says which.
        """
        chosen_by_group = {group: self._choose_for_group(trials, runs) for group, trials in self.by_group.items()}
        if not (self.common or self.grid.temperatures):
            return list(chosen_by_group.values())
        common = self._common_settings(chosen_by_group)
        if self.common:
            return common
        return [*_with_label(common, COMMON_SETTING), *_with_label(chosen_by_group.values(), OWN_SETTING)]

    def _common_settings(self, chosen_by_group: Mapping[GroupKey, ChosenSetting]) -> list[ChosenSetting]:
        """Return each group's choice with the common setting of its table, table by table."""
        common = []
        for groups in group_by(chosen_by_group, _table_of).values():
            table = [chosen_by_group[group] for group in groups]
            setting = _best_on_average(table, self.by_group[groups[0]].configured)
            common += [replace(chosen, setting=setting, common=True) for chosen in table]
        return common

    def _choose_for_group(self, trials: GroupTrials, runs: Path) -> ChosenSetting:
        """Return a group's setting, chosen from its own trials."""
        first = trials.cells[0]
        metric = _metric_of(first, self.metric)
        settings = sorted(trials.by_setting)
        finished: dict[TrialSetting, tuple[RunFolder, ...]] = {}
        for setting in settings:
            cells = trials.by_setting[setting]
            folders = _finished_runs(cells, runs)
            if len(folders) == len(cells):
                finished[setting] = folders
        values = {setting: _read(folders, metric) for setting, folders in finished.items()}
        means = {setting: values[setting].mean for setting in finished}
        return ChosenSetting(
            labels={axis: label for axis, label in first.labels.items() if axis != "settings"},
            seeds=trials.seeds,
            setting=best_setting(means, trials.configured),
            tried=tuple((setting, means.get(setting)) for setting in settings),
            runs=tuple((setting, tuple(folder.run_id for folder in folders)) for setting, folders in finished.items()),
            queries=max((of_setting.values.shape[1] for of_setting in values.values()), default=0),
            generated=first.config.eval.dev == "generated",
            metric=metric,
        )

    def apply(
        self, cells: Sequence[Cell], chosen_settings: Sequence[ChosenSetting], runs: Path, cache: DataCache
    ) -> list[Cell]:
        """Return the comparison's cells, each at its group's setting."""
        setting_of = {group_key(chosen.labels): chosen.setting for chosen in chosen_settings}
        with_settings = []
        for cell in cells:
            setting = setting_of[group_key(cell.labels)]
            if setting != self.grid.setting(cell.config):
                cell = cell.with_config(setting.apply(cell.config_as_read), runs, cache)
            with_settings.append(replace(cell, remarks=()))  # the trials have the same remarks
        return with_settings


# --- planning trials ---------------------------------------------------------------------------------------------


def _first_trials(members: Sequence[Cell], grid: SettingGrid, runs: Path, cache: DataCache) -> GroupTrials:
    """Plan the trials that a group with these cells needs in any case."""
    by_seed: dict[int, Cell] = {}
    for cell in members:
        by_seed.setdefault(cell.seed, cell)  # of the common and the own setting, one
    cells = list(by_seed.values())[:TRIAL_SEEDS]
    configs = [_trial_config(cell, cells[0].seed, cache) for cell in cells]
    settings = tuple(grid.first(cells[0].config))
    by_setting: dict[TrialSetting, tuple[Cell, ...]] = {}
    for setting in settings:
        trials = [_trial(cell, config, setting, runs, cache) for cell, config in zip(cells, configs, strict=True)]
        if setting == settings[0]:  # all trials have the same remarks: those of the first one are enough
            trials = [trials[0], *_without_remarks(trials[1:])]
        else:
            trials = _without_remarks(trials)
        by_setting[setting] = tuple(trials)
    return GroupTrials(settings, by_setting)


def _further_settings(tried: Sequence[TrialSetting], rates: set[float], temperatures: set[float]) -> list[TrialSetting]:
    """Return the settings that further rates and temperatures add to a grid, so that all pairs are tried."""
    pairs = product(
        [*dict.fromkeys(setting.lr for setting in tried), *sorted(rates)],
        [*dict.fromkeys(setting.temperature for setting in tried), *sorted(temperatures)],
    )
    settings = [TrialSetting(rate, temperature) for rate, temperature in pairs]
    return [setting for setting in settings if setting not in tried]


def _add_settings(
    trials: GroupTrials, settings: Sequence[TrialSetting], planned: GroupTrials, runs: Path, cache: DataCache
) -> GroupTrials:
    """Add a group's trials at further settings: those that were planned before, or else new ones."""
    by_setting = dict(trials.by_setting)
    for setting in settings:
        if setting in planned.by_setting:
            by_setting[setting] = planned.by_setting[setting]
        else:
            configured = trials.by_setting[trials.configured]
            added = [_trial(cell, cell.config_as_read, setting, runs, cache) for cell in configured]
            by_setting[setting] = tuple(_without_remarks(added))
    return replace(trials, by_setting=by_setting)


def _trial(cell: Cell, config: RunConfig, setting: TrialSetting, runs: Path, cache: DataCache) -> Cell:
    """Return the trial of a setting, beside a cell of the group.

    Args:
        cell: another cell of the group with the trial's seed.
        config: the trial's configuration, at any setting.
        setting: the trial's.
        runs, cache: as in `SettingTrials.of`.
    """
    return cell.with_config(setting.apply(config), runs, cache, settings=str(setting))


def _without_remarks(cells: Iterable[Cell]) -> list[Cell]:
    return [replace(cell, remarks=()) for cell in cells]


def _trial_config(cell: Cell, dev_seed: int, cache: DataCache) -> RunConfig:
    """Return a cell's configuration, scored on generated queries of the same world, or else on a part of train.

    Args:
        cell: of the comparison.
        dev_seed: which part of train that is, unless the configuration says so: one for all seeds.
        cache: as in `SettingTrials.of`.
    """
    config = cell.config
    select = "dev" if config.eval.select == "val" else config.eval.select
    changes: dict[str, Any] = {"reported": False, "select": select}
    if select == "last":
        changes["every"] = config.train.epochs  # only the last epoch is compared
    if generates_dev(config):
        changes["dev"] = "generated"
    else:
        if cell.config_as_read.eval.dev_seed is None:
            changes["dev_seed"] = dev_seed
        if config.eval.reported:
            changes["dev_fraction"] = _dev_fraction(config, cache)
    return config.model_copy(update={"eval": config.eval.model_copy(update=changes)})


def generates_dev(config: RunConfig) -> bool:
    """Whether the data set can generate queries for trials (`eval.dev=generated`)."""
    dataset: Any = registry.get("datasets", config.dataset.name)
    return bool(dataset.generates_dev)


def _dev_fraction(config: ResolvedConfig, cache: DataCache) -> float:
    """Return which part of train a trial is scored on: enough for `DEV_QUERIES` queries, within limits."""
    whole_train = config.model_copy(update={"eval": config.eval.model_copy(update={"select": "last"})})
    enough = DEV_QUERIES / len(cache.splits(whole_train).train.queries)
    return max(config.eval.dev_fraction, DEV_FRACTION, min(_LARGEST_DEV_FRACTION, float(f"{enough:.3g}")))


def _round_value(value: float) -> float:
    """Round a rate or temperature, so that 0.3 x 0.003 is the same run as 0.0009."""
    return float(f"{value:.6g}")


# --- reading trials ----------------------------------------------------------------------------------------------


def _group_of(labels: Mapping[str, str]) -> GroupKey:
    """Return the key of the group whose trials a cell shares: its own, whichever setting it will have."""
    return group_key({**labels, "settings": ""})


def _table_of(group: GroupKey) -> tuple[str, ...]:
    """Return what all groups of a table share: the labels of its group without the strategy."""
    return tuple(label for axis, label in zip(AXES, group, strict=True) if axis != "strategy")


def _metric_of(cell: Cell, metric: str | None) -> str:
    """Return the name of the metric by which settings are chosen; of None, the data set's main metric.

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


def _finished_runs(cells: Iterable[Cell], runs: Path) -> tuple[RunFolder, ...]:
    """Return the folders of the finished runs among these cells'."""
    folders = []
    for cell in cells:
        folder = best_of(runs, cell.hash)
        if folder is not None and folder.status == "finished":
            folders.append(folder)
    return tuple(folders)


@lru_cache(maxsize=1024)  # planning, each look and the answer ask for the same trials
def _read(runs: tuple[RunFolder, ...], metric: str) -> Values:
    """Return the per-query values of finished trials, one for each seed."""
    return values_of(runs, [metric])[metric]


def _best_on_average(table: Sequence[ChosenSetting], configured: TrialSetting) -> TrialSetting:
    """Return the setting with the highest mean over a table's groups; the configured one if there is none.

    Groups without a finished trial do not count; the others must all have finished the setting.
    """
    means_by_group = [chosen.means for chosen in table if chosen.means]
    averages = {}
    for setting, _ in table[0].tried:  # all groups of a table try the same settings
        values = [means[setting] for means in means_by_group if setting in means]
        if values and len(values) == len(means_by_group):
            averages[setting] = sum(values) / len(values)
    return best_setting(averages, configured)


def _with_label(chosen_settings: Iterable[ChosenSetting], settings: str) -> list[ChosenSetting]:
    """Return these settings with a label `settings`."""
    return [replace(chosen, labels={**chosen.labels, "settings": settings}) for chosen in chosen_settings]
