"""Measures over several tables: interquartile mean, performance profile, probability of improvement, Elo, ranks.

Scores are arrays [..., K, S, T]: strategies, seeds, tables, higher is better. The first three measures are as Agarwal
et al. define them (Deep Reinforcement Learning at the Edge of the Statistical Precipice, NeurIPS 2021; rliable); Elo
and win rates are TabArena's (Erickson et al., 2025), ranks and the critical difference Demsar's (JMLR 7, 2006).
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from negbench.statistics import Effect, Interval, Pairs

Array = NDArray[np.float64]

DIGITS = 10  # of means: those of the same runs in another order still tie
ANCHOR = 1000.0  # Elo of the baseline
_SCALE = 400.0  # Elo points of odds 10 to 1
_DRAWN = 1.0  # drawn games that every pair is given beside its own: a strategy that won all has a finite Elo


def scaled(scores: Array) -> Array:
    """Each table's scores on a scale of its own: 0 is the mean of its worst strategy, 1 that of its best.

    Single runs lie outside. Where all means of a table are equal, all its scores are 0.5.
    """
    means = np.round(scores.mean(axis=-2, keepdims=True), DIGITS)
    low, high = means.min(axis=-3, keepdims=True), means.max(axis=-3, keepdims=True)
    span = np.broadcast_to(high - low, scores.shape)
    found = np.divide(scores - low, span, out=np.full(scores.shape, 0.5), where=span > 0)
    return np.asarray(found, dtype=np.float64)


def interquartile_mean(scores: Array) -> Array:
    """[..., K]: mean of the middle half of a strategy's S x T runs (25 % trimmed at either end)."""
    flat = scores.reshape(*scores.shape[:-2], -1)
    return np.asarray(scipy.stats.trim_mean(flat, 0.25, axis=-1), dtype=np.float64)


def profile(scores: Array, thresholds: Array) -> Array:
    """[..., K, N]: share of a strategy's runs, over all tables, that score above each of N thresholds."""
    flat = scores.reshape(*scores.shape[:-2], 1, -1)
    return np.asarray((flat > thresholds[:, None]).mean(axis=-1), dtype=np.float64)


def improvement(scores: Array) -> Array:
    """[..., K, K]: probability that a run of the first scores above one of the second, mean over tables; ties half."""
    mine, other = scores[..., :, None, :, None, :], scores[..., None, :, None, :, :]
    won = (mine > other) + 0.5 * (mine == other)
    return np.asarray(won.mean(axis=(-3, -2, -1)), dtype=np.float64)


def wins(scores: Array) -> Array:
    """[..., T, K, K]: share of a table's seeds in which the first beats the second, seed by seed; ties half."""
    mine, other = scores[..., :, None, :, :], scores[..., None, :, :, :]
    won = ((mine > other) + 0.5 * (mine == other)).mean(axis=-2)
    return np.asarray(np.moveaxis(won, -1, -3), dtype=np.float64)


def elo(won: Array, anchor: int, *, rounds: int = 10_000, tolerance: float = 1e-10) -> Array:
    """[..., K] Elo ratings of the Bradley-Terry model with the highest likelihood; the anchor's is 1000.

    Minorise-maximise steps of Hunter (Annals of Statistics 32, 2004). Every pair has one drawn game more.

    Args:
        won: [..., K, K] games that the first won against the second; draws count half for both.
        anchor: number of the strategy whose rating is fixed.
        rounds: steps at most.
        tolerance: largest change of a strength's logarithm at which it stops.
    """
    count = won.shape[-1]
    other = ~np.eye(count, dtype=bool)
    games = np.where(other, won + 0.5 * _DRAWN, 0.0)
    played, gained = games + games.swapaxes(-1, -2), games.sum(axis=-1)
    strength = np.ones(gained.shape)
    for _ in range(rounds):
        following = gained / (played / (strength[..., :, None] + strength[..., None, :])).sum(axis=-1)
        following /= np.exp(np.log(following).mean(axis=-1, keepdims=True))
        moved = np.abs(np.log(following / strength)).max(initial=0)
        strength = following
        if moved < tolerance:
            break
    rating = _SCALE * np.log10(strength)
    return np.asarray(ANCHOR + rating - rating[..., [anchor]], dtype=np.float64)


