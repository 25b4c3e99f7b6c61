"""Whether one strategy is better than another: differences with simultaneous intervals, from per-query values.

Values are hits at 10, average precisions or any other per-query value, larger is better, for each strategy and seed. A
difference would change with other seeds and with other queries; both enter every interval. One joint distribution of
the errors of a table's means gives all intervals and p-values: seed errors come from `seed_variance`, which pools the
whole table, query errors from the covariance of the values. docs/statistics.md gives reasons and the calibration.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy  # not scipy.stats, whose import takes as long as the statistics
from numpy.typing import NDArray

from negbench.analysis.query_noise import ZERO, QueryNoise
from negbench.analysis.seed_variance import repeats, variance_draws

Array = NDArray[np.float64]
Decision = Literal["better", "worse", "equal", "undecided"]  # on a difference
Seeded = NDArray[Any] | Sequence[NDArray[Any]]  # [S, Q], or S arrays of each seed's own queries

POWER = 0.8  # of the minimum detectable difference
_STEP = 1e-4  # ends of intervals are rounded outwards to 0.01 points: what is printed is what was judged
_AT_ONCE = 64  # contrasts whose draws are held at once: [64, draws] arrays fit the cache
_MEASURES = ("value", "half", "models", "p_value", "power_width", "choice")
_TEST = [(name, float) for name in _MEASURES] + [("seeds", int)]  # of a contrast
_INFLATED = 0.25  # exponent of (a contrast's variance / the pooled one), which widens it where its variance is larger


@dataclass(frozen=True)
class Interval:
    """An interval [low, high] that covers the true value in a share `level` of repetitions."""

    low: float
    high: float
    level: float

    def reverse(self) -> "Interval":
        """Return the interval of the value with the other sign; 0 stays 0, not -0."""
        return Interval(0 - self.high, 0 - self.low, self.level)


@dataclass(frozen=True, eq=False)
class Design:
    """How values were sampled, and at which level they are tested.

    Args:
        strata: [Q] labels (FashionIQ: the category); a mean is then the unweighted mean of the strata's means.
        clusters: [Q] labels of queries that vary together (family, product, reference image); default: none do.
        nested: every seed has its own world and so its own queries: variance over seeds already includes the queries.
        alpha: all intervals of a table hold simultaneously in 1 - alpha of the repetitions.
        margin: differences inside plus or minus this do not matter, in the unit of the values.
        draws: number of draws from the joint distribution of the errors; a small table or part of alpha has more.
        alpha_part: the part of alpha that this look at the table spends, if there are several looks.
    """

    strata: NDArray[Any] | None = None
    clusters: NDArray[Any] | None = None
    nested: bool = False
    alpha: float = 0.05
    margin: float = 0.01
    draws: int = 4000
    alpha_part: float = 1.0

    def verdict(self, interval: Interval) -> Decision:
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
        choice: error by the choice of learning rates (root of its mean square), which no seed or query removes.
    """

    value: float
    interval: Interval
    models: Interval
    p_value: float
    p_adjusted: float
    verdict: Decision
    minimum_detectable: float
    seeds: int
    choice: float = 0.0

    def reverse(self) -> "Difference":
        """Return the difference with its sides exchanged; 0 stays 0, not -0."""
        opposite: dict[Decision, Decision] = {"better": "worse", "worse": "better"}
        return replace(
            self,
            value=0 - self.value,
            interval=self.interval.reverse(),
            models=self.models.reverse(),
            verdict=opposite.get(self.verdict, self.verdict),
        )


class MeanInterval(NamedTuple):
    """A mean and the ends of its 95 % interval, which are nan for a single seed."""

    mean: float
    low: float
    high: float


def mean_over_seeds(values: Sequence[float]) -> MeanInterval:
    """Return the mean over seeds of a share in [0, 1], with Student's interval."""
    count = len(values)
    error = float(np.std(values, ddof=1)) / count**0.5 if count > 1 else math.nan
    mean = float(np.mean(values))
    half = float(scipy.special.stdtrit(max(1, count - 1), 0.975)) * error
    return MeanInterval(mean, *np.clip((mean - half, mean + half), 0.0, 1.0).tolist())


