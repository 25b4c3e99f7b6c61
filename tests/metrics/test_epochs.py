"""Curves over epochs: hand tables, and numpy's own least squares."""

from __future__ import annotations

import math

import numpy as np
import pytest

from negbench.metrics.epochs import fluctuation, late_slope


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([], 0.0),
        ([0.4], 0.0),
        ([-0.5, -0.25, 0.0], 0.0),
        ([0.0, -0.25, 0.5, 0.5, -0.5], 1.25),
        ([3.0, 2.0, 1.0], 2.0),
    ],
)
def test_fluctuation_by_hand(values: list[float], want: float) -> None:
    assert fluctuation(values) == want


@pytest.mark.parametrize("count", range(3, 13))
def test_late_slope_is_least_squares_of_the_last_third(count: int) -> None:
    generator = np.random.default_rng(count)
    values, epochs = generator.normal(-1, 1, count), np.cumsum(generator.integers(1, 4, count))
    kept = count - 2 * count // 3
    if kept < 2:
        assert math.isnan(late_slope(list(values), list(epochs)))
        return
    want = np.polyfit(epochs[-kept:], values[-kept:], 1)[0]
    assert late_slope(list(values), list(epochs)) == pytest.approx(want)


def test_late_slope_of_a_line_and_of_next_to_nothing() -> None:
    assert late_slope([-0.5 * epoch for epoch in range(9)]) == pytest.approx(-0.5)
    assert math.isnan(late_slope([1.0, 2.0]))
    assert math.isnan(late_slope([]))
    with pytest.raises(ValueError, match="one epoch for each of 3 values"):
        late_slope([1.0, 2.0, 3.0], [0, 1])
