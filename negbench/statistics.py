"""Whether one strategy is better than another: intervals and tests on per-query values that vary by seed and by query.

Everything here takes `values[seed, query]`: hit at 10, average precision, or any other per-query value, larger is
better. A strategy's mean would change with other queries and with other seeds, and the seeds are few, so both sources
enter every interval and every p-value. docs/statistics.md says why, and prints the calibration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

Array = NDArray[np.float64]
Verdict = Literal["better", "worse", "tied", "underpowered"]

_CELLS = 2**23  # doubles in one working block (64 MB)
_POWER = 0.8  # of the minimum detectable difference


@dataclass(frozen=True)
class Interval:
    """An interval [low, high] that covers the true value in a share `level` of repetitions."""

    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Summary:
    """One strategy: mean over seeds and queries, sd over seeds of the per-seed mean (nan for one seed), interval.

    With one seed the interval speaks of that one model: it knows the spread over queries only.
    """

    mean: float
    sd: float
    interval: Interval
    seeds: int
    queries: int


@dataclass(frozen=True)
class Comparison:
    """One strategy against a baseline.

    Attributes:
        name: the strategy.
        baseline: the strategy that it is compared with.
        difference: mean of strategy minus baseline, in the unit of the values (0.01 = one point of recall).
        interval: of the difference.
        p_value: two-sided, of "no difference in expectation over seeds and queries"; with one seed it is p_models.
        p_models: two-sided, of "no difference between these very models over queries": the paired randomisation test.
        p_adjusted: p_value after Holm's correction over the table.
        effect_size: difference / sd over queries of the per-query difference (averaged over seeds).
        verdict: `tied`: the interval lies inside plus or minus the margin, whatever the p-value; else `better` or
            `worse`: p_adjusted < alpha and the interval excludes 0; else `underpowered`.
        minimum_detectable: approximate true difference that would be found with a power of 80 % at the level of Holm's
            first step, alpha / table size, with the variances seen here.
        seeds: seeds that both have; these alone are compared.
        unpaired_seeds: seeds that only one of the two has.
        queries: Q.
    """

    name: str
    baseline: str
    difference: float
    interval: Interval
    p_value: float
    p_models: float
    p_adjusted: float
    effect_size: float
    verdict: Verdict
    minimum_detectable: float
    seeds: int
    unpaired_seeds: int
    queries: int

    @property
    def single_seed(self) -> bool:
        """True where one seed was compared: the verdict is then about these two models, not about the strategies."""
        return self.seeds == 1


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


# --- reference distributions -------------------------------------------------------------------------------------


def _flips(values: Array, resamples: int, generator: np.random.Generator) -> Iterator[tuple[slice, Array]]:
    """Blocks of [resamples, C]: sums over queries whose two strategies were exchanged or not, by a fair coin.

    The coins are shared by all C comparisons: one matrix product for a whole table, where
    `scipy.stats.permutation_test` (same distribution) takes one pass for each.
    """
    queries = values.shape[1]
    total = values.sum(axis=1)
    for rows in _blocks(resamples, queries):
        size = rows.stop - rows.start
        packed = generator.integers(256, size=(size, -(-queries // 8)), dtype=np.uint8)
        coins = np.unpackbits(packed, axis=1, count=queries).astype(np.float64)
        yield rows, 2 * (coins @ values.T) - total


def _query_bootstrap(
    parts: _Parts, groups: Sequence[NDArray[np.intp]], resamples: int, generator: np.random.Generator
) -> Array:
    """[resamples, C] deviations of the mean when the queries are drawn again, with replacement, inside each stratum."""
    drawn = np.zeros((resamples, len(parts.mean)))
    for group in groups:
        n, centred = len(group), parts.queries[:, group] - parts.queries[:, group].mean(axis=1, keepdims=True)
        for rows in _blocks(resamples, n):
            size = rows.stop - rows.start
            index = generator.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
            counts = np.bincount(index.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)
            drawn[rows] += counts @ centred.T / (n * len(groups))
    return drawn


def _seed_noise(parts: _Parts, resamples: int, generator: np.random.Generator) -> Array:
    """[resamples, C] deviations of the mean that other seeds could give.

    Normal weights on the seeds' deviations (a multiplier bootstrap), studentised for how few the seeds are, which makes
    them Student's t; drawn as its equally spaced quantiles in random order, so that the far tail is not left to luck.
    Drawing the few seeds with replacement would give only a handful of values and too narrow an interval.
    """
    noise = np.zeros((resamples, len(parts.mean)))
    steps = generator.permutation((np.arange(resamples) + 0.5) / resamples)
    for df in np.unique(parts.df[parts.df > 0]):
        columns = parts.df == df
        noise[:, columns] = stats.t.ppf(steps, df)[:, None] * np.sqrt(parts.seed[columns])
    return noise


def _blocks(rows: int, width: int) -> Iterator[slice]:
    step = max(1, _CELLS // width)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def _p_values(
    parts: _Parts, groups: Sequence[NDArray[np.intp]], resamples: int, generator: np.random.Generator
) -> tuple[Array, Array]:
    """Two-sided p-values [C]: of these models over queries, and of the strategies over seeds and queries.

    The first is the paired randomisation test. The second adds seed noise to the same randomised differences, of which
    it keeps the part that is not noise of the runs already. A strategy has to pass both: neither bound of the variance
    may be undercut.
    """
    weights = np.zeros(parts.queries.shape[1])
    for group in groups:
        weights[group] = 1 / (len(group) * len(groups))
    noise = _seed_noise(parts, resamples, generator)
    seen = np.abs(parts.mean) * (1 - 1e-9)  # sums in another order still count as ties
    models, strategies = np.ones(len(seen)), np.ones(len(seen))
    for rows, flipped in _flips(parts.queries * weights, resamples, generator):
        models += (np.abs(flipped) >= seen).sum(axis=0)
        strategies += (np.abs(flipped * parts.reproducible + noise[rows]) >= seen).sum(axis=0)
    models, strategies = models / (resamples + 1), strategies / (resamples + 1)
    return models, np.maximum(models, strategies)


def _intervals(
    parts: _Parts,
    groups: Sequence[NDArray[np.intp]],
    resamples: int,
    generator: np.random.Generator,
    level: float,
) -> tuple[Array, Array]:
    """Low and high [C]: the wider, on each side, of the interval over queries and that over seeds and queries."""
    queries = _query_bootstrap(parts, groups, resamples, generator)
    both = queries * parts.reproducible + _seed_noise(parts, resamples, generator)
    ends = [(1 - level) / 2, (1 + level) / 2]
    of_queries, of_both = np.quantile(queries, ends, axis=0), np.quantile(both, ends, axis=0)
    return parts.mean + np.minimum(of_queries[0], of_both[0]), parts.mean + np.maximum(of_queries[1], of_both[1])


def _minimum_detectable(parts: _Parts, groups: Sequence[NDArray[np.intp]], alpha: float) -> Array:
    """[C]: (t at 1 - alpha/2 + t at 80 %) standard errors, Satterthwaite's degrees of freedom; wider of both tests."""
    query_df = float(sum(len(g) - 1 for g in groups))
    kept = parts.query * parts.reproducible**2
    total = parts.seed + kept
    below = parts.seed**2 / np.where(parts.df > 0, parts.df, 1) + kept**2 / query_df
    df = np.divide(total**2, below, out=np.full_like(total, query_df), where=below > 0)
    detectable = [
        (stats.t.ppf(1 - alpha / 2, nu) + stats.t.ppf(_POWER, nu)) * np.sqrt(variance)
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
    """Mean, sd over seeds, and a bootstrap interval over seeds and queries together.

    Args:
        values: [S, Q] per-query values of S seeds, larger is better.
        generator: every resample is drawn from it.
        strata: [Q] labels (FashionIQ: the category); the mean is then the unweighted mean of the strata's means.
        level: of the interval, between 0 and 1.
        resamples: bootstrap draws.

    Raises:
        ValueError: a shape that is not as above, a value that is not finite, a stratum of one query, or an option out
            of range.
    """
    values = _checked("values", values)
    _check_options(level=level, resamples=resamples)
    groups = _groups(strata, values.shape[1])
    parts = _parts(values[None], groups)
    low, high = _intervals(parts, groups, resamples, generator, level)
    sd = float(np.sqrt(parts.seed[0] * len(values))) if len(values) > 1 else float("nan")
    return Summary(float(parts.mean[0]), sd, Interval(float(low[0]), float(high[0]), level), *values.shape)


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
    pool_seeds: bool = False,
) -> list[Comparison]:
    """Every strategy of a table against its baseline, with Holm's correction over the table.

    Args:
        values: name -> [S, Q] per-query values; the same Q queries in the same order for all.
        baseline: a name in `values`.
        generator: every resample is drawn from it.
        strata: [Q] labels (FashionIQ: the category); a mean is then the unweighted mean of the strata's means.
        seeds: name -> the seed of each row; a strategy and the baseline are paired on the seeds that both have. Left
            out, row i of all strategies is the same seed and S must be the same for all.
        margin: differences inside plus or minus this do not matter, in the unit of the values.
        alpha: level of the tests; the intervals have the level 1 - alpha.
        resamples: randomisations and bootstrap draws; no p-value is below 1 / (resamples + 1).
        pool_seeds: estimate the variance over seeds from the whole table instead of each pair alone. Far more power
            with 3 to 5 seeds, and right only where all strategies vary alike from seed to seed. Needs 2 seeds common
            to all.

    Returns:
        One Comparison for each strategy but the baseline, in the order of `values`.

    Raises:
        ValueError: an unknown baseline, shapes or seeds that do not fit, a value that is not finite, a stratum of one
            query, or an option out of range.
    """
    _check_options(alpha=alpha, margin=margin, resamples=resamples)
    table, rows = _checked_table(values, baseline, seeds)
    groups = _groups(strata, table[baseline].shape[1])
    others = [name for name in table if name != baseline]
    if not others:
        return []
    paired = [_paired(table, rows, name, baseline) for name in others]
    parts = _joined([_parts(difference[None], groups) for difference in paired])
    if pool_seeds:
        parts = _with_pooled_seeds(parts, table, rows, groups, paired)
    p_models, p_values = _p_values(parts, groups, resamples, generator)
    low, high = _intervals(parts, groups, resamples, generator, 1 - alpha)
    adjusted, effects = holm(p_values), _effect_sizes(parts, groups)
    detectable = _minimum_detectable(parts, groups, alpha / len(others))
    return [
        Comparison(
            name=name,
            baseline=baseline,
            difference=float(parts.mean[i]),
            interval=Interval(float(low[i]), float(high[i]), 1 - alpha),
            p_value=float(p_values[i]),
            p_models=float(p_models[i]),
            p_adjusted=float(adjusted[i]),
            effect_size=float(effects[i]),
            verdict=verdict(float(adjusted[i]), float(low[i]), float(high[i]), margin=margin, alpha=alpha),
            minimum_detectable=float(detectable[i]),
            seeds=len(paired[i]),
            unpaired_seeds=len(set(rows[name]) ^ set(rows[baseline])),
            queries=table[name].shape[1],
        )
        for i, name in enumerate(others)
    ]


