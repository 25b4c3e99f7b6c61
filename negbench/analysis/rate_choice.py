"""How far a strategy's chosen learning rate may be below its best one: what the trials leave open.

A verdict is about strategies at their best rates. The trials that choose a rate are few, on few queries, so another one
may be better. Its mean under other dev queries and other seeds of the trials is drawn from the same two parts as
the errors of a comparison (`negbench.analysis.statistics`); the shortfall of the chosen rate is then the highest of the
drawn means less that of the chosen rate. It is 0 where the trials leave no doubt, and widens the intervals where they
do. docs/statistics.md prints the calibration.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from negbench.analysis.seed_variance import variance_draws
from negbench.analysis.statistics import Design, ValueTable, symmetric_root
from negbench.scoring.values import Values

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RateChoice:
    """The learning-rate trials of one strategy on one metric.

    Attributes:
        chosen: the rate of its runs.
        trials: rate -> per-query values of its trials on the dev part; the chosen rate is one of them.
    """

    chosen: float
    trials: Mapping[float, Values]


_VARIANCES = 4000  # most draws of the variances over seeds; more errors than that use them again

Choices = Mapping[str, tuple[RateChoice, ...]]  # of a strategy: one for each table over which its mean is taken


def draw_shortfalls(choices: Choices, draws: int, key: str = "") -> dict[str, Array]:
    """Draw by how much every strategy's mean at its chosen rates is below that at its best ones.

    Args:
        choices: strategy -> its choices; the first ones of all strategies have the same dev queries and seeds, and so
            have the second ones, and so on. Several are averaged.
        draws: their number R.
        key: seeds the generator, with the values.

    Returns:
        Strategy -> [R] shortfalls, at least 0, in the unit of the values.
    """
    shortfalls = {name: np.zeros(draws) for name in choices}
    for place in range(max((len(parts) for parts in choices.values()), default=0)):
        here = {name: parts[place] for name, parts in choices.items() if place < len(parts)}
        for name, drawn in _draw_together(here, draws, f"{key}/rates/{place}").items():
            shortfalls[name] += drawn / len(choices[name])
    return shortfalls


def _draw_together(choices: Mapping[str, RateChoice], draws: int, key: str) -> dict[str, Array]:
    """Draw the shortfalls of strategies whose trials have the same dev queries and seeds."""
    values: dict[str, Values] = {}
    columns: dict[str, dict[float, int]] = {}
    for name in sorted(choices):
        columns[name] = {}
        for rate in sorted(choices[name].trials):
            columns[name][rate] = len(values)
            values[f"{len(values):06d}"] = choices[name].trials[rate]
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
    seeds_of = {name: each.seeds for name, each in values.items()}
    table = ValueTable({name: each.values for name, each in values.items()}, design, seeds_of)
    names = list(table.names)
    seeds = table.common(names)
    generator = table.generator(key)
    noise = table.query_noise(names, seeds)
    covariance = noise.factor @ noise.factor.T
    if len(seeds) > 1:  # variance over seeds includes the runs' own noise on queries, and all of it in nested worlds
        covariance = noise.share * covariance - noise.luck @ noise.luck.T
    means = table.seed_means(names, seeds)
    errors = generator.standard_normal((draws, len(names))) @ symmetric_root(covariance)
    if len(seeds) > 1:
        variances = np.resize(variance_draws(means, min(draws, _VARIANCES), generator), errors.shape)
        errors += generator.standard_normal((draws, len(names))) * np.sqrt(variances / len(seeds))
    return np.asarray(means.mean(axis=1) + errors, dtype=np.float64)