def win_rates(won: Array) -> Array:
    """[..., K]: mean share of won games against each other strategy, from `wins` averaged over tables."""
    count = won.shape[-1]
    others = np.where(np.eye(count, dtype=bool), 0.0, won)
    return np.asarray(others.sum(axis=-1) / max(1, count - 1), dtype=np.float64)


# --- ranks -------------------------------------------------------------------------------------------------------


def table_ranks(scores: Array) -> Array:
    """[T, K]: rank of each strategy's mean over seeds in each table, 1 is best; ties share their mean rank."""
    return np.asarray(scipy.stats.rankdata(-np.round(scores.mean(axis=1), DIGITS), axis=0).T, dtype=np.float64)


def friedman(ranks: Array) -> float:
    """p-value of "all strategies rank alike" from ranks [T, K]; NaN for fewer than 3 strategies or 2 tables."""
    if ranks.shape[1] < 3 or len(ranks) < 2 or (ranks == ranks[:, :1]).all():
        return float("nan")
    return float(scipy.stats.friedmanchisquare(*ranks.T).pvalue)


def critical_difference(strategies: int, tables: int, alpha: float) -> float:
    """Nemenyi's: average ranks that differ by more differ for all pairs at once at level alpha (Demsar, sec. 3.2.2)."""
    quantile = float(scipy.stats.studentized_range.ppf(1 - alpha, strategies, np.inf)) / np.sqrt(2)
    return float(quantile * np.sqrt(strategies * (strategies + 1) / (6 * tables)))


def rank_pairs(names: tuple[str, ...], ranks: Array, alpha: float) -> Pairs:
    """Nemenyi's test of all pairs as differences of average ranks, turned so that higher is better.

    An interval is a difference plus and minus the critical difference, so it excludes 0 where the test decides.
    """
    means, (tables, count) = ranks.mean(axis=0), ranks.shape
    reach = critical_difference(count, tables, alpha)
    error = np.sqrt(count * (count + 1) / (12 * tables))
    found = {}
    for i in range(count):
        for j in range(i + 1, count):
            gap = float(means[j] - means[i])
            p = float(scipy.stats.studentized_range.sf(abs(gap) / error, count, np.inf))
            found[names[i], names[j]] = Effect(gap, Interval(gap - reach, gap + reach, 1 - alpha), p)
    return Pairs(names, {name: -float(mean) for name, mean in zip(names, means, strict=True)}, found)


# --- intervals ---------------------------------------------------------------------------------------------------


def resampled_seeds(scores: Array, count: int, generator: np.random.Generator) -> Array:
    """[count, K, S, T]: in each table S seeds drawn again with replacement, the same ones for all strategies."""
    _, seeds, tables = scores.shape
    rows = generator.integers(seeds, size=(count, seeds, tables))
    return np.stack([scores[:, row, np.arange(tables)] for row in rows])


def resampled_tables(won: Array, count: int, generator: np.random.Generator) -> Array:
    """[count, K, K]: games of T tables drawn with replacement from those of `wins` [T, K, K]."""
    weights = generator.multinomial(len(won), np.full(len(won), 1 / len(won)), size=count)
    return np.asarray(np.tensordot(weights.astype(np.float64), won, axes=1), dtype=np.float64)


def middle(drawn: Array, alpha: float) -> tuple[Array, Array]:
    """Lower and upper end of the middle 1 - alpha of draws [R, ...]."""
    low, high = np.quantile(drawn, [alpha / 2, 1 - alpha / 2], axis=0)
    return low, high
