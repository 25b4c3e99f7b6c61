"""How far a strategy's chosen learning rate and temperature may be below its best ones: what the trials leave open.

A verdict is about strategies at their best settings. The trials that choose one are few, on few queries, so another one
may be better. Its mean under other dev queries and other seeds of the trials is drawn from the same two parts as
the errors of a comparison (`negbench.analysis.statistics`); the shortfall of the chosen setting is then the highest of
the drawn means less that of the chosen one. It is 0 where the trials leave no doubt, and widens the intervals where
they do. docs/statistics.md prints the calibration.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from negbench.analysis.seed_variance import variance_draws
from negbench.analysis.statistics import Design, ValueTable, symmetric_root
from negbench.grid.setting import TrialSetting
from negbench.scoring.values import Values

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SettingChoice:
    """The trials of one strategy on one metric.

    Attributes:
        chosen: the setting of its runs.
        trials: setting -> per-query values of its trials on the dev part; the chosen one is among them.
    """

    chosen: TrialSetting
    trials: Mapping[TrialSetting, Values]


_VARIANCES = 4000  # most draws of the variances over seeds; more errors than that use them again

Choices = Mapping[str, tuple[SettingChoice, ...]]  # of a strategy: one for each table over which its mean is taken


def draw_shortfalls(choices: Choices, draws: int, key: str = "") -> dict[str, Array]:
    """Draw by how much every strategy's mean at its chosen settings is below that at its best ones.

    Args:
        choices: strategy -> its choices; the first ones of all strategies have the same dev queries and seeds, and so
            have the second ones, and so on. Several are averaged.
        draws: their number R.
        key: seeds the generator, with the values.

    Returns:
        Strategy -> [R] shortfalls, at least 0, in the unit of the values.
    """
    shortfalls = {name: np.zeros(draws) for name in choices}
    for position in range(max((len(parts) for parts in choices.values()), default=0)):
        choices_at_position = {name: parts[position] for name, parts in choices.items() if position < len(parts)}
        for name, shortfall in _draw_together(choices_at_position, draws, f"{key}/rates/{position}").items():
            shortfalls[name] += shortfall / len(choices[name])
    return shortfalls


def _draw_together(choices: Mapping[str, SettingChoice], draws: int, key: str) -> dict[str, Array]:
    """Draw the shortfalls of strategies whose trials have the same dev queries and seeds."""
    values: dict[str, Values] = {}
    columns: dict[str, dict[TrialSetting, int]] = {}
    for name in sorted(choices):
        columns[name] = {}
        for setting in sorted(choices[name].trials):
            columns[name][setting] = len(values)
            values[f"{len(values):06d}"] = choices[name].trials[setting]
    means = _draw_means(values, draws, key)
    shortfalls = {}
    for name, choice in choices.items():
        highest = means[:, list(columns[name].values())].max(axis=1)
        shortfalls[name] = highest - means[:, columns[name][choice.chosen]]
    return shortfalls


def _draw_means(values: Mapping[str, Values], draws: int, key: str) -> Array:
    """[R, K] draws of the means that these trials would have with other queries and seeds.

    With one seed, queries alone.
    """
    first = next(iter(values.values()))
    design = Design(first.strata, first.clusters, first.nested)
    arrays = {name: trial_values.values for name, trial_values in values.items()}
    seeds_of_trials = {name: trial_values.seeds for name, trial_values in values.items()}
    table = ValueTable(arrays, design, seeds_of_trials)
    names = list(table.names)
    seeds = table.common(names)
    generator = table.generator(key)
    noise = table.query_noise(names, seeds)
    covariance = noise.factor @ noise.factor.T
    if len(seeds) > 1:  # variance over seeds includes the runs' own noise on queries, and all of it in nested worlds
        if not noise.crossed:
            covariance = np.zeros_like(covariance)
        covariance = covariance - noise.luck @ noise.luck.T
    means = table.seed_means(names, seeds)
    errors = generator.standard_normal((draws, len(names))) @ symmetric_root(covariance)
    if len(seeds) > 1:
        variances = np.resize(variance_draws(means, min(draws, _VARIANCES), generator), errors.shape)
        errors += generator.standard_normal((draws, len(names))) * np.sqrt(variances / len(seeds))
    return np.asarray(means.mean(axis=1) + errors, dtype=np.float64)
