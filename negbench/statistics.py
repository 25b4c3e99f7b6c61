"""Whether one strategy is better than another: intervals and tests on per-query values that vary by seed and by query.

Everything here takes `values[seed, query]`: hit at 10, average precision, or any other per-query value, larger is
better. A strategy's mean would change with other queries and with other seeds, and the seeds are few, so both sources
enter every interval and every p-value. docs/statistics.md says why, and prints the calibration.

One distribution gives p-values and intervals alike: queries change sides by fair coins, seeds add Student's t.
A table's intervals are simultaneous (they all hold at once in 1 - alpha of the repetitions), and p_adjusted is their
dual: it is at most alpha exactly where the interval excludes 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]
Verdict = Literal["better", "worse", "equal", "undecided"]

_CELLS = 2**23  # doubles in one working block (64 MB)
_POWER = 0.8  # of the minimum detectable difference
_STEP = 1e-4  # ends of intervals are rounded outwards to 0.01 points: what is printed is what was judged


@dataclass(frozen=True)
class Interval:
    """An interval [low, high] that covers the true value in a share `level` of repetitions."""

    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Summary:
    """One strategy: mean over seeds and queries, sd over seeds of the per-seed mean (nan for one seed), intervals.

    `interval` speaks of the strategy: other seeds and other queries. `models` speaks of these very models on other
    queries; with one seed the two are the same. Neither leaves [0, 1] where all values lie in it.
    """

    mean: float
    sd: float
    interval: Interval
    models: Interval
    seeds: int
    queries: int


@dataclass(frozen=True)
class Comparison:
    """One strategy against a baseline.

    Attributes:
        name: the strategy.
        baseline: the strategy that it is compared with.
        difference: mean of strategy minus baseline, in the unit of the values (0.01 = one point of recall).
        interval: of the difference; simultaneous over the table.
        models: interval of the difference of these very models on other queries; for this row alone.
        p_value: two-sided, of "no difference in expectation over seeds and queries"; with one seed it is p_models.
        p_models: two-sided, of "no difference between these very models over queries": the paired randomisation test.
        p_adjusted: p_value adjusted for the table (single-step max-t, Westfall and Young 1993); at most alpha
            exactly where `interval` excludes 0.
        effect_size: difference / sd over queries of the per-query difference (averaged over seeds).
        verdict: see `verdict`; of the interval alone.
        minimum_detectable: approximate true difference that would be found with a power of 80 % at the level
            alpha / table size, with the variances seen here.
        seeds: seeds that both have; these alone are compared.
        unpaired_seeds: seeds that only one of the two has.
        queries: Q.
    """

    name: str
    baseline: str
    difference: float
    interval: Interval
    models: Interval
    p_value: float
    p_models: float
    p_adjusted: float
    effect_size: float
    verdict: Verdict
    minimum_detectable: float
    seeds: int
    unpaired_seeds: int
    queries: int


# --- parts of the variance ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Parts:
    """C arrays of values (or of paired differences), each [S, Q], reduced to what intervals and tests need.

    With d_sq = mean + seed_s + query_q + noise_sq, variances of the mean: `seed` estimates seed/S + noise/(S Q) on `df`
    degrees of freedom, `query` estimates query/Q + noise/(S Q), `cross` estimates noise/(S Q) alone.
    """

    mean: Array  # [C]
    queries: Array  # [C, Q], mean over seeds
    seed: Array  # [C], 0 for one seed
    query: Array  # [C]
    cross: Array  # [C], 0 for one seed
    df: Array  # [C], 0 for one seed

    @property
    def reproducible(self) -> Array:
        """[C] in 0..1: root of the share of `query` that is not `cross`, which `seed` holds already."""
        share = 1 - np.divide(self.cross, self.query, out=(self.cross > 0).astype(float), where=self.query > 0)
        return np.asarray(np.sqrt(np.clip(share, 0, 1)), dtype=np.float64)


def _groups(strata: NDArray[Any] | None, queries: int) -> list[NDArray[np.intp]]:
    """Indices of the queries of each stratum; the mean of all is the unweighted mean of the strata's means."""
    if strata is None:
        groups = [np.arange(queries)]
    else:
        strata = np.asarray(strata)
        if strata.shape != (queries,):
            raise ValueError(f"strata must have shape ({queries},), got {strata.shape}")
        groups = [np.flatnonzero(strata == label) for label in np.unique(strata)]
    if min((len(g) for g in groups), default=0) < 2:
        raise ValueError("every stratum needs at least 2 queries")
    return groups


