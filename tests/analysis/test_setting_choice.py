"""How far a chosen rate may be below the best one: against closed forms, and what it does to intervals."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from negbench.analysis.differences import differences
from negbench.analysis.prices import floor_of
from negbench.analysis.setting_choice import SettingChoice, draw_shortfalls
from negbench.grid.setting import TrialSetting
from negbench.scoring.values import Values

DRAWS = 40_000


def values(means: Sequence[float], queries: int = 400, **more: Any) -> Values:
    """Return a row for each seed, half of whose queries are one above the mean, and half one below."""
    signs = np.tile([1.0, -1.0], queries // 2)
    rows = np.array([mean + signs for mean in means])
    return Values(rows, tuple(range(len(means))), None, **more)


def choice(chosen: float, trials: Mapping[float, Values]) -> SettingChoice:
    """Return a choice between learning rates."""
    return SettingChoice(TrialSetting(chosen), {TrialSetting(rate): of_rate for rate, of_rate in trials.items()})


def shortfall(chosen: float, trials: Mapping[float, Values]) -> np.ndarray:
    return draw_shortfalls({"a": (choice(chosen, trials),)}, DRAWS)["a"]


def test_two_rates_of_one_seed_against_the_closed_form(subtests):
    """The mean of max(0, x) of a normal x, whose sd is the paired error over queries."""
    rng = np.random.default_rng(0)
    one, two = rng.integers(0, 2, (2, 1, 300)).astype(float)
    trials = {1.0: Values(one, (0,), None), 3.0: Values(two, (0,), None)}
    gap = float(one.mean() - two.mean())
    error = float(np.std(one - two, ddof=1)) / math.sqrt(300)
    for chosen, ahead in ((1.0, gap), (3.0, -gap)):
        with subtests.test(chosen=chosen):
            z = -ahead / error
            density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
            expected = -ahead * 0.5 * math.erfc(-z / math.sqrt(2)) + error * density
            assert shortfall(chosen, trials).mean() == pytest.approx(expected, rel=0.02)


def test_seeds_count_where_no_query_differs():
    """Of two rates the difference has Student's distribution over seeds: half of its mean deviation."""
    gaps = np.array([0.01, -0.02, 0.004, 0.006])  # mean 0
    drawn = shortfall(1.0, {1.0: values([0.0] * 4), 3.0: values(gaps.tolist())})
    error = float(gaps.std(ddof=1)) / 2
    expected = float(stats.t.expect(lambda x: max(x, 0.0), args=(3,))) * error
    assert drawn.mean() == pytest.approx(expected, rel=0.03)


def test_no_doubt_leaves_nothing_and_a_worse_rate_all_of_it():
    clear = {1.0: values([0.5] * 3), 3.0: values([0.1] * 3)}
    assert shortfall(1.0, clear).max() < 1e-9
    assert shortfall(3.0, clear) == pytest.approx(np.full(DRAWS, 0.4))
    assert shortfall(1.0, {1.0: values([0.5] * 3)}).max() == 0  # the only rate


def test_several_tables_are_averaged_and_names_and_order_do_not_matter():
    rng = np.random.default_rng(1)

    def random_choice() -> SettingChoice:
        return choice(1.0, {rate: Values(rng.random((3, 50)), (0, 1, 2), None) for rate in (1.0, 3.0, 9.0)})

    first, second, third, fourth = (random_choice() for _ in range(4))
    both = draw_shortfalls({"a": (first, second), "b": (third, fourth)}, 500, "k")
    turned = draw_shortfalls({"b": (third, fourth), "a": (first, second)}, 500, "k")
    for name in "ab":
        np.testing.assert_array_equal(both[name], turned[name])
    once = draw_shortfalls({"a": (first,), "b": (third,)}, 500, "k")
    twice = draw_shortfalls({"a": (first, second), "b": (third,)}, 500, "k")
    np.testing.assert_allclose(twice["b"], once["b"])
    assert (2 * twice["a"] >= once["a"] - 1e-12).all()


def hits(recall: float, seed: int, seeds: int = 3, queries: int = 500) -> Values:
    rng = np.random.default_rng(seed)
    return Values((rng.random((seeds, queries)) < recall).astype(float), tuple(range(seeds)), None)


def test_doubt_widens_intervals_and_certainty_does_not():
    tested = {"a": hits(0.5, 1), "b": hits(0.55, 2), "c": hits(0.5, 3)}
    plain = differences(tested, "a").against["b"]
    certain = choice(1.0, {1.0: values([0.5] * 3), 3.0: values([0.1] * 3)})
    same = differences(tested, "a", choices=dict.fromkeys(tested, (certain,))).against["b"]
    assert same.interval == plain.interval
    assert same.choice < 1e-9
    doubts = {}
    for number, name in enumerate("abc"):
        doubts[name] = (choice(1.0, {1.0: hits(0.5, number), 3.0: hits(0.5, number + 9)}),)
    wide = differences(tested, "a", choices=doubts).against["b"]
    assert wide.value == plain.value
    assert wide.interval.low < plain.interval.low
    assert wide.interval.high > plain.interval.high
    assert wide.p_adjusted > plain.p_adjusted
    assert wide.models == plain.models  # of these trained models
    assert wide.choice == pytest.approx(0.02, abs=0.015)
    assert floor_of(wide, nested=True) > floor_of(plain, nested=True) == 0  # more seeds do not remove it
