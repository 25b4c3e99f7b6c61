"""The learning-rate trials of a stored comparison: which runs they are, and their values on a metric."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from negbench.analysis.cell_check import check_run_name
from negbench.analysis.rate_choice import RateChoice
from negbench.errors import RunError, quoted
from negbench.grid.axis import GroupKey, group_key
from negbench.grid.picked_rate import PickedRate
from negbench.scoring.values import KnownQueries, Values, values_of
from negbench.store.runfolder import RunFolder


@dataclass(frozen=True, eq=False)
class StoredTrials:
    """Trials of one group: its rate, and the finished runs of every rate, one for each seed."""

    chosen: float
    runs: Mapping[float, Sequence[RunFolder]]

    def choices(self, metrics: Sequence[str], seen: KnownQueries) -> dict[str, RateChoice]:
        """Read metric -> the choice as these trials show it on that metric.

        A metric that the trials lack, or with a stratum of a single query, is left out.

        Args:
            metrics: names of means over queries.
            seen: as in `values_of`.

        Raises:
            RunError: as `values_of`.
        """
        by_metric: dict[str, dict[float, Values]] = {}
        for rate, folders in self.runs.items():
            for metric, values in values_of(folders, metrics, seen).items():
                by_metric.setdefault(metric, {})[rate] = values
        choices = {}
        for metric, trials in by_metric.items():
            if len(trials) == len(self.runs) and all(_can_be_drawn(values) for values in trials.values()):
                choices[metric] = RateChoice(self.chosen, trials)
        return choices


def _can_be_drawn(values: Values) -> bool:
    if values.strata is None:
        return bool(values.values.shape[1] > 1)
    return int(np.unique(values.strata, return_counts=True)[1].min()) > 1


def picked_rates(document: Mapping[str, Any]) -> list[PickedRate]:
    """Return the rates of comparison.json, of this version or an older one; none if no rate was chosen."""
    return [PickedRate.read(row) for row in document.get("rates") or ()]


def trial_runs(document: Mapping[str, Any]) -> list[str]:
    """Return the runs of all trials that comparison.json names, each once."""
    return list(dict.fromkeys(run for picked in picked_rates(document) for _, runs in picked.runs for run in runs))


def read_trials(runs: Path, document: Mapping[str, Any]) -> dict[GroupKey, StoredTrials]:
    """Return the trials of each group that chose its own rate, if all of them are in the runs folder.

    Args:
        runs: runs folder.
        document: comparison.json.

    Raises:
        RunError: it names a run as a trial that is another one.
    """
    trials = {}
    for picked in picked_rates(document):
        for _, names in picked.runs:
            for run in names:
                check_run_name(runs, run)
        folders = {rate: [RunFolder(runs / run) for run in names] for rate, names in picked.runs}
        complete = picked.lr in folders and all(_finished(each) for each in folders.values())
        if complete and not picked.common:
            _check(picked, folders)
            trials[group_key(picked.labels)] = StoredTrials(picked.lr, folders)
    return trials


def _finished(folders: Iterable[RunFolder]) -> bool:
    return all(folder.status == "finished" for folder in folders)


def _check(picked: PickedRate, folders: Mapping[float, Sequence[RunFolder]]) -> None:
    """Raise RunError unless these runs are trials of this group, one for each seed."""
    strategy = re.split(r"[( ]", picked.labels["strategy"])[0]
    for rate, runs in folders.items():
        configs = [folder.config for folder in runs]
        same = all(
            config.strategy.name == strategy and config.train.lr == rate and not config.eval.reported
            for config in configs
        )
        if not same or [config.seed for config in configs] != list(picked.seeds):
            names = ", ".join(folder.run_id for folder in runs)
            raise RunError(
                f"comparison.json names {names} as trials of {quoted(strategy)} at the rate {rate:g}, which are other "
                "runs: rerun the command that made the comparison"
            )
