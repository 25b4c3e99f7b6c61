"""The only door from a comparison to `negbench.statistics`: per-query values in, differences with intervals out.

Whoever changes how intervals are computed changes this file and what lies below it. Everything above reads
`Differences`: means, differences to a baseline, and all pairs, each family with simultaneous intervals. The generator
is seeded by the values themselves, so the same cells give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from negbench import statistics
from negbench.scoring.stored import Values

_EFFECTS = (0.01, 0.02)  # true differences at which the power is simulated
_WORK = 2_000_000  # simulations times queries of a calibration: a second or two on a slow core


@dataclass(frozen=True)
class Differences:
    """What the statistics say of strategies that share a test, in the unit of their values.

    Attributes:
        means: strategy -> its mean with an interval for it alone.
        against: strategy -> its difference to the baseline; these intervals hold all at once. Without the baseline, and
            without strategies that share no seed with it.
        pairs: all pairs on the seeds that every strategy has, their intervals hold all at once; None where there is no
            such seed.
    """

    means: Mapping[str, statistics.Summary]
    against: Mapping[str, statistics.Comparison]
    pairs: statistics.Pairs | None

    @property
    def best(self) -> str:
        """The strategy with the highest mean."""
        return max(self.means, key=lambda name: self.means[name].mean)


def differences(
    values: Mapping[str, Values], baseline: str | None, *, margin: float = 0.005, alpha: float = 0.05, key: str = ""
) -> Differences:
    """From the per-query values of some strategies to their differences with simultaneous intervals.

    Args:
        values: strategy -> values [S, Q], its seeds, and the strata of the queries; the same Q queries for all.
        baseline: the strategy that the others are compared with; None: none.
        margin: differences inside plus or minus this do not matter, in the unit of the values.
        alpha: level; intervals have the level 1 - alpha.
        key: what else seeds the generator, so that two tables of the same values need not share their draws.

    Raises:
        ValueError: a stratum with a single query.
    """
    generator = seeded(values, key)
    strata = next(iter(values.values())).strata
    means = statistics.summarise_table(
        {name: mine.values for name, mine in values.items()}, generator=generator, strata=strata, level=1 - alpha
    )
    against: dict[str, statistics.Comparison] = {}
    if baseline is not None:
        base = set(values[baseline].seeds)
        pairable = {name: mine for name, mine in values.items() if set(mine.seeds) & base}
        found = statistics.compare_table(
            {name: mine.values for name, mine in pairable.items()},
            baseline,
            generator=generator,
            strata=strata,
            seeds={name: mine.seeds for name, mine in pairable.items()},
            margin=margin,
            alpha=alpha,
        )
        against = {comparison.name: comparison for comparison in found}
    shared = on_shared_seeds(values)
    if not shared:
        return Differences(means, against, None)
    table = {name: mine.values for name, mine in shared.items()}
    return Differences(means, against, statistics.pairs(table, generator=generator, strata=strata, alpha=alpha))


def on_shared_seeds(values: Mapping[str, Values]) -> dict[str, Values]:
    """The rows of the seeds that all have, in the order of the seeds; empty where there is none."""
    common = sorted(set.intersection(*(set(mine.seeds) for mine in values.values())))
    if not common:
        return {}
    return {
        name: replace(mine, values=mine.values[[mine.seeds.index(seed) for seed in common]], seeds=tuple(common))
        for name, mine in values.items()
    }


def factorial(corners: Mapping[frozenset[str], Values], *, alpha: float) -> statistics.Factorial:
    """What factors contribute to the difference between all of them and none; corners with the same seeds and queries.

    Args:
        corners: set of the factors that are on -> values.
        alpha: level; the intervals of all parts hold at once.
    """
    named = {" + ".join(sorted(factors)): mine for factors, mine in corners.items()}
    return statistics.factorial(
        {factors: mine.values for factors, mine in corners.items()},
        generator=seeded(named, "factorial"),
        strata=next(iter(corners.values())).strata,
        alpha=alpha,
    )


def seeded(values: Mapping[str, Values], key: str) -> np.random.Generator:
    """A generator seeded by everything that is tested."""
    digest = hashlib.sha256(key.encode())
    for name, mine in values.items():
        digest.update(f"{name} {mine.seeds}".encode())
        digest.update(np.ascontiguousarray(mine.values).tobytes())
    return np.random.default_rng(int.from_bytes(digest.digest()[:8], "big"))


# --- calibration -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibrated:
    """False-positive rate and power of one comparison of a table's design, by simulation.

    Attributes:
        dataset, metric: of the table.
        source: "the baseline's own runs" or "a model of hits and misses".
        seeds, queries: of the simulated design; with a baseline's own runs as the source, half of its seeds a side.
        alpha: level asked for.
        rejection: share of comparisons without a difference that were found different.
        sd: of that share if its true value were alpha.
        power: true difference -> share found.
        simulations: comparisons behind each share.
    """

    dataset: str
    metric: str
    source: str
    seeds: int
    queries: int
    alpha: float
    rejection: float
    sd: float
    power: dict[str, float]
    simulations: int

    def line(self) -> str:
        """One line for people."""
        power = ", ".join(f"{100 * float(e):g} points are found in {share:.0%}" for e, share in self.power.items())
        return (
            f"Calibration with {self.seeds} seeds and {self.queries:,} queries a side, simulated with {self.source} "
            f"({self.simulations} comparisons). False-positive rate: {self.rejection:.1%} (at most {self.alpha:.0%} "
            f"asked for, ± {self.sd:.1%}). Power: true differences of {power}."
        )


def calibrated(dataset: str, metric: str, baseline: Values, *, alpha: float) -> Calibrated:
    """What the test does with this number of seeds and queries.

    With 4 seeds or more the baseline's own runs are split in two halves, again and again; with fewer, runs are
    simulated that have its recalls and its spread over seeds, and that prefer different queries (docs/statistics.md).
    The number of simulations falls with the number of queries.
    """
    runs, queries = baseline.values.shape
    own = runs >= 4
    seeds = runs // 2 if own else runs
    found = statistics.calibrate(
        baseline.values if own else _world(baseline.values),
        seeds=seeds,
        generator=seeded({"baseline": baseline}, metric),
        effects=_EFFECTS,
        simulations=max(20, min(1000, _WORK // queries)),
        alpha=alpha,
        resamples=500,
    )
    return Calibrated(
        dataset=dataset,
        metric=metric,
        source="the baseline's own runs" if own else "a model of hits and misses",
        seeds=seeds,
        queries=queries,
        alpha=alpha,
        rejection=found.rejection,
        sd=found.sd,
        power={str(effect): share for effect, share in found.power.items()},
        simulations=found.simulations,
    )


def _world(values: NDArray[np.float64]) -> statistics.Simulation:
    """A population of runs with this strategy's recall at each cutoff and its sd over seeds (one seed: 0.3 points)."""
    levels = next((n for n in (1, 2, 3, 4) if np.allclose(values * n, np.round(values * n))), 1)
    cuts = [float((values >= (level - 0.5) / levels).mean()) for level in range(levels, 0, -1)]
    if levels == 1 and not np.isin(values, (0, 1)).all():  # average precisions
        cuts = [float(values.mean())]
    recalls = tuple(min(max(recall, 0.02), 0.95) for recall in cuts)
    spread = float(values.mean(axis=1).std(ddof=1)) if len(values) > 1 else 0.003
    return statistics.Simulation(values.shape[1], recalls, seed_sd=min(spread, 0.05), preference_sd=1.5)