def _checked(name: str, values: NDArray[Any]) -> Array:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        raise ValueError(f"{name} must be [seeds, queries] with at least 1 seed and 2 queries, got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds a value that is not finite")
    return values


def _parts(values: Array, groups: Sequence[NDArray[np.intp]]) -> _Parts:
    """Parts of C arrays at once: values [C, S, Q]."""
    count, seeds, _ = values.shape
    query_means = values.mean(axis=1)
    seed_means = np.zeros((count, seeds))
    query, cross = np.zeros(count), np.zeros(count)
    for group in groups:
        block, centre, n = values[:, :, group], query_means[:, group], len(group)
        means = block.mean(axis=2)
        seed_means += means / len(groups)
        query += centre.var(axis=1, ddof=1) / n / len(groups) ** 2
        if seeds > 1:
            # interaction = spread around the query's mean, less what the seed's own mean explains
            spread = ((block - centre[:, None]) ** 2).sum(axis=(1, 2)) - n * means.var(axis=1) * seeds
            cross += np.clip(spread, 0, None) / ((seeds - 1) * (n - 1)) / (seeds * n) / len(groups) ** 2
    seed = seed_means.var(axis=1, ddof=1) / seeds if seeds > 1 else np.zeros(count)
    return _Parts(seed_means.mean(axis=1), query_means, seed, query, cross, np.full(count, float(seeds - 1)))