def verdict(p_adjusted: float, low: float, high: float, *, margin: float, alpha: float) -> Verdict:
    """The one word for a difference with the interval [low, high].

    `tied` comes first: a difference that is surely below the margin does not matter, also where it is surely not 0.
    """
    if -margin <= low and high <= margin:
        return "tied"
    if p_adjusted < alpha and low > 0:
        return "better"
    if p_adjusted < alpha and high < 0:
        return "worse"
    return "underpowered"


def holm(p_values: NDArray[Any] | Sequence[float]) -> Array:
    """Adjusted p-values [n] by Holm's step-down procedure (Scand. J. Statist. 6, 1979); scipy has none."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def letters(
    values: Mapping[str, NDArray[Any]],
    *,
    generator: np.random.Generator,
    strata: NDArray[Any] | None = None,
    alpha: float = 0.05,
    resamples: int = 5000,
) -> dict[str, tuple[str, str]]:
    """Letters for a table: name -> (its own letter, the letters of those that it beats).

    All pairs are tested as in `compare_table`, with Holm's correction over the pairs; the margin has no part in it.
    `values` is as there: name -> [S, Q], the same seeds and queries for all. After z come aa, ab, ...; beaten ones are
    separated by a space.

    Raises:
        ValueError: as in `compare_table`.
    """
    _check_options(alpha=alpha, resamples=resamples)
    names = list(values)
    own = {name: _letter(i) for i, name in enumerate(names)}
    if len(names) < 2:
        return {name: (own[name], "") for name in names}
    table, rows = _checked_table(values, names[0], None)
    groups = _groups(strata, table[names[0]].shape[1])
    pairs = list(combinations(names, 2))
    parts = _joined([_parts(_paired(table, rows, first, second)[None], groups) for first, second in pairs])
    adjusted = holm(_p_values(parts, groups, resamples, generator)[1])
    beaten: dict[str, list[str]] = {name: [] for name in names}
    for (first, second), mean, p in zip(pairs, parts.mean, adjusted, strict=True):
        if p < alpha:
            winner, loser = (first, second) if mean > 0 else (second, first)
            beaten[winner].append(loser)
    return {name: (own[name], " ".join(own[b] for b in sorted(beaten[name], key=names.index))) for name in names}


def _letter(index: int) -> str:
    head, tail = divmod(index, 26)
    return (_letter(head - 1) if head else "") + chr(ord("a") + tail)


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


def _with_pooled_seeds(
    parts: _Parts,
    table: Mapping[str, Array],
    rows: Mapping[str, list[int]],
    groups: Sequence[NDArray[np.intp]],
    paired: Sequence[Array],
) -> _Parts:
    """The same parts with the variance over seeds from the residuals of an additive strategies x seeds table."""
    common = sorted(set.intersection(*(set(r) for r in rows.values())))
    if len(common) < 2:
        raise ValueError(f"pool_seeds needs 2 seeds that all strategies have, got {len(common)}")
    means = np.array(
        [
            np.mean(
                [table[name][[rows[name].index(s) for s in common]][:, group].mean(axis=1) for group in groups], axis=0
            )
            for name in table
        ]
    )
    residuals = means - means.mean(axis=1, keepdims=True) - means.mean(axis=0) + means.mean()
    df = (means.shape[0] - 1) * (means.shape[1] - 1)
    variance = 2 * float((residuals**2).sum()) / df  # of the difference of two strategies in one seed
    seed = np.array([variance / len(difference) for difference in paired])
    return _Parts(parts.mean, parts.queries, seed, parts.query, parts.cross, np.full_like(parts.df, float(df)))


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
        luck = special.logit(generator.random((len(difficulty), seeds, self.queries)))
        values = np.zeros_like(luck)
        for recall in self.recalls:
            fixed_sd = float(np.hypot(self.difficulty_sd, self.preference_sd))
            shift, run_sd = _logits(fixed_sd, recall + effect, spread * self.seed_sd)
            values += luck < shift + difficulty + own + run_sd * run
        return values / len(self.recalls)


@lru_cache(maxsize=256)
def _logits(fixed_sd: float, recall: float, seed_sd: float) -> tuple[float, float]:
    """Mean logit, and its sd over runs, that give the recall and its sd over seeds where queries add `fixed_sd`."""
    steps = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)

    def mean_logit(sd: float) -> float:
        return float(optimize.brentq(lambda x: special.expit(x + sd * steps).mean() - recall, -60, 60))

    hit = special.expit(mean_logit(fixed_sd) + fixed_sd * steps)
    run_sd = seed_sd / float((hit * (1 - hit)).mean())
    return mean_logit(float(np.hypot(fixed_sd, run_sd))), run_sd


@dataclass(frozen=True)
class Calibration:
    """What the test and the interval do over many simulated comparisons.

    Attributes:
        rejection: share of comparisons without a true difference whose p-value is below alpha.
        sd: of that share if its true value were alpha.
        coverage: share of those comparisons whose interval holds 0.
        power: true difference -> share of comparisons found different with the right sign.
        simulations: comparisons behind each share.
        alpha: level of the test; the interval has the level 1 - alpha.
    """

    rejection: float
    sd: float
    coverage: float
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
    """Level, coverage and power of one comparison (no correction), by simulation.

    Args:
        source: a Simulation, or [R, Q] values of R >= 2 * seeds runs of one strategy: each comparison then sets a
            random half of 2 * seeds of them against the other half, on queries drawn with replacement.
        seeds: runs on each side.
        generator: everything is drawn from it.
        effects: true differences at which the power is measured, not 0. With runs as the source, each value of one side
            is raised by it.
        simulations: comparisons for each figure.
        alpha: level.
        resamples: randomisations and bootstrap draws for each comparison.

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
    covered = 0
    for effect, hits in found.items():
        for rows in (slice(s, min(s + block, simulations)) for s in range(0, simulations, block)):
            size = rows.stop - rows.start
            if isinstance(source, Simulation):
                first, second = source.draw(size, seeds, effect, generator)
            else:
                first, second = _split_runs(source, size, seeds, effect, generator)
            parts = _parts(first - second, groups)
            right_sign = (parts.mean * effect > 0) | (effect == 0)
            hits.append((_p_values(parts, groups, resamples, generator)[1] < alpha) & right_sign)
            if effect == 0:
                low, high = _intervals(parts, groups, resamples, generator, 1 - alpha)
                covered += int(((low <= 0) & (high >= 0)).sum())
    shares = {effect: float(np.concatenate(hits).mean()) for effect, hits in found.items()}
    sd = float(np.sqrt(alpha * (1 - alpha) / simulations))
    return Calibration(shares.pop(0.0), sd, covered / simulations, shares, simulations, alpha)


def _split_runs(
    runs: Array, count: int, seeds: int, effect: float, generator: np.random.Generator
) -> tuple[Array, Array]:
    """`count` random splits of 2 * seeds of the runs into two sides, [count, seeds, Q] each, on resampled queries."""
    order = generator.permuted(np.tile(np.arange(len(runs)), (count, 1)), axis=1)
    columns = generator.integers(runs.shape[1], size=(count, 1, runs.shape[1]))
    first, second = (runs[order[:, side, None], columns] for side in (slice(0, seeds), slice(seeds, 2 * seeds)))
    return first + effect, second
