"""Measures over tables: closed forms, hand tables, loops, and the literature's own tables of quantiles."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from negbench.analysis import measures

RANDOM = np.random.default_rng(3)
SCORES = np.round(RANDOM.normal(size=(4, 3, 5)), 1)  # some ties, some below 0


def test_the_interquartile_mean_is_that_of_the_middle_half() -> None:
    scores = np.array([[[1.0, 2, 3, 4], [5, 6, 50, 100]], [[-100, -9, 0, 0], [1, 1, 1, 100]]])
    assert measures.interquartile_mean(scores).tolist() == [(3 + 4 + 5 + 6) / 4, (0 + 0 + 1 + 1) / 4]
    for mine, found in zip(SCORES, measures.interquartile_mean(SCORES), strict=True):
        ordered = sorted(mine.ravel())
        assert found == pytest.approx(np.mean(ordered[3:12]))  # 15 runs: int(0.25 * 15) = 3 cut at either end


def test_a_profile_counts_the_runs_above_a_threshold() -> None:
    taus = np.array([-0.5, 0.1, 3.0])
    found = measures.profile(SCORES, taus)
    for (k, mine), (n, tau) in product(enumerate(SCORES), enumerate(taus)):
        assert found[k, n] == sum(value > tau for value in mine.ravel()) / mine.size


def test_the_probability_of_improvement_is_mann_whitneys_share() -> None:
    found = measures.improvement(SCORES)
    for i, j in product(range(4), range(4)):
        shares = [stats.mannwhitneyu(SCORES[i, :, t], SCORES[j, :, t]).statistic / 9 for t in range(5)]
        assert found[i, j] == pytest.approx(np.mean(shares))
    assert np.diag(found) == pytest.approx(0.5)
    assert found + found.T == pytest.approx(1)


def test_wins_are_counted_seed_by_seed() -> None:
    found = measures.wins(SCORES)
    for t, i, j in product(range(5), range(4), range(4)):
        pairs = zip(SCORES[i, :, t], SCORES[j, :, t], strict=True)
        assert found[t, i, j] == pytest.approx(np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs]))
    rates = measures.win_rates(found.mean(axis=0))
    assert rates[1] == pytest.approx(np.mean([found[:, 1, j].mean() for j in (0, 2, 3)]))
    assert rates.mean() == pytest.approx(0.5)


def test_elo_of_two_is_a_closed_form() -> None:
    """7 games won and 1 lost, and the drawn one: odds of 7.5 to 1.5."""
    won = np.array([[0.0, 7], [1, 0]])
    first, second = measures.elo(won, 1)
    assert second == 1000
    assert first == pytest.approx(1000 + 400 * math.log10(7.5 / 1.5))
    assert measures.elo(won, 0)[1] == pytest.approx(2000 - first)
    assert np.isfinite(measures.elo(np.array([[0.0, 9], [0, 0]]), 0)).all()


def test_elo_recovers_the_strengths_that_the_games_were_made_of() -> None:
    """Expected games of known ratings: with many of them the one drawn game weighs nothing."""
    true = np.array([900.0, 1000, 1100, 1250])
    chance = 1 / (1 + 10 ** ((true[None, :] - true[:, None]) / 400))
    found = measures.elo(1e7 * chance, 1)
    assert found == pytest.approx(true, abs=0.01)
    both = measures.elo(np.stack([1e7 * chance, 1e7 * chance.T]), 1)
    assert both[0] == pytest.approx(true, abs=0.01)
    assert both[1] == pytest.approx(2000 - true, abs=0.01)


def test_elo_maximises_the_likelihood() -> None:
    won = measures.wins(SCORES).sum(axis=0)
    games = np.where(np.eye(4, dtype=bool), 0, won + 0.5)

    def likelihood(ratings: np.ndarray) -> float:
        chance = 1 / (1 + 10 ** ((ratings[None, :] - ratings[:, None]) / 400))
        return float((games * np.log(chance)).sum())

    best = measures.elo(won, 0)
    for k, step in product(range(1, 4), (-1.0, 1.0)):
        moved = best.copy()
        moved[k] += step
        assert likelihood(moved) < likelihood(best)


def test_scales_of_their_own() -> None:
    scores = np.array([[[0.0, 5], [2, 5]], [[3, 5], [3, 5]]])  # means 1, 3 and 5, 5
    found = measures.scaled(scores)
    assert found[:, :, 0].tolist() == [[-0.5, 0.5], [1, 1]]
    assert (found[:, :, 1] == 0.5).all()


# --- ranks ---------------------------------------------------------------------------------------------------------


def test_ranks_of_means_share_ties() -> None:
    scores = np.array([[[3.0, 1]], [[2, 1]], [[1, 4]]])
    assert measures.table_ranks(scores).tolist() == [[1, 2, 3], [2.5, 2.5, 1]]


@pytest.mark.parametrize(
    ("strategies", "quantile"),
    [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (7, 2.949), (8, 3.031), (9, 3.102), (10, 3.164)],
)
def test_the_critical_difference_is_demsars(strategies: int, quantile: float) -> None:
    """Demsar 2006, table 5 (a), level 0.05."""
    found = measures.critical_difference(strategies, 14, 0.05)
    assert found == pytest.approx(quantile * math.sqrt(strategies * (strategies + 1) / (6 * 14)), abs=2e-3)


def test_demsars_example() -> None:
    """Sec. 3.2.2: four classifiers on 14 data sets, average ranks 3.143, 2.000, 2.893, 1.964: CD 1.25 at 0.05."""
    assert measures.critical_difference(4, 14, 0.05) == pytest.approx(1.25, abs=0.005)
    ranks = np.array([[1.0, 2, 3, 4]] * 13 + [[2.0, 1, 3, 4]])
    pairs = measures.rank_pairs(("a", "b", "c", "d"), ranks, 0.05)
    assert pairs.of("a", "b").value == pytest.approx(ranks[:, 1].mean() - ranks[:, 0].mean())
    assert pairs.beaten() == {"a": (), "b": (), "c": ("a",), "d": ("a", "b")}
    assert pairs.letters() == {"a": "a", "b": "ab", "c": "bc", "d": "c"}
    for effect in pairs.differences.values():
        assert (effect.p_adjusted < 0.05) == (effect.interval.low > 0 or effect.interval.high < 0)


def test_friedman_by_hand() -> None:
    """Three strategies always in one order on 4 tables: chi-squared 8 on 2 degrees of freedom."""
    assert measures.friedman(np.array([[1.0, 2, 3]] * 4)) == pytest.approx(math.exp(-4))
    assert math.isnan(measures.friedman(np.array([[1.0, 2]] * 4)))
    assert math.isnan(measures.friedman(np.array([[2.0, 2, 2]] * 4)))


# --- intervals -----------------------------------------------------------------------------------------------------


def test_seeds_are_drawn_within_their_table_and_for_all_strategies_alike() -> None:
    scores = np.arange(2 * 3 * 4, dtype=float).reshape(2, 3, 4)
    drawn = measures.resampled_seeds(scores, 500, np.random.default_rng(0))
    assert drawn.shape == (500, 2, 3, 4)
    assert (drawn[:, 1] - drawn[:, 0] == 12).all()
    assert (drawn % 4 == np.arange(4)).all()  # never another table's
    assert set(drawn[:, 0, 0, 0]) == {0.0, 4.0, 8.0}
    assert drawn.mean() == pytest.approx(scores.mean(), abs=0.2)


def test_tables_are_drawn_whole() -> None:
    won = measures.wins(SCORES)
    drawn = measures.resampled_tables(won, 400, np.random.default_rng(0))
    assert drawn.shape == (400, 4, 4)
    assert drawn + drawn.swapaxes(1, 2) == pytest.approx(5)
    assert drawn.mean(axis=0) == pytest.approx(won.sum(axis=0), abs=0.3)
    low, high = measures.middle(np.arange(1001.0)[:, None], 0.05)
    assert (low[0], high[0]) == (25, 975)