# --- values of a table -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ValueTable:
    """Checked values of K strategies.

    Args:
        values: name -> [S, Q] values of S seeds; where worlds are nested in seeds, S arrays of each seed's queries.
        design: how they were sampled.
        seeds: name -> the seed of each row; default: row i of all strategies is the same seed.

    Raises:
        ValueError: a shape that does not fit, a value that is not finite, a seed that is given twice, or a stratum of
            one query.
    """

    values: Mapping[str, Seeded]
    design: Design = field(default_factory=Design)
    seeds: Mapping[str, Sequence[int]] | None = None
    _rows: dict[str, dict[int, Array]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for name, array in self.values.items():
            rows = [np.asarray(row, dtype=np.float64) for row in array]
            seeds = list(range(len(rows)) if self.seeds is None else self.seeds.get(name, ()))
            _check_rows(name, rows, seeds)
            self._rows[name] = dict(zip(seeds, rows, strict=True))
        lengths = set()
        for rows_by_seed in self._rows.values():
            lengths |= {len(row) for row in rows_by_seed.values()}
        if len(lengths) > 1 and not self.design.nested:
            raise ValueError(f"all seeds and strategies must have the same number of queries, got {sorted(lengths)}")
        for what, labels in {"strata": self.design.strata, "clusters": self.design.clusters}.items():
            if labels is not None and lengths != {len(labels)}:
                raise ValueError(f"{what} must label each of the {sorted(lengths)} queries, got {len(labels)} labels")

    @property
    def draws(self) -> int:
        """Number of draws from the joint distribution of the errors; a tail further out needs more."""
        return round(self.design.draws * repeats(len(self._rows)) / float(self.design.alpha_part**0.5))

    @property
    def has_shares(self) -> bool:
        """Whether all values lie in [0, 1]."""
        for rows in self._rows.values():
            values = np.concatenate(list(rows.values()))
            if values.min() < 0 or values.max() > 1:
                return False
        return True

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the strategies."""
        return tuple(self._rows)

    def common(self, names: Sequence[str]) -> list[int]:
        """Return the seeds that all these strategies have, in order."""
        return sorted(set.intersection(*(set(self._rows[name]) for name in names)))

    def seed_means(self, names: Sequence[str], seeds: Sequence[int]) -> Array:
        """[K, S] means of these strategies and seeds; NaN where there is none."""
        means = np.full((len(names), len(seeds)), np.nan)
        for k, name in enumerate(names):
            rows = self._rows[name]
            for s, seed in enumerate(seeds):
                if seed in rows:
                    means[k, s] = rows[seed] @ self._weights(len(rows[seed]))
        return means

    def generator(self, key: str = "") -> np.random.Generator:
        """Return a generator seeded with `key`, names and values, whatever the order of names, seeds and queries."""
        digest = hashlib.sha256(key.encode())
        for name in sorted(self._rows):
            rows = [self._value_bytes(name, seed) for seed in self.seeds_by_values()]
            digest.update(b"\0".join([name.encode(), *rows]))
        return np.random.default_rng(int.from_bytes(digest.digest()[:8], "big"))

    def seeds_by_values(self) -> list[int]:
        """Return all seeds in an order that depends on their values alone."""
        seeds = set().union(*self._rows.values())

        def bytes_of(seed: int) -> list[bytes]:
            return [self._value_bytes(name, seed) for name in sorted(self._rows)]

        return sorted(seeds, key=bytes_of)

    def _value_bytes(self, name: str, seed: int) -> bytes:
        """Return a row's values, sorted within strata; nothing if there is no such row."""
        row = self._rows[name].get(seed)
        if row is None:
            return b""
        return b"".join(np.sort(row[stratum]).tobytes() for stratum in self._strata(len(row)))

    def queries(self, name: str) -> int:
        """Return the number of queries of a seed."""
        return len(next(iter(self._rows[name].values())))

    def _strata(self, queries: int) -> list[NDArray[np.intp]]:
        """Return the columns of each stratum's queries in one row, or in several one after the other."""
        if self.design.strata is None:
            return [np.arange(queries)]
        labels = np.tile(self.design.strata, queries // len(self.design.strata))
        strata = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        if min(len(stratum) for stratum in strata) < 2:
            raise ValueError("every stratum needs at least 2 queries")
        return strata

    def _weights(self, queries: int) -> Array:
        """[Q] weights of the queries in the mean of the strata's means."""
        weights = np.zeros(queries)
        strata = self._strata(queries)
        for stratum in strata:
            weights[stratum] = 1 / (len(stratum) * len(strata))
        return weights

    def query_noise(self, names: Sequence[str], seeds: Sequence[int]) -> QueryNoise:
        """Estimate the covariance over queries of these strategies' means on these seeds."""
        values_of_seeds = []  # [K, Q] values of each seed
        for seed in seeds:
            values_of_seeds.append(np.stack([self._rows[name][seed] for name in names]))
        nested = self.design.nested
        # each of other queries, so that they are independent of each other
        samples = values_of_seeds if nested else [np.mean(values_of_seeds, axis=0)]
        factors = []
        df = 0
        for sample in samples:
            factor, df_of_sample = self._sums(sample)
            factors.append(factor)
            df += df_of_sample
        luck = np.zeros((len(names), 1))
        if len(seeds) > 1 and not nested:
            luck = self._luck(np.stack(values_of_seeds, axis=1))
        all_values = np.concatenate(values_of_seeds, axis=1)
        return QueryNoise(
            factor=np.concatenate(factors, axis=1) / len(factors),
            luck=luck,
            deviations=self._centre(all_values),
            size=np.abs(all_values).max(axis=1),
            df=df,
            crossed=not nested,
        )

    def _centre(self, values: Array) -> Array:
        """Subtract from [..., Q] values the mean of their stratum."""
        centred = values.copy()
        for stratum in self._strata(values.shape[-1]):
            centred[..., stratum] -= centred[..., stratum].mean(axis=-1, keepdims=True)
        return centred

    def _sums(self, values: Array) -> tuple[Array, int]:
        """[K, U] factor of the covariance of the weighted means of [K, Q] values, and its degrees of freedom."""
        _, queries = values.shape
        sums = self._centre(values) * self._weights(queries)
        if self.design.clusters is not None:
            _, cluster_of_query = np.unique(self.design.clusters, return_inverse=True)
            sums = np.stack([np.bincount(cluster_of_query, row) for row in sums])
        _, units = sums.shape
        df = max(1, units - len(self._strata(queries)))
        return sums * (units / df) ** 0.5, df

    def _luck(self, values: Array) -> Array:
        """[K, S * Q] factor of the part of the means' covariance that neither query nor seed explains.

        Args:
            values: [K, S, Q].
        """
        strategies, seeds, queries = values.shape
        rest = self._centre(values - values.mean(axis=1, keepdims=True)) * self._weights(queries)
        return np.asarray(rest.reshape(strategies, -1) / (seeds * (seeds - 1)) ** 0.5, dtype=np.float64)


def _check_rows(name: str, rows: Sequence[Array], seeds: Sequence[int]) -> None:
    """Raise ValueError unless a strategy has a seed of its own for each of its rows of finite values."""
    if not rows or any(row.ndim != 1 or len(row) < 2 for row in rows):
        raise ValueError(f"'{name}' must be [seeds, queries] with at least 1 seed and 2 queries")
    if not all(np.isfinite(row).all() for row in rows):
        raise ValueError(f"'{name}' contains a value that is not finite")
    if not len(rows) == len(seeds) == len({*seeds}):
        raise ValueError(f"'{name}' must have a seed of its own for each of its {len(rows)} rows, got {seeds}")


# --- what is asked of a table --------------------------------------------------------------------------------------


def summarise(table: ValueTable) -> dict[str, Summary]:
    """Compute mean, sd over seeds and interval (Student's t) of every strategy."""
    level = 1 - table.design.alpha
    summaries = {}
    bounds = (0.0, 1.0) if table.has_shares else (-np.inf, np.inf)
    for name in table.names:
        seeds = table.common([name])
        means = table.seed_means([name], seeds)[0]
        mean = float(means.mean())
        half = _half_width_of_mean(means, table.query_noise([name], seeds), level)
        summaries[name] = Summary(
            mean,
            sd=float(means.std(ddof=1)) if len(seeds) > 1 else math.nan,
            lowest=float(means.min()),
            highest=float(means.max()),
            interval=_interval(mean, half, level, bounds),
            seeds=len(seeds),
            queries=table.queries(name),
        )
    return summaries


def _half_width_of_mean(means: Array, noise: QueryNoise, level: float) -> float:
    """Return the half width of the interval of one strategy's mean.

    It covers other queries for these trained models, and other seeds and queries if there are several seeds.

    Args:
        means: [S] of the seeds.
        noise: over queries, of this strategy alone.
        level: of the interval.
    """
    mean_itself = np.ones((1, 1))  # as a contrast
    seeds = len(means)
    query_variance = float((noise.factor**2).sum())
    half = float(scipy.special.stdtrit(noise.df, 0.5 + level / 2) * query_variance**0.5)
    alike, _ = noise.alike(mean_itself)
    if alike[0]:
        half = _rule_of_three(noise.df, 1 - level)
    seed_variance = float(means.var(ddof=1)) / seeds if seeds > 1 else 0.0
    if seed_variance == 0:
        return half
    reproducible = 0.0
    if noise.crossed:
        reproducible = query_variance * float(noise.reproducible(mean_itself)[0]) ** 2
    variance = seed_variance + reproducible
    df = variance**2 / (seed_variance**2 / (seeds - 1) + reproducible**2 / noise.df)  # Satterthwaite's, of the sum
    return max(half, float(scipy.special.stdtrit(df, 0.5 + level / 2) * variance**0.5))


def against(
    table: ValueTable, baseline: str, generator: np.random.Generator, shortfalls: Mapping[str, Array] | None = None
) -> dict[str, Difference]:
    """Test all strategies minus the baseline together, as `contrasts`, without those that share no seed with it."""
    if baseline not in table.names:
        raise ValueError(f"baseline '{baseline}' is not in the table: {', '.join(table.names)}")
    others = [name for name in table.names if name != baseline and table.common([name, baseline])]
    weights = [{name: 1.0, baseline: -1.0} for name in others]
    return dict(zip(others, contrasts(table, weights, generator, shortfalls), strict=True))


@dataclass(frozen=True)
class Pairs:
    """Differences between strategies, tested together.

    Attributes:
        names: in the order of the table.
        differences: (a, b) -> a minus b, each pair once.
    """

    names: tuple[str, ...]
    differences: Mapping[tuple[str, str], Difference]

    def of(self, first: str, second: str) -> Difference | None:
        """`first` minus `second`, in either order; None where they were not compared."""
        difference = self.differences.get((first, second))
        opposite = self.differences.get((second, first))
        return difference if opposite is None else opposite.reverse()

    @cached_property
    def beaten_by(self) -> Mapping[str, tuple[str, ...]]:
        """Name -> names of the strategies that beat it: the interval excludes 0, whatever the margin."""
        winners: dict[str, list[str]] = {name: [] for name in self.names}
        for (first, second), difference in self.differences.items():
            if difference.verdict == "better":
                winners[second].append(first)
            elif difference.verdict == "worse":
                winners[first].append(second)
        return {name: tuple(names) for name, names in winners.items()}

    def ranks(self) -> dict[str, tuple[int, int]]:
        """Return name -> lowest and highest rank that the pairs allow; 1 is best."""
        wins = Counter(winner for winners in self.beaten_by.values() for winner in winners)
        return {name: (1 + len(winners), len(self.names) - wins[name]) for name, winners in self.beaten_by.items()}


def pairs(table: ValueTable, generator: np.random.Generator, shortfalls: Mapping[str, Array] | None = None) -> Pairs:
    """Test together all pairs of a table that share a seed, as `contrasts`."""
    names_of_pairs = [pair for pair in combinations(table.names, 2) if table.common(pair)]
    weights = [{first: 1.0, second: -1.0} for first, second in names_of_pairs]
    differences = contrasts(table, weights, generator, shortfalls)
    return Pairs(table.names, dict(zip(names_of_pairs, differences, strict=True)))


# --- tests -------------------------------------------------------------------------------------------------------


def contrasts(
    table: ValueTable,
    weights: Sequence[Mapping[str, float]],
    generator: np.random.Generator,
    shortfalls: Mapping[str, Array] | None = None,
) -> list[Difference]:
    """Test contrasts of means together: each is {strategy: weight}, whose weights sum to 0.

    All intervals hold simultaneously (single-step max-t: Westfall and Young, Resampling-Based Multiple Testing, 1993).

    Args:
        table: values of the strategies.
        weights: the contrasts.
        generator: source of all random draws.
        shortfalls: strategy -> [`table.draws`] draws of how far its mean is below that at its best learning rate.

    Raises:
        ValueError: the strategies of a contrast have no seed in common.
    """
    if not weights:
        return []
    groups = _group_by_seeds(table, weights)
    names = sorted(table.names)
    matrix = _weight_matrix(weights, names)
    draws = table.draws
    variances = variance_draws(table.seed_means(names, table.seeds_by_values()), draws, generator)
    normal = generator.standard_normal(variances.shape)
    query = generator.standard_normal(variances.shape)
    shortfalls_of_names = np.zeros((len(names), draws))
    for name, shortfall in (shortfalls or {}).items():
        shortfalls_of_names[names.index(name)] = shortfall
    quantile = generator.random((draws, 1))  # of chi-squared, whose degrees of freedom differ between the groups below
    tests = np.zeros(len(weights), dtype=_TEST)
    largest_ratio = np.zeros(draws)
    for seeds, members in groups.items():
        columns = np.unique(matrix[members].indices)  # of the strategies in this group's contrasts
        strategies = [names[column] for column in columns]
        noise = table.query_noise(strategies, seeds)
        student = np.sqrt(2 * scipy.special.gammaincinv(noise.df / 2, quantile) / noise.df)  # of chi-squared
        query_errors = query[:, columns] @ symmetric_root(noise.factor @ noise.factor.T) / student
        spread = variances[:, columns] / len(seeds)
        if len(seeds) == 1:
            spread = np.zeros_like(spread)  # one seed says nothing about others
        seed_errors = normal[:, columns] * np.sqrt(spread)
        errors = _Errors(
            noise,
            table.seed_means(strategies, seeds),
            query=np.ascontiguousarray(query_errors.T),
            seeds=np.ascontiguousarray(seed_errors.T),
            spread=np.ascontiguousarray(spread.T),
            shortfalls=shortfalls_of_names[columns],
        )
        for start in range(0, len(members), _AT_ONCE):
            some = members[start : start + _AT_ONCE]
            tests[some], ratio = errors.test_each(matrix[some][:, columns], table.design)
            np.maximum(largest_ratio, ratio, out=largest_ratio)
    return _differences(table.design, tests, largest_ratio)


def _group_by_seeds(table: ValueTable, weights: Sequence[Mapping[str, float]]) -> dict[tuple[int, ...], list[int]]:
    """Return seeds -> rows of the contrasts whose strategies have just these seeds in common.

    Raises:
        ValueError: the strategies of a contrast have none.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, contrast in enumerate(weights):
        seeds = table.common(list(contrast))
        if not seeds:
            raise ValueError(f"{' and '.join(contrast)} have no seed in common")
        groups.setdefault(tuple(seeds), []).append(row)
    return groups


def _weight_matrix(weights: Sequence[Mapping[str, float]], names: Sequence[str]) -> Any:
    """Return contrasts as a sparse [C, K] matrix, with a column for each name."""
    values = []
    rows = []
    columns = []
    for row, contrast in enumerate(weights):
        for name, weight in contrast.items():
            values.append(weight)
            rows.append(row)
            columns.append(names.index(name))
    return scipy.sparse.csr_array((values, (rows, columns)), shape=(len(weights), len(names)))


def symmetric_root(covariance: Array) -> Array:
    """[K, K] symmetric square root, the only one that does not depend on the choice of eigenvectors.

    Eigenvalues below 0 count as 0.
    """
    values, vectors = np.linalg.eigh(covariance)
    values = np.where(values > 1e-14 * len(values) * values[-1], values, 0.0)  # else a root of a rounding error
    return np.asarray(vectors * np.sqrt(values) @ vectors.T, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class _Errors:
    """Errors of K means over S common seeds: R draws from their distribution, and what they were estimated from.

    `means` [K, S]; `query` and `seeds` [K, R]: errors by queries, and by seeds; `spread` [K, R] variance of `seeds`;
    `shortfalls` [K, R] how far a strategy's learning rate is below its best one.
    """

    noise: QueryNoise
    means: Array
    query: Array
    seeds: Array
    spread: Array
    shortfalls: Array

    def test_each(self, matrix: Any, design: Design) -> tuple[NDArray[Any], Array]:
        """Return [C] tests, each on its own, of a sparse [C, K] matrix, and [R] the largest ratio of error to width.

        A difference has to pass both with and without seed noise, so no interval is narrower than either implies.
        """
        tests = np.zeros(matrix.shape[0], dtype=_TEST)
        estimates = matrix @ self.means
        spent = design.alpha * design.alpha_part
        alike, identical = self.noise.alike(matrix)
        by_query = np.where(alike[:, None], 0.0, matrix @ self.query)
        by_setting = matrix @ self.shortfalls
        by_seed = (matrix @ self.seeds) * self._widening(matrix, estimates, identical)[:, None]
        query_errors = np.abs(by_query)
        all_errors = np.abs(self._query_errors_beside_seeds(matrix, by_query) + by_seed + by_setting)
        least = ZERO * (abs(matrix) @ self.noise.size)  # of a width, where values differ by next to nothing
        widths = [self._half_width(query_errors, alike, spent), _upper(all_errors, 1 - spent), least]
        tests["value"] = estimates.mean(axis=1)
        tests["seeds"] = estimates.shape[1]
        tests["half"] = np.maximum.reduce(widths)
        tests["models"] = self._half_width(query_errors, alike, design.alpha)
        tests["p_value"] = self._p_values(np.abs(tests["value"]) * (1 - 1e-9), query_errors, all_errors, alike)
        tests["power_width"] = scipy.special.ndtri(POWER) * _upper(all_errors, 0.6827)
        tests["choice"] = np.sqrt((by_setting**2).mean(axis=1))
        return tests, (all_errors / tests["half"][:, None]).max(axis=0)

    def _widening(self, matrix: Any, estimates: Array, identical: NDArray[np.bool_]) -> Array:
        """[C] factors of errors by seeds: above 1 where a contrast's variance is larger than the pooled one."""
        seeds = estimates.shape[1]
        pooled_variance = _upper((matrix**2) @ self.spread, 0.5)
        contrast_variance = estimates.var(axis=1, ddof=1) / seeds if seeds > 1 else pooled_variance
        ratio = np.ones_like(contrast_variance)
        np.divide(contrast_variance, pooled_variance, out=ratio, where=pooled_variance > 0)
        return np.where(identical, 0.0, np.maximum(1.0, ratio) ** _INFLATED)

    def _query_errors_beside_seeds(self, matrix: Any, by_query: Array) -> Array:
        """[C, R] errors by queries, less what the variance over seeds already includes of them."""
        if not self.noise.crossed:
            return np.zeros_like(by_query)
        return by_query * self.noise.reproducible(matrix)[:, None]

    def _p_values(self, size: Array, query_errors: Array, all_errors: Array, alike: NDArray[np.bool_]) -> Array:
        """[C] p-values of contrasts of this size: the larger one of those with and without errors by seeds."""
        query_p = _tail(size, query_errors)
        query_p[alike] = np.minimum(1.0, 2 * np.exp(-size[alike] * self.noise.df))
        return np.maximum(query_p, _tail(size, all_errors))

    def _half_width(self, errors: Array, alike: NDArray[np.bool_], alpha: float) -> Array:
        """[C] quantiles of errors by queries [C, R]; the rule of three for contrasts in which no query differs."""
        return np.where(alike, _rule_of_three(self.noise.df, alpha), _upper(errors, 1 - alpha))


def _tail(size: Array, draws: Array) -> Array:
    """[C] shares of the draws [C, R] that are at least as large as [C] sizes; the value itself counts as a draw."""
    return np.asarray((1 + (size <= draws.T).sum(axis=0)) / (1 + draws.shape[1]), dtype=np.float64)


def _upper(draws: Array, level: float) -> Array:
    """[C] quantiles of [C, R] draws, each rounded up to a draw."""
    index = math.ceil(level * (draws.shape[1] - 1))
    return np.asarray(np.partition(draws, index, axis=1)[:, index], dtype=np.float64)


def _rule_of_three(df: int, alpha: float) -> float:
    """Half width where none of so many independent queries differs: at most this share of all queries does."""
    return math.log(2 / alpha) / df


def _differences(design: Design, tests: NDArray[Any], largest_ratio: Array) -> list[Difference]:
    """Stretch the half widths so that all hold together, and compute p-values that are dual to them.

    Args:
        design: of the values.
        tests: [C], each on its own.
        largest_ratio: [R] draws of the largest ratio of error to half width.
    """
    alpha = design.alpha
    count = len(largest_ratio)
    stretch = max(1.0, float(np.quantile(largest_ratio, 1 - alpha * design.alpha_part)))
    ratio = np.abs(tests["value"]) * (1 - 1e-9) / tests["half"]
    above = min(1.0, alpha + 1 / (count + 1))  # the draws know no p-value between
    joint = (1 + count - np.searchsorted(np.sort(largest_ratio), ratio)) / (count + 1)
    adjusted = np.minimum(1.0, np.maximum(joint, tests["p_value"]) / design.alpha_part)
    differences = []
    for test, p_adjusted in zip(tests, adjusted.tolist(), strict=True):
        mean, half, models, p_value, power_width, choice, seeds = test.item()
        interval = _interval(mean, stretch * half, 1 - alpha)
        if interval.low > 0 or interval.high < 0:
            p_adjusted = min(p_adjusted, alpha)
        else:
            p_adjusted = max(p_adjusted, above)
        difference = Difference(
            mean,
            interval,
            models=_interval(mean, models, 1 - alpha),
            p_value=p_value,
            p_adjusted=p_adjusted,
            verdict=design.verdict(interval),
            minimum_detectable=stretch * half + power_width,
            seeds=seeds,
            choice=choice,
        )
        differences.append(difference)
    return differences


def _interval(mean: float, half: float, level: float, bounds: tuple[float, float] = (-np.inf, np.inf)) -> Interval:
    """Mean plus and minus the half width, rounded outwards, inside the bounds."""
    low = (mean - half) / _STEP
    high = (mean + half) / _STEP
    if math.isfinite(half):
        low = math.floor(low + 1e-6)
        high = math.ceil(high - 1e-6)
    digits = round(-math.log10(_STEP))
    lowest, highest = bounds
    return Interval(max(lowest, round(low * _STEP, digits)), min(highest, round(high * _STEP, digits)), level)
