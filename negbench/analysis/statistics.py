"""Whether one strategy is better than another: differences with simultaneous intervals, from per-query values.

Values are hits at 10, average precisions or any other per-query value, larger is better, for each strategy and seed. A
difference would change with other seeds and with other queries; both enter every interval. One joint distribution of
the errors of a table's means gives all intervals and p-values: seed errors come from `seed_variance`, which pools the
whole table, query errors from the covariance of the values. docs/statistics.md gives reasons and the calibration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from negbench.analysis.seed_variance import repeats, variance_draws

Array = NDArray[np.float64]
Verdict = Literal["better", "worse", "equal", "undecided"]
Seeded = NDArray[Any] | Sequence[NDArray[Any]]  # [S, Q], or S arrays of each seed's own queries

POWER = 0.8  # of the minimum detectable difference
_STEP = 1e-4  # ends of intervals are rounded outwards to 0.01 points: what is printed is what was judged
_INFLATED = 0.25  # exponent of (own variance / pooled variance), which widens a difference whose own variance is larger


@dataclass(frozen=True)
class Interval:
    """An interval [low, high] that covers the true value in a share `level` of repetitions."""

    low: float
    high: float
    level: float


@dataclass(frozen=True, eq=False)
class Design:
    """How values were sampled, and at which level they are tested.

    Args:
        strata: [Q] labels (FashionIQ: the category); a mean is then the unweighted mean of the strata's means.
        clusters: [Q] labels of queries that vary together (family, product, reference image); default: none do.
        nested: every seed has its own world and so its own queries: variance over seeds already includes the queries.
        alpha: all intervals of a table hold simultaneously in 1 - alpha of the repetitions.
        margin: differences inside plus or minus this do not matter, in the unit of the values.
        draws: number of draws from the joint distribution of the errors; a small table or share of alpha has more.
        share: the part of alpha that this look at the table spends, if there are several looks.
    """

    strata: NDArray[Any] | None = None
    clusters: NDArray[Any] | None = None
    nested: bool = False
    alpha: float = 0.05
    margin: float = 0.01
    draws: int = 4000
    share: float = 1.0

    def verdict(self, interval: Interval) -> Verdict:
        """Return better or worse if 0 is outside the interval, equal if it lies inside the margin, else undecided."""
        if interval.low > 0:
            return "better"
        if interval.high < 0:
            return "worse"
        return "equal" if -self.margin <= interval.low and interval.high <= self.margin else "undecided"


@dataclass(frozen=True)
class Summary:
    """One strategy: mean over seeds and queries; sd (nan for one seed), lowest and highest of the seed means; interval.

    `interval` covers other seeds and other queries (or worlds), for this mean alone. It is clipped to [0, 1] if all
    values lie there.
    """

    mean: float
    sd: float
    lowest: float
    highest: float
    interval: Interval
    seeds: int
    queries: int


@dataclass(frozen=True)
class Difference:
    """A difference of means, in the unit of the values (0.01 = one point of recall).

    Attributes:
        value: mean difference over the seeds that all its strategies have.
        interval: simultaneous over the family that was tested together.
        models: interval for these trained models on other queries, for this difference alone.
        p_value: two-sided, for "no difference in expectation over seeds and queries".
        p_adjusted: for the family and its looks; at most alpha if and only if `interval` excludes 0.
        verdict: on the interval, see `Design.verdict`.
        minimum_detectable: true difference that such a table would detect with a power of about 80 %.
        seeds: number of seeds in common.
    """

    value: float
    interval: Interval
    models: Interval
    p_value: float
    p_adjusted: float
    verdict: Verdict
    minimum_detectable: float
    seeds: int

    def turned(self) -> Difference:
        """Return the difference with its sides exchanged; 0 stays 0, not -0."""
        words: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}
        interval, models = (Interval(0 - each.high, 0 - each.low, each.level) for each in (self.interval, self.models))
        return Difference(
            *(0 - self.value, interval, models, self.p_value, self.p_adjusted),
            *(words.get(self.verdict, self.verdict), self.minimum_detectable, self.seeds),
        )


# --- values of a table -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ValueTable:
    """Checked values of K strategies.

    Args:
        values: name -> [S, Q] values of S seeds; where worlds are nested in seeds, S arrays of each seed's queries.
        design: how they were sampled.
        seeds: name -> the seed of each row; default: row i of all strategies is the same seed.

    Raises:
        ValueError: a shape that does not fit, a value that is not finite, or a stratum of one query.
    """

    values: Mapping[str, Seeded]
    design: Design = field(default_factory=Design)
    seeds: Mapping[str, Sequence[int]] | None = None
    _rows: dict[str, dict[int, Array]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for name, given in self.values.items():
            rows = [np.asarray(row, dtype=np.float64) for row in given]
            numbers = list(range(len(rows)) if self.seeds is None else self.seeds[name])
            if not rows or any(row.ndim != 1 or len(row) < 2 for row in rows):
                raise ValueError(f"'{name}' must be [seeds, queries] with at least 1 seed and 2 queries")
            if not all(np.isfinite(row).all() for row in rows):
                raise ValueError(f"'{name}' contains a value that is not finite")
            self._rows[name] = dict(zip(numbers, rows, strict=True))
        lengths = {len(row) for rows in self._rows.values() for row in rows.values()}
        if len(lengths) > 1 and not self.design.nested:
            raise ValueError(f"all seeds and strategies must have the same number of queries, got {sorted(lengths)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the strategies."""
        return tuple(self._rows)

    def common(self, names: Sequence[str]) -> list[int]:
        """Return the seeds that all these strategies have, in order."""
        return sorted(set.intersection(*(set(self._rows[name]) for name in names)))

    def seed_means(self, names: Sequence[str] = (), seeds: Sequence[int] = ()) -> Array:
        """[K, S] means of strategies (default: all) and seeds (default: all); NaN where there is none."""
        chosen = [self._rows[name] for name in names or self._rows]
        every = list(seeds) or sorted({seed for rows in chosen for seed in rows})
        means = np.full((len(chosen), len(every)), np.nan)
        for k, rows in enumerate(chosen):
            for s, seed in enumerate(every):
                if seed in rows:
                    means[k, s] = rows[seed] @ self._weights(len(rows[seed]))
        return means

    def queries(self, name: str) -> int:
        """Return the number of queries of a seed."""
        return len(next(iter(self._rows[name].values())))

    def _strata(self, queries: int) -> list[NDArray[np.intp]]:
        labels = self.design.strata
        groups = [np.arange(queries)] if labels is None else [np.flatnonzero(labels == x) for x in np.unique(labels)]
        if min(map(len, groups)) < 2:
            raise ValueError("every stratum needs at least 2 queries")
        return groups

    def _weights(self, queries: int) -> Array:
        """[Q] weights of the queries in the mean of the strata's means."""
        weights = np.zeros(queries)
        groups = self._strata(queries)
        for group in groups:
            weights[group] = 1 / (len(group) * len(groups))
        return weights

    def query_noise(self, names: Sequence[str], seeds: Sequence[int]) -> QueryNoise:
        """Estimate the covariance over queries of these strategies' means on these seeds."""
        if self.design.nested:
            parts = [self._covariance(np.stack([self._rows[n][s] for n in names])) for s in seeds]
            covariance = np.sum([part for part, _ in parts], axis=0) / len(seeds) ** 2
            return QueryNoise(covariance, np.zeros_like(covariance), sum(units for _, units in parts), 0.0)
        block = np.stack([np.stack([self._rows[name][seed] for seed in seeds]) for name in names])
        covariance, units = self._covariance(block.mean(axis=1))
        return QueryNoise(covariance, self._interaction(block), units, 1.0)

    def _covariance(self, values: Array) -> tuple[Array, int]:
        """[K, K] covariance of the weighted means of [K, Q] values, and their degrees of freedom: units less strata."""
        queries = values.shape[1]
        centred, groups = values.copy(), self._strata(queries)
        for group in groups:
            centred[:, group] -= centred[:, group].mean(axis=1, keepdims=True)
        centred *= self._weights(queries)
        units = queries
        if self.design.clusters is not None:
            _, place = np.unique(self.design.clusters, return_inverse=True)
            units = int(place.max()) + 1
            centred = np.stack([np.bincount(place, row, minlength=units) for row in centred])
        free = max(1, units - len(groups))
        return centred @ centred.T * (units / free), free

    def _interaction(self, block: Array) -> Array:
        """[K, K] part of the means' covariance that is noise of single runs, which neither query nor seed explains."""
        _, seeds, queries = block.shape
        if seeds == 1:
            return np.zeros((len(block), len(block)))
        rest = block - block.mean(axis=1, keepdims=True)
        for group in self._strata(queries):
            rest[:, :, group] -= rest[:, :, group].mean(axis=2, keepdims=True)
        rest = (rest * self._weights(queries)).reshape(len(block), -1)
        return np.asarray(rest @ rest.T / (seeds * (seeds - 1)), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class QueryNoise:
    """Covariance [K, K] of means over queries, its part that is noise of the runs, and its degrees of freedom.

    `share` is 1 if queries are crossed with seeds, 0 if nested: variance over seeds then already includes queries.
    """

    covariance: Array
    interaction: Array
    df: int
    share: float


# --- tests -------------------------------------------------------------------------------------------------------


def contrasts(
    table: ValueTable, weights: Sequence[Mapping[str, float]], generator: np.random.Generator
) -> list[Difference]:
    """Test contrasts of means together: each is {strategy: weight}, whose weights sum to 0.

    All intervals hold simultaneously (single-step max-t: Westfall and Young, Resampling-Based Multiple Testing, 1993).

    Raises:
        ValueError: the strategies of a contrast have no seed in common.
    """
    if not weights:
        return []
    names = table.names
    draws = round(table.design.draws * repeats(len(names)) / table.design.share**0.5)  # a tail further out needs more
    variances = variance_draws(table.seed_means(), draws, generator)
    normal = generator.standard_normal(variances.shape)
    query = generator.standard_normal(variances.shape)
    quantile = generator.random((draws, 1))  # of chi-squared, whose degrees of freedom differ between the groups below
    value, seeds = np.zeros(len(weights)), np.zeros(len(weights), dtype=int)
    both, alone = np.zeros((draws, len(weights))), np.zeros((draws, len(weights)))
    free = np.zeros(len(weights))
    groups: dict[tuple[int, ...], list[int]] = {}
    for c, parts in enumerate(weights):
        if not (common := table.common(list(parts))):
            raise ValueError(f"{' and '.join(parts)} have no seed in common")
        groups.setdefault(tuple(common), []).append(c)
    for shared, members in groups.items():
        common = list(shared)
        used = [name for name in names if any(name in weights[c] for c in members)]
        places = [names.index(name) for name in used]
        matrix = np.array([[weights[c].get(name, 0.0) for name in used] for c in members])
        noise, estimates = table.query_noise(used, common), matrix @ table.seed_means(used, common)
        value[members], seeds[members], free[members] = estimates.mean(axis=1), len(common), noise.df
        student = np.sqrt(scipy.stats.chi2.ppf(quantile, noise.df) / noise.df)
        drawn = (query[:, places] @ _root(noise.covariance).T / student) @ matrix.T
        alone[:, members] = drawn
        both[:, members] = drawn * noise.share * _reproducible(noise, matrix)
        if len(common) > 1:
            spread = variances[:, places] / len(common)
            own = estimates.var(axis=1, ddof=1) / len(common)
            pooled = np.maximum(np.median(spread @ (matrix**2).T, axis=0), 1e-30)
            widened = np.maximum(1.0, own / pooled) ** _INFLATED
            both[:, members] += (normal[:, places] * np.sqrt(spread)) @ matrix.T * widened
    return _differences(table, value, seeds, np.abs(both), np.abs(alone), free)


def _root(covariance: Array) -> Array:
    """[K, K] whose product with its transpose is the covariance."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0)), dtype=np.float64)


def _reproducible(noise: QueryNoise, matrix: Array) -> Array:
    """[C] in 0..1: square root of the reproducible share of each contrast's query variance.

    The variance over seeds already includes that noise.
    """
    whole, luck = (np.einsum("ck,kl,cl->c", matrix, each, matrix) for each in (noise.covariance, noise.interaction))
    share = 1 - np.divide(luck, whole, out=np.ones_like(whole), where=whole > 0)
    return np.asarray(np.sqrt(np.clip(share, 0, 1)), dtype=np.float64)


def _differences(
    table: ValueTable, value: Array, seeds: NDArray[Any], both: Array, alone: Array, free: Array
) -> list[Difference]:
    """Compute half widths and, dual to them, p-values from draws [R, C] of the absolute errors.

    A difference has to pass both with and without seed noise, so no interval is narrower than either implies. If none
    of `free` [C] independent queries differs, at most a share of log(2 / alpha) / free do (the rule of three).
    """
    alpha, count = table.design.alpha, len(both)
    level = 1 - alpha * table.design.share
    seen = np.abs(value) * (1 - 1e-9)
    p_models, p_both = ((1 + (drawn >= seen).sum(axis=0)) / (count + 1) for drawn in (alone, both))
    least = [
        np.where((alone + both).max(axis=0) > 1e-12, 0.0, math.log(2 / spent) / free) for spent in (alpha, 1 - level)
    ]
    models = np.maximum(np.quantile(alone, 1 - alpha, axis=0), least[0])
    half = np.maximum(np.maximum(np.quantile(alone, level, axis=0), np.quantile(both, level, axis=0)), least[1])
    most = np.divide(both, half, out=np.zeros_like(both), where=half > 0).max(axis=1)
    stretch = max(1.0, float(np.quantile(most, level)))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(half > 0, seen / half, np.where(seen > 0, np.inf, 0))
    joint = (1 + count - np.searchsorted(np.sort(most), ratio)) / (count + 1)
    p_value = np.maximum(p_models, p_both)
    differences, power = [], scipy.stats.norm.ppf(POWER) * np.quantile(both, 0.6827, axis=0)
    for c, mean in enumerate(value):
        interval = _interval(float(mean), float(stretch * half[c]), 1 - alpha)
        outside = interval.low > 0 or interval.high < 0
        adjusted = min(1.0, max(float(joint[c]), float(p_value[c])) / table.design.share)
        differences.append(
            Difference(
                value=float(mean),
                interval=interval,
                models=_interval(float(mean), float(models[c]), 1 - alpha),
                p_value=float(p_value[c]),
                p_adjusted=min(adjusted, alpha) if outside else max(adjusted, alpha * (1 + 1e-9)),
                verdict=table.design.verdict(interval),
                minimum_detectable=float(stretch * half[c] + power[c]),
                seeds=int(seeds[c]),
            )
        )
    return differences


def _scale(table: ValueTable) -> tuple[float, float]:
    """Return the bounds of means: [0, 1] if all values lie there."""
    rows = [row for own in table.values.values() for row in own]
    inside = all(np.min(row) >= 0 and np.max(row) <= 1 for row in rows)
    return (0.0, 1.0) if inside else (-np.inf, np.inf)


def _interval(mean: float, half: float, level: float, bounds: tuple[float, float] = (-np.inf, np.inf)) -> Interval:
    """Mean plus and minus the half width, rounded outwards, inside the bounds."""
    low, high = (mean - half) / _STEP, (mean + half) / _STEP
    if np.isfinite(half):
        low, high = float(np.floor(low + 1e-6)), float(np.ceil(high - 1e-6))
    digits = round(-np.log10(_STEP))
    return Interval(max(bounds[0], round(low * _STEP, digits)), min(bounds[1], round(high * _STEP, digits)), level)


# --- what is asked of a table --------------------------------------------------------------------------------------


def summarise(table: ValueTable) -> dict[str, Summary]:
    """Compute mean, sd over seeds and interval (Student's t) of every strategy."""
    level, summaries, bounds = 1 - table.design.alpha, {}, _scale(table)
    for name in table.names:
        seeds = table.common([name])
        means, noise = table.seed_means([name], seeds)[0], table.query_noise([name], seeds)
        alone, mean = float(noise.covariance[0, 0]), float(means.mean())
        query = alone * noise.share * float(_reproducible(noise, np.ones((1, 1)))[0]) ** 2
        over_seeds = float(means.var(ddof=1)) / len(seeds) if len(seeds) > 1 else 0.0
        half = float(scipy.stats.t.ppf(0.5 + level / 2, noise.df)) * alone**0.5  # of these trained models
        if over_seeds:  # Satterthwaite's degrees of freedom of the sum
            df = (over_seeds + query) ** 2 / (over_seeds**2 / (len(seeds) - 1) + query**2 / noise.df)
            half = max(half, float(scipy.stats.t.ppf(0.5 + level / 2, df)) * (over_seeds + query) ** 0.5)
        sd = float(means.std(ddof=1)) if len(seeds) > 1 else float("nan")
        ends = float(means.min()), float(means.max())
        interval = _interval(mean, half, level, bounds)
        summaries[name] = Summary(mean, sd, *ends, interval, len(seeds), table.queries(name))
    return summaries


def against(table: ValueTable, baseline: str, generator: np.random.Generator) -> dict[str, Difference]:
    """Test all strategies minus the baseline together; those that share no seed with it are left out."""
    if baseline not in table.names:
        raise ValueError(f"baseline '{baseline}' is not in the table: {', '.join(table.names)}")
    others = [name for name in table.names if name != baseline and table.common([name, baseline])]
    return dict(zip(others, contrasts(table, [{name: 1.0, baseline: -1.0} for name in others], generator), strict=True))


@dataclass(frozen=True)
class Pairs:
    """Differences between strategies, tested together.

    Attributes:
        names: in the order of the table.
        means: mean of each.
        differences: (a, b) -> a minus b, each pair once.
    """

    names: tuple[str, ...]
    means: Mapping[str, float]
    differences: Mapping[tuple[str, str], Difference]

    def of(self, first: str, second: str) -> Difference | None:
        """`first` minus `second`, in either order; None where they were not compared."""
        held, turned = self.differences.get((first, second)), self.differences.get((second, first))
        return held if turned is None else turned.turned()

    def beaten(self) -> dict[str, tuple[str, ...]]:
        """Return name -> names of the strategies that beat it: the interval excludes 0, whatever the margin."""
        winners: dict[str, list[str]] = {name: [] for name in self.names}
        for (first, second), difference in self.differences.items():
            if difference.verdict == "better":
                winners[second].append(first)
            elif difference.verdict == "worse":
                winners[first].append(second)
        return {name: tuple(names) for name, names in winners.items()}

    def ranks(self) -> dict[str, tuple[int, int]]:
        """Return name -> lowest and highest rank that the pairs allow; 1 is best."""
        beaten = self.beaten()
        wins = {name: sum(name in winners for winners in beaten.values()) for name in beaten}
        return {name: (1 + len(winners), len(beaten) - wins[name]) for name, winners in beaten.items()}


def pairs(table: ValueTable, generator: np.random.Generator) -> Pairs:
    """Test together all pairs of a table that share a seed."""
    every = [pair for pair in combinations(table.names, 2) if table.common(pair)]
    differences = contrasts(table, [{first: 1.0, second: -1.0} for first, second in every], generator)
    means = dict(zip(table.names, map(float, np.nanmean(table.seed_means(), axis=1)), strict=True))
    return Pairs(table.names, means, dict(zip(every, differences, strict=True)))


@dataclass(frozen=True)
class Factorial:
    """Contributions of the factors of a 2^k design to the difference between all of them and none.

    Attributes:
        total: all factors on minus all off.
        shares: factor -> its Shapley value: what switching it on adds, averaged over all orders of switching. They sum
            to `total`: every interaction is divided equally among its factors.
        terms: set of factors -> its own term: for one factor, what it adds alone; for several, what they add together
            beyond all smaller sets (0 in an additive table). They sum to `total` too.
    """

    total: Difference
    shares: dict[str, Difference]
    terms: dict[tuple[str, ...], Difference]


def factorial(
    cells: Mapping[frozenset[str], Seeded],
    generator: np.random.Generator,
    design: Design = Design(),  # frozen
) -> Factorial:
    """Decompose the difference between a system and a plain one into factors and their interactions.

    Args:
        cells: set of the factors that are on -> [S, Q] per-query values, same seeds and queries for all 2^k sets.
        generator: source of all random draws.
        design: of the values; all parts are tested together.

    Raises:
        ValueError: a set is missing, or as in `ValueTable`.
    """
    factors = sorted(frozenset().union(*cells))
    subsets = [s for size in range(len(factors) + 1) for s in combinations(factors, size)]
    if missing := [s for s in subsets if frozenset(s) not in cells]:
        raise ValueError(f"a design of {len(factors)} factors needs {len(subsets)} cells; missing: {missing}")
    names = [" + ".join(s) or "none" for s in subsets]
    table = ValueTable({name: cells[frozenset(s)] for name, s in zip(names, subsets, strict=True)}, design)
    # a set's own term: the alternating sum over its subsets (Harsanyi's dividend); a share: its terms, equally divided
    terms = np.array([[(-1) ** (len(t) - len(s)) if set(s) <= set(t) else 0 for s in subsets] for t in subsets[1:]])
    split = np.array([[(f in t) / len(t) for t in subsets[1:]] for f in factors])
    rows = np.concatenate([terms.sum(axis=0, keepdims=True), split @ terms, terms])
    weights = [{name: float(w) for name, w in zip(names, row, strict=True) if w} for row in rows]
    total, *rest = contrasts(table, weights, generator)
    shares, own = rest[: len(factors)], rest[len(factors) :]
    return Factorial(total, dict(zip(factors, shares, strict=True)), dict(zip(subsets[1:], own, strict=True)))
