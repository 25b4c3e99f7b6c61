"""Curves over epochs: hand tables, and numpy's own least squares."""

import math

import numpy as np
import pytest

from negbench.metrics.epochs import event_effect, falls, late_slope, slope


@pytest.mark.parametrize(
    ("curves", "want"),
    [
        ([[0.25, 0.75, 0.5]], [0.25]),  # a single curve falls from its own best
        ([[0.0, 0.5, 1.0], [0.0, 0.25, 0.5]], [0.0, 0.0]),
        # the others' mean is best at epochs 1, 2 and 1: 2 - 3, 5 - 0, 4 - 1
        ([[0.0, 2.0, 1.0, 3.0], [1.0, 4.0, 5.0, 0.0], [0.0, 4.0, 6.0, 1.0]], [1.0 - 3.0, 5.0 - 0.0, 4.0 - 1.0]),
    ],
)
def test_falls_by_hand(curves, want):
    assert falls(curves).tolist() == want


def test_a_curve_that_only_fluctuates_does_not_fall():
    curves = np.random.default_rng(0).normal(size=(4000, 20))
    assert abs(falls(curves).mean()) < 0.05
    assert np.mean(curves.max(1) - curves[:, -1]) > 1.5  # measured from each curve's own best


def test_late_slope_is_least_squares_of_the_last_third(subtests):
    for count in range(13):
        with subtests.test(count=count):
            generator = np.random.default_rng(count)
            values = generator.normal(-1, 1, count)
            epochs = np.cumsum(generator.integers(1, 4, count))
            last_third = count - 2 * count // 3
            want = math.nan
            if last_third > 1:
                want, _ = np.polyfit(epochs[-last_third:], values[-last_third:], 1)
            assert late_slope(list(values), list(epochs)) == pytest.approx(want, nan_ok=True)


def test_slope_of_several_curves_is_numpys():
    values = np.random.default_rng(0).normal(-1, 1, (5, 3))
    at = np.array([0.0, 2.0, 3.0, 7.0, 8.0])
    assert slope(values, at) == pytest.approx(np.polyfit(at, values, 1)[0])
    assert slope([3.0, 1.0, -1.0]) == -2


@pytest.mark.parametrize(
    ("events", "want"),
    [
        ([2], 1.0 - (0.25 - 0.5) / 2),  # changes 0.25, 1, -0.5, 0.25
        ([2, 4], (1.0 - (0.25 - 0.5) / 2 + 0.25 + 0.5) / 2),
        ([1, 2], 1.0 + 0.5),  # the only neighbour of epoch 1 is a refresh, too
        ([0, 9], math.nan),  # no change leads to epoch 0, and there is no epoch 9
        ([1, 2, 3, 4], math.nan),
    ],
)
def test_effect_of_events_by_hand(events, want):
    assert event_effect([-1.0, -0.75, 0.25, -0.25, 0.0], events) == pytest.approx(want, nan_ok=True)
    assert event_effect([3.0 - 0.5 * epoch for epoch in range(9)], [2, 5]) == pytest.approx(0)
