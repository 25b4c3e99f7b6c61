"""The trials of a stored comparison that chose settings: which runs they are, and their values on a metric."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from negbench.analysis.cell_check import check_run_name
from negbench.analysis.setting_choice import SettingChoice
from negbench.errors import RunError, short_repr
from negbench.grid.axis import GroupKey, group_key
from negbench.grid.setting import ChosenSetting, TrialSetting
from negbench.scoring.values import KnownQueries, Values, values_of
from negbench.store.runfolder import RunFolder


@dataclass(frozen=True, eq=False)
class StoredTrials:
    """Trials of one group: its setting, and the finished runs of every setting, one for each seed."""

    chosen: TrialSetting
    runs: Mapping[TrialSetting, Sequence[RunFolder]]

    def choices(self, metrics: Sequence[str], queries: KnownQueries) -> dict[str, SettingChoice]:
        """Read metric -> the choice as these trials show it on that metric.

        A metric that the trials lack, or with a stratum of a single query, is left out.

        Args:
            metrics: names of means over queries.
            queries: as in `values_of`.

        Raises:
            RunError: as `values_of`.
        """
        by_metric: dict[str, dict[TrialSetting, Values]] = {}
        for setting, folders in self.runs.items():
            for metric, values in values_of(folders, metrics, queries).items():
                by_metric.setdefault(metric, {})[setting] = values
        choices = {}
        for metric, trials in by_metric.items():
            if len(trials) == len(self.runs) and all(_can_be_drawn(values) for values in trials.values()):
                choices[metric] = SettingChoice(self.chosen, trials)
        return choices


def _can_be_drawn(values: Values) -> bool:
    """Whether every stratum has more than one query."""
    if values.strata is None:
        _, queries = values.values.shape
        return bool(queries > 1)
    _, counts = np.unique(values.strata, return_counts=True)
    return int(counts.min()) > 1


def read_chosen_settings(document: Mapping[str, Any]) -> list[ChosenSetting]:
    """Return the settings of comparison.json, of this version or an older one; none if none was chosen."""
    return [ChosenSetting.read(row) for row in document.get("rates") or ()]


def trial_runs(document: Mapping[str, Any]) -> list[str]:
    """Return the runs of all trials that comparison.json names, each once."""
    names: dict[str, None] = {}
    for chosen in read_chosen_settings(document):
        for _, runs in chosen.runs:
            names |= dict.fromkeys(runs)
    return list(names)


def read_trials(runs: Path, document: Mapping[str, Any]) -> dict[GroupKey, StoredTrials]:
    """Return the trials of each group that chose its own setting, if all of them are in the runs folder.

    Args:
        runs: runs folder.
        document: comparison.json.

    Raises:
        RunError: it names a run as a trial that is another one.
    """
    trials = {}
    for chosen in read_chosen_settings(document):
        folders: dict[TrialSetting, list[RunFolder]] = {}
        are_finished = True
        for setting, names in chosen.runs:
            for run in names:
                check_run_name(runs, run)
            folders[setting] = [RunFolder(runs / run) for run in names]
            are_finished = are_finished and _all_finished(folders[setting])
        if are_finished and chosen.setting in folders and not chosen.common:
            _check(chosen, folders)
            trials[group_key(chosen.labels)] = StoredTrials(chosen.setting, folders)
    return trials


def _all_finished(folders: Iterable[RunFolder]) -> bool:
    return all(folder.status == "finished" for folder in folders)


def _check(chosen: ChosenSetting, folders: Mapping[TrialSetting, Sequence[RunFolder]]) -> None:
    """Raise RunError unless these runs are trials of this group, one for each seed."""
    strategy = re.split(r"[( ]", chosen.labels["strategy"])[0]
    temperature = chosen.setting.temperature is not None
    for setting, runs in folders.items():
        configs = [folder.config for folder in runs]
        is_trial = [config.seed for config in configs] == list(chosen.seeds)
        for config in configs:
            if config.strategy.name != strategy or config.eval.reported:
                is_trial = False
            if TrialSetting.of(config, temperature=temperature) != setting:
                is_trial = False
        if not is_trial:
            names = ", ".join(folder.run_id for folder in runs)
            raise RunError(
                f"comparison.json names {names} as trials of {short_repr(strategy)} at the rate {setting.words()}, "
                "which are other runs: rerun the command that made the comparison"
            )