def _joined(parts: Sequence[_Parts]) -> _Parts:
    names = ("mean", "queries", "seed", "query", "cross", "df")
    return _Parts(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


# --- the reference distribution ----------------------------------------------------------------------------------


def _weights(groups: Sequence[NDArray[np.intp]], queries: int) -> Array:
    """[Q] weights of the queries in the mean of the strata's means."""
    weights = np.zeros(queries)
    for group in groups:
        weights[group] = 1 / (len(group) * len(groups))
    return weights


def _sign_sums(columns: Array, resamples: int, generator: np.random.Generator) -> Array:
    """[resamples, K]: sums over the queries of [Q, K], each query's row with a sign of its own by a fair coin.

    Of a paired difference this is the randomisation test (per query the two strategies change sides); of a mean's
    residuals it is the wild bootstrap (Liu, Annals of Statistics 16, 1988). The coins are shared by all columns: one
    matrix product for a whole table, where `scipy.stats.permutation_test` (same distribution) takes one pass for each;
    and sums of a difference of columns are the difference of their sums.
    """
    queries, width = columns.shape
    drawn = np.empty((resamples, width))
    step = max(1, _CELLS // queries)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        packed = generator.integers(256, size=(size, -(-queries // 8)), dtype=np.uint8)
        coins = np.unpackbits(packed, axis=1, count=queries).astype(np.float64)
        drawn[start : start + size] = coins @ columns
    drawn *= 2
    drawn -= columns.sum(axis=0)
    return drawn


def _seed_noise(parts: _Parts, resamples: int, generator: np.random.Generator) -> Array:
    """[resamples, C] deviations of the mean that other seeds could give.

    Normal weights on the seeds' deviations (a multiplier bootstrap), studentised for how few the seeds are, which makes
    them Student's t; drawn as its equally spaced quantiles in random order, so that the far tail is not left to luck.
    Drawing the few seeds with replacement would give only a handful of values and too narrow an interval. Each
    comparison has an order of its own: variances from a few seeds err independently, which the largest of many shows.
    """
    noise = np.zeros((len(parts.mean), resamples))
    steps = (np.arange(resamples) + 0.5) / resamples
    for df in np.unique(parts.df[parts.df > 0]):
        rows = np.flatnonzero(parts.df == df)
        drawn = generator.permuted(np.tile(scipy.stats.t.ppf(steps, df), (len(rows), 1)), axis=1)
        noise[rows] = drawn * np.sqrt(parts.seed[rows])[:, None]
    return np.asarray(noise.T, dtype=np.float64)


@dataclass(frozen=True)
class _Test:
    """Arrays [C]: p-values and half widths of the intervals around `_Parts.mean`, dual to each other.

    p_models and `models`: of these models over queries. p_value: of the strategies. p_adjusted and `reach`: of the
    strategies and of all C at once.
    """

    p_models: Array
    p_value: Array
    p_adjusted: Array
    models: Array
    reach: Array


def _test(parts: _Parts, sums: Array, alpha: float, generator: np.random.Generator) -> _Test:
    """Tests and intervals from sign sums [R, C] of the (weighted) queries.

    To the sums, shrunk to the part that is not noise of the runs already, seed noise is added. A strategy has to pass
    both tests, without seed noise and with it: neither bound of the variance may be undercut. Over the table, each
    draw's largest ratio to its own half width is what an observed ratio is compared with.
    """
    both = np.abs(sums * parts.reproducible + _seed_noise(parts, len(sums), generator))
    alone, seen = np.abs(sums), np.abs(parts.mean) * (1 - 1e-9)  # sums in another order still count as ties
    p_models, p_both = ((1 + (drawn >= seen).sum(axis=0)) / (len(sums) + 1) for drawn in (alone, both))
    p_value, models = np.maximum(p_models, p_both), _exceeded(alone, alpha)
    half = np.maximum(models, _exceeded(both, alpha))
    most = np.divide(both, half, out=np.zeros_like(both), where=half > 0).max(axis=1, initial=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(half > 0, seen / half, np.where(seen > 0, np.inf, 0))
    joint = (1 + len(most) - np.searchsorted(np.sort(most), ratio)) / (len(most) + 1)
    stretch = max(1.0, float(_exceeded(most[:, None], alpha)[0]))
    return _Test(p_models, p_value, np.maximum(joint, p_value), models, stretch * half)


def _exceeded(drawn: Array, alpha: float) -> Array:
    """[C]: the value whose p-value just exceeds alpha; infinite where there are too few draws to reach alpha."""
    place = int(alpha * (len(drawn) + 1) * (1 + 1e-12))
    if place < 1:
        return np.full(drawn.shape[1], np.inf)
    return np.asarray(np.partition(drawn, len(drawn) - place, axis=0)[len(drawn) - place], dtype=np.float64)


def _interval(mean: float, half: float, level: float, bounds: tuple[float, float]) -> Interval:
    """Mean plus and minus the half width, rounded outwards, inside the scale."""
    low, high = (mean - half) / _STEP, (mean + half) / _STEP
    if np.isfinite(half):
        low, high = float(np.floor(low + 1e-6)), float(np.ceil(high - 1e-6))
    digits = round(-np.log10(_STEP))
    return Interval(max(bounds[0], round(low * _STEP, digits)), min(bounds[1], round(high * _STEP, digits)), level)


def _scale(values: Sequence[Array]) -> tuple[float, float]:
    """Where means can lie: [0, 1] where all values do."""
    inside = all(array.min() >= 0 and array.max() <= 1 for array in values)
    return (0.0, 1.0) if inside else (-np.inf, np.inf)


def _minimum_detectable(parts: _Parts, groups: Sequence[NDArray[np.intp]], alpha: float) -> Array:
    """[C]: (t at 1 - alpha/2 + t at 80 %) standard errors, Satterthwaite's degrees of freedom; wider of both tests."""
    query_df = float(sum(len(g) - 1 for g in groups))
    kept = parts.query * parts.reproducible**2
    total = parts.seed + kept
    below = parts.seed**2 / np.where(parts.df > 0, parts.df, 1) + kept**2 / query_df
    df = np.divide(total**2, below, out=np.full_like(total, query_df), where=below > 0)
    detectable = [
        (scipy.stats.t.ppf(1 - alpha / 2, nu) + scipy.stats.t.ppf(_POWER, nu)) * np.sqrt(variance)
        for variance, nu in ((total, df), (parts.query, query_df))
    ]
    return np.asarray(np.maximum(*detectable), dtype=np.float64)


# --- public ------------------------------------------------------------------------------------------------------


def summarise(
    values: NDArray[Any],
    *,
    generator: np.random.Generator,
    strata: NDArray[Any] | None = None,
    level: float = 0.95,
    resamples: int = 5000,
) -> Summary:
    """Mean, sd over seeds, and intervals of one strategy; see `summarise_table`."""
    table = {"values": values}
    return summarise_table(table, generator=generator, strata=strata, level=level, resamples=resamples)["values"]


def summarise_table(
    values: Mapping[str, NDArray[Any]],
    *,
    generator: np.random.Generator,
    strata: NDArray[Any] | None = None,
    level: float = 0.95,
    resamples: int = 5000,
) -> dict[str, Summary]:
    """Of each strategy mean, sd over seeds, and an interval over seeds and queries together; one batch for all.

    Args:
        values: name -> [S, Q] per-query values of S seeds, larger is better; S may differ.
        generator: every resample is drawn from it.
        strata: [Q] labels (FashionIQ: the category); the mean is then the unweighted mean of the strata's means.
        level: of the intervals, between 0 and 1; each is of its own mean alone.
        resamples: bootstrap draws.

    Raises:
        ValueError: a shape that is not as above, a value that is not finite, a stratum of one query, or an option out
            of range.
    """
    table = {name: _checked(name, array) for name, array in values.items()}
    _check_options(level=level, resamples=resamples)
    queries = next(iter(table.values())).shape[1]
    groups = _groups(strata, queries)
    parts = _joined([_parts(array[None], groups) for array in table.values()])
    centred = parts.queries.copy()
    for group in groups:
        centred[:, group] -= centred[:, group].mean(axis=1, keepdims=True)
    sums = _sign_sums((centred * _weights(groups, queries)).T, resamples, generator)
    both = sums * parts.reproducible + _seed_noise(parts, resamples, generator)
    models = _exceeded(np.abs(sums), 1 - level)
    half = np.maximum(models, _exceeded(np.abs(both), 1 - level))
    found = {}
    for i, (name, array) in enumerate(table.items()):
        sd = float(np.sqrt(parts.seed[i] * len(array))) if len(array) > 1 else float("nan")
        mean, bounds = float(parts.mean[i]), _scale([array])
        strategy, alone = (_interval(mean, float(width[i]), level, bounds) for width in (half, models))
        found[name] = Summary(mean, sd, strategy, alone, *array.shape)
    return found


def compare(
    values: NDArray[Any],
    baseline: NDArray[Any],
    *,
    generator: np.random.Generator,
    strata: NDArray[Any] | None = None,
    margin: float = 0.005,
    alpha: float = 0.05,
    resamples: int = 5000,
) -> Comparison:
    """One strategy against one baseline, both [S, Q] with the same seeds in the same order; see `compare_table`."""
    table = {"strategy": values, "baseline": baseline}
    return compare_table(
        table, "baseline", generator=generator, strata=strata, margin=margin, alpha=alpha, resamples=resamples
    )[0]


def compare_table(
    values: Mapping[str, NDArray[Any]],
    baseline: str,
    *,
    generator: np.random.Generator,
    strata: NDArray[Any] | None = None,
    seeds: Mapping[str, Sequence[int]] | None = None,
    margin: float = 0.005,
    alpha: float = 0.05,
    resamples: int = 5000,
) -> list[Comparison]:
    """Every strategy of a table against its baseline, with p-values and intervals for all of them at once.

    Args:
        values: name -> [S, Q] per-query values; the same Q queries in the same order for all.
        baseline: a name in `values`.
        generator: every resample is drawn from it.
        strata: [Q] labels (FashionIQ: the category); a mean is then the unweighted mean of the strata's means.
        seeds: name -> the seed of each row; a strategy and the baseline are paired on the seeds that both have. Left
            out, row i of all strategies is the same seed and S must be the same for all.
        margin: differences inside plus or minus this do not matter, in the unit of the values.
        alpha: level of the tests; the intervals have the level 1 - alpha.
        resamples: randomisations.

    Returns:
        One comparison for each strategy but the baseline, in the order of `values`.

    Raises:
        ValueError: values that do not fit together, that are not finite, or an option out of range.
    """
    _check_options(margin=margin, alpha=alpha, resamples=resamples)
    table, rows = _checked_table(values, baseline, seeds)
    others = [name for name in table if name != baseline]
    if not others:
        return []
    queries = table[baseline].shape[1]
    groups = _groups(strata, queries)
    paired = [_paired(table, rows, name, baseline) for name in others]
    parts = _joined([_parts(difference[None], groups) for difference in paired])
    sums = _sign_sums((parts.queries * _weights(groups, queries)).T, resamples, generator)
    found, effects = _test(parts, sums, alpha, generator), _effect_sizes(parts, groups)
    detectable = _minimum_detectable(parts, groups, alpha / len(others))
    ends = _scale(list(table.values()))
    bounds = (ends[0] - ends[1], ends[1] - ends[0])
    intervals, models = (
        [_interval(float(m), float(h), 1 - alpha, bounds) for m, h in zip(parts.mean, halves, strict=True)]
        for halves in (found.reach, found.models)
    )
    return [
        Comparison(
            name=name,
            baseline=baseline,
            difference=float(parts.mean[i]),
            interval=intervals[i],
            models=models[i],
            p_value=float(found.p_value[i]),
            p_models=float(found.p_models[i]),
            p_adjusted=float(found.p_adjusted[i]),
            effect_size=float(effects[i]),
            verdict=verdict(intervals[i].low, intervals[i].high, margin=margin),
            minimum_detectable=float(detectable[i]),
            seeds=len(paired[i]),
            unpaired_seeds=len(set(rows[name]) ^ set(rows[baseline])),
            queries=queries,
        )
        for i, name in enumerate(others)
    ]


def verdict(low: float, high: float, *, margin: float) -> Verdict:
    """The one word for a difference with the simultaneous interval [low, high].

    `better` and `worse`: the interval excludes 0. `equal`: it holds 0 and lies inside plus or minus the margin, so that
    a difference would not matter. `undecided`: neither a difference nor its absence is shown.
    """
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "equal" if -margin <= low and high <= margin else "undecided"


@dataclass(frozen=True)
class Effect:
    """One part of a difference, in the unit of the values; interval and p-value hold for all parts at once."""

    value: float
    interval: Interval
    p_adjusted: float


@dataclass(frozen=True)
class Pairs:
    """All differences between the strategies of a table.

    Attributes:
        names: in the order of the values.
        means: of each.
        differences: (a, b) -> mean of a minus mean of b, with an interval and a p-value for all pairs at once; each
            pair once, in the order of `names`.
    """

    names: tuple[str, ...]
    means: Mapping[str, float]
    differences: Mapping[tuple[str, str], Effect]

    def of(self, first: str, second: str) -> Effect:
        """`first` minus `second`, in either order."""
        if (first, second) in self.differences:
            return self.differences[first, second]
        found = self.differences[second, first]
        turned = Interval(-found.interval.high, -found.interval.low, found.interval.level)
        return Effect(-found.value, turned, found.p_adjusted)

    def beaten(self) -> dict[str, tuple[str, ...]]:
        """Name -> the names of those that beat it: the interval excludes 0. The margin has no part in it."""
        winners: dict[str, list[str]] = {name: [] for name in self.names}
        for (first, second), effect in self.differences.items():
            if effect.interval.low > 0:
                winners[second].append(first)
            elif effect.interval.high < 0:
                winners[first].append(second)
        return {name: tuple(found) for name, found in winners.items()}

    def letters(self) -> dict[str, str]:
        """Compact letter display: two names share a letter exactly where neither beats the other; 'a' is the best's.

        The letters are the maximal sets of names without a decided pair (Piepho 2004 gives the display; as a graph
        these sets are its maximal cliques).
        """
        import networkx

        beaten, order = self.beaten(), sorted(self.names, key=lambda name: -self.means[name])
        alike = networkx.Graph()
        alike.add_nodes_from(order)
        pairs = combinations(order, 2)
        alike.add_edges_from((a, b) for a, b in pairs if a not in beaten[b] and b not in beaten[a])
        sets = sorted(sorted(map(order.index, clique)) for clique in networkx.find_cliques(alike))
        return {
            name: "".join(_letter(number) for number, places in enumerate(sets) if place in places)
            for place, name in enumerate(order)
        }


def _letter(number: int) -> str:
    """0 -> a, 25 -> z, 26 -> A, 52 -> a'."""
    return "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[number % 52] + "'" * (number // 52)


def pairs(
    values: Mapping[str, NDArray[Any]],
    *,
    generator: np.random.Generator,
    strata: NDArray[Any] | None = None,
    alpha: float = 0.05,
    resamples: int = 5000,
) -> Pairs:
    """All pairs of a table, tested as in `compare_table` and adjusted over the pairs.

    `values` is as there: name -> [S, Q], the same seeds and queries for all.

    Raises:
        ValueError: as in `compare_table`.
    """
    _check_options(alpha=alpha, resamples=resamples)
    names = tuple(values)
    table, _ = _checked_table(values, names[0], None)
    stacked = np.stack([table[name] for name in names])
    groups = _groups(strata, stacked.shape[2])
    weights = _weights(groups, stacked.shape[2])
    means = {name: float(own @ weights) for name, own in zip(names, stacked.mean(axis=1), strict=True)}
    if len(names) < 2:
        return Pairs(names, means, {})
    first, second = np.array(list(combinations(range(len(names)), 2))).T
    step = max(1, _CELLS // stacked[0].size)
    blocks = [slice(start, start + step) for start in range(0, len(first), step)]
    parts = _joined([_parts(stacked[first[rows]] - stacked[second[rows]], groups) for rows in blocks])
    sums = _sign_sums((stacked.mean(axis=1) * weights).T, resamples, generator)
    found = _test(parts, sums[:, first] - sums[:, second], alpha, generator)
    ends = _scale(list(table.values()))
    bounds = (ends[0] - ends[1], ends[1] - ends[0])
    return Pairs(
        names,
        means,
        {
            (names[i], names[j]): Effect(float(mean), _interval(float(mean), float(half), 1 - alpha, bounds), float(p))
            for i, j, mean, half, p in zip(first, second, parts.mean, found.reach, found.p_adjusted, strict=True)
        },
    )


@dataclass(frozen=True)
class Factorial:
    """What the factors of a 2^k design contribute to the difference between all of them and none.

    Attributes:
        total: all factors on, less all off.
        shares: factor -> its Shapley value: what switching it on adds, averaged over all orders of switching. They sum
            to `total`: every interaction is divided equally among its factors.
        terms: set of factors -> its own term: of one factor what it adds alone; of several what they add together
            beyond all smaller sets (0 in an additive table). They sum to `total` too.
        seeds, queries: S and Q.
    """

    total: Effect
    shares: dict[str, Effect]
    terms: dict[tuple[str, ...], Effect]
    seeds: int
    queries: int


def factorial(
    cells: Mapping[frozenset[str], NDArray[Any]],
    *,
    generator: np.random.Generator,
    strata: NDArray[Any] | None = None,
    alpha: float = 0.05,
    resamples: int = 5000,
) -> Factorial:
    """Decompose the difference between a system and a plain one into factors and their interactions.

    A design with more levels (systems x negatives) is decomposed between two of its corners: a factor is on where the
    cell has the system's level, off where it has the plain one's.

    Args:
        cells: set of the factors that are on -> [S, Q] per-query values, same seeds and queries for all 2^k sets.
        generator: every resample is drawn from it.
        strata, alpha, resamples: as in `compare_table`; intervals and p-values hold for all parts at once.

    Raises:
        ValueError: a set is missing, or as in `compare_table`.
    """
    _check_options(alpha=alpha, resamples=resamples)
    factors = sorted(frozenset().union(*cells))
    subsets = [s for size in range(len(factors) + 1) for s in combinations(factors, size)]
    if missing := [s for s in subsets if frozenset(s) not in cells]:
        raise ValueError(f"a design of {len(factors)} factors needs {len(subsets)} cells; missing: {missing}")
    named = {" + ".join(s) or "none": cells[frozenset(s)] for s in subsets}
    table, _ = _checked_table(named, "none", None)
    # a set's own term: the alternating sum over its subsets (Harsanyi's dividend); a share: its terms, equally divided
    terms = np.array([[(-1) ** (len(t) - len(s)) if set(s) <= set(t) else 0 for s in subsets] for t in subsets[1:]])
    split = np.array([[(f in t) / len(t) for t in subsets[1:]] for f in factors])
    contrasts = np.concatenate([terms.sum(axis=0, keepdims=True), split @ terms, terms])
    effects = np.tensordot(contrasts, np.stack(list(table.values())), axes=1)
    seeds, queries = effects.shape[1:]
    groups = _groups(strata, queries)
    parts = _parts(effects, groups)
    sums = _sign_sums((parts.queries * _weights(groups, queries)).T, resamples, generator)
    found = _test(parts, sums, alpha, generator)
    every = [
        Effect(float(mean), _interval(float(mean), float(reach), 1 - alpha, (-np.inf, np.inf)), float(p))
        for mean, reach, p in zip(parts.mean, found.reach, found.p_adjusted, strict=True)
    ]
    shares, own = every[1 : 1 + len(factors)], every[1 + len(factors) :]
    return Factorial(
        every[0], dict(zip(factors, shares, strict=True)), dict(zip(subsets[1:], own, strict=True)), seeds, queries
    )


def _check_options(**options: float) -> None:
    for name, value in options.items():
        ok = value >= 1 if name == "resamples" else value >= 0 if name == "margin" else 0 < value < 1
        if not ok:
            want = {"resamples": "at least 1", "margin": "at least 0"}.get(name, "between 0 and 1")
            raise ValueError(f"{name} must be {want}, got {value!r}")


def _checked_table(
    values: Mapping[str, NDArray[Any]], baseline: str, seeds: Mapping[str, Sequence[int]] | None
) -> tuple[dict[str, Array], dict[str, list[int]]]:
    """The values as float64, and the seeds of the rows of each."""
    if baseline not in values:
        raise ValueError(f"baseline '{baseline}' is not in the table: {', '.join(values)}")
    table = {name: _checked(f"'{name}'", array) for name, array in values.items()}
    if seeds is not None and set(table) - set(seeds):
        raise ValueError(f"seeds are missing for {', '.join(sorted(set(table) - set(seeds)))}")
    rows = {name: list(range(len(array)) if seeds is None else seeds[name]) for name, array in table.items()}
    for name, array in table.items():
        if array.shape[1] != table[baseline].shape[1]:
            raise ValueError(f"'{name}' has {array.shape[1]} queries, '{baseline}' has {table[baseline].shape[1]}")
        if seeds is None and len(array) != len(table[baseline]):
            raise ValueError(f"'{name}' has {len(array)} seeds, '{baseline}' has {len(table[baseline])}: pass seeds=")
        if len(rows[name]) != len(array) or len(set(rows[name])) != len(array):
            raise ValueError(f"seeds of '{name}' must be {len(array)} different numbers, got {rows[name]}")
        if not set(rows[name]) & set(rows[baseline]):
            raise ValueError(f"'{name}' and '{baseline}' have no seed in common")
    return table, rows


def _paired(table: Mapping[str, Array], rows: Mapping[str, list[int]], name: str, baseline: str) -> Array:
    """[common seeds, Q] differences."""
    common = sorted(set(rows[name]) & set(rows[baseline]))
    first, second = ([rows[key].index(seed) for seed in common] for key in (name, baseline))
    return table[name][first] - table[baseline][second]


def _effect_sizes(parts: _Parts, groups: Sequence[NDArray[np.intp]]) -> Array:
    spread = np.zeros(len(parts.mean))
    for group in groups:
        within = (parts.queries[:, group] - parts.mean[:, None]) ** 2
        spread += within.sum(axis=1) / (len(group) - 1) / len(groups)
    ratio = np.divide(parts.mean, np.sqrt(spread), out=np.zeros_like(spread), where=spread > 0)
    return np.where((spread == 0) & (parts.mean != 0), np.copysign(np.inf, parts.mean), ratio)


# --- calibration -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Simulation:
    """A population of runs to simulate: hit or miss of each query, by a logit that is the sum of normal terms.

    Attributes:
        queries: Q.
        recalls: expected recall at each cutoff, smallest cutoff first; a value is the mean of the (nested) hits.
        seed_sd: sd over seeds of a run's recall, in the unit of recall (0.003 = 0.3 points).
        difficulty_sd: sd over queries of the logit, common to all runs; 3 leaves few queries undecided.
        preference_sd: sd of a strategy's own, reproducible logit for each query: strategies that differ by query though
            not on average. 0: a strategy against itself.
        seed_spread: how many times the seed_sd of the baseline is the other strategy's.
    """

    queries: int
    recalls: tuple[float, ...] = (0.3,)
    seed_sd: float = 0.003
    difficulty_sd: float = 3.0
    preference_sd: float = 0.0
    seed_spread: float = 1.0

    def draw(self, count: int, seeds: int, effect: float, generator: np.random.Generator) -> tuple[Array, Array]:
        """`count` pairs (strategy, baseline), each [count, seeds, Q], whose means truly differ by `effect`."""
        difficulty = self.difficulty_sd * generator.standard_normal((count, 1, self.queries))
        return (
            self._runs(difficulty, seeds, effect, self.seed_spread, generator),
            self._runs(difficulty, seeds, 0.0, 1.0, generator),
        )

    def _runs(
        self, difficulty: Array, seeds: int, effect: float, spread: float, generator: np.random.Generator
    ) -> Array:
        own = self.preference_sd * generator.standard_normal(difficulty.shape)
        run = generator.standard_normal((len(difficulty), seeds, 1))
        luck = scipy.special.logit(generator.random((len(difficulty), seeds, self.queries)))
        values = np.zeros_like(luck)
        for recall in self.recalls:
            fixed_sd = float(np.hypot(self.difficulty_sd, self.preference_sd))
            shift, run_sd = _logits(fixed_sd, recall + effect, spread * self.seed_sd)
            values += luck < shift + difficulty + own + run_sd * run
        return values / len(self.recalls)


@lru_cache(maxsize=256)
def _logits(fixed_sd: float, recall: float, seed_sd: float) -> tuple[float, float]:
    """Mean logit, and its sd over runs, that give the recall and its sd over seeds where queries add `fixed_sd`."""
    steps = scipy.stats.norm.ppf((np.arange(2000) + 0.5) / 2000)

    def mean_logit(sd: float) -> float:
        return float(scipy.optimize.brentq(lambda x: scipy.special.expit(x + sd * steps).mean() - recall, -60, 60))

    hit = scipy.special.expit(mean_logit(fixed_sd) + fixed_sd * steps)
    run_sd = seed_sd / float((hit * (1 - hit)).mean())
    return mean_logit(float(np.hypot(fixed_sd, run_sd))), run_sd


@dataclass(frozen=True)
class Calibration:
    """What the test and the interval do over many simulated comparisons.

    Attributes:
        rejection: share of comparisons without a true difference whose p-value is at most alpha (so that their interval
            excludes 0).
        sd: of that share if its true value were alpha.
        power: true difference -> share of comparisons found different with the right sign.
        simulations: comparisons behind each share.
        alpha: level of the test; the interval has the level 1 - alpha.
    """

    rejection: float
    sd: float
    power: dict[float, float]
    simulations: int
    alpha: float

    @property
    def ok(self) -> bool:
        """Whether it rejects at most alpha + 2 sd."""
        return self.rejection <= self.alpha + 2 * self.sd


def calibrate(
    source: Simulation | NDArray[Any],
    *,
    seeds: int,
    generator: np.random.Generator,
    effects: Sequence[float] = (0.01, 0.02),
    simulations: int = 1000,
    alpha: float = 0.05,
    resamples: int = 2000,
) -> Calibration:
    """Level and power of one comparison (no correction), by simulation.

    Args:
        source: a Simulation, or [R, Q] values of R >= 2 * seeds runs of one strategy: each comparison then sets a
            random half of 2 * seeds of them against the other half, on queries drawn with replacement.
        seeds: runs on each side.
        generator: everything is drawn from it.
        effects: true differences at which the power is measured, not 0. With runs as the source, each value of one side
            is raised by it.
        simulations: comparisons for each figure.
        alpha: level.
        resamples: randomisations for each comparison.

    Raises:
        ValueError: too few runs, values that are not finite, or an option out of range.
    """
    _check_options(alpha=alpha, resamples=resamples)
    if seeds < 1 or simulations < 1 or 0 in effects:
        raise ValueError(
            f"want seeds and simulations >= 1 and effects other than 0, got {seeds}, {simulations}, {effects}"
        )
    if not isinstance(source, Simulation):
        source = _checked("source", source)
        if len(source) < 2 * seeds:
            raise ValueError(f"{seeds} seeds on each side need {2 * seeds} runs, got {len(source)}")
    queries = source.queries if isinstance(source, Simulation) else source.shape[1]
    groups = _groups(None, queries)
    block = max(1, min(50, simulations, _CELLS // (seeds * queries)))  # blocks share their coins: keep them small
    found: dict[float, list[NDArray[np.bool_]]] = {0.0: [], **{effect: [] for effect in effects}}
    for effect, hits in found.items():
        for rows in (slice(s, min(s + block, simulations)) for s in range(0, simulations, block)):
            size = rows.stop - rows.start
            if isinstance(source, Simulation):
                first, second = source.draw(size, seeds, effect, generator)
            else:
                first, second = _split_runs(source, size, seeds, effect, generator)
            parts = _parts(first - second, groups)
            right_sign = (parts.mean * effect > 0) | (effect == 0)
            each = _test(parts, _sign_sums((parts.queries / queries).T, resamples, generator), alpha, generator)
            hits.append((each.p_value <= alpha) & right_sign)
    shares = {effect: float(np.concatenate(hits).mean()) for effect, hits in found.items()}
    sd = float(np.sqrt(alpha * (1 - alpha) / simulations))
    return Calibration(shares.pop(0.0), sd, shares, simulations, alpha)


def _split_runs(
    runs: Array, count: int, seeds: int, effect: float, generator: np.random.Generator
) -> tuple[Array, Array]:
    """`count` random splits of 2 * seeds of the runs into two sides, [count, seeds, Q] each, on resampled queries."""
    order = generator.permuted(np.tile(np.arange(len(runs)), (count, 1)), axis=1)
    columns = generator.integers(runs.shape[1], size=(count, 1, runs.shape[1]))
    first, second = (runs[order[:, side, None], columns] for side in (slice(0, seeds), slice(seeds, 2 * seeds)))
    return first + effect, second
