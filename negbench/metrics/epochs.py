"""How a metric moved over training: whether it fell on its way, and where it is heading."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def fluctuation(values: Sequence[float]) -> float:
    r"""Sum of all falls from one evaluated epoch to the next; 0 for a curve that never falls.

    .. math:: \sum_e \max(0, v_e - v_{e+1})

    Args:
        values: of one metric, in the order of the epochs, in any unit.

    Example:
        >>> fluctuation([0.5, 0.75, 0.25, 0.5, 0.25])
        0.75
    """
    return float(np.clip(-np.diff(np.asarray(values, dtype=np.float64)), 0, None).sum())


def late_slope(values: Sequence[float], epochs: Sequence[float] | None = None) -> float:
    """Least-squares slope, per epoch, of the last third of a curve: below 0 where training has passed its best.

    Args:
        values: of one metric, in the order of the epochs.
        epochs: at which epoch each was taken, rising; default 0, 1, 2, ...

    Returns:
        In units of the values per epoch; nan where the last third, the values from index floor(2 n / 3) on, holds fewer
        than two.

    Example:
        >>> round(late_slope([0.0, 0.5, 0.9, 1.0, 0.75, 0.5]), 6)
        -0.25
    """
    y = np.asarray(values, dtype=np.float64)
    x = np.arange(len(y), dtype=np.float64) if epochs is None else np.asarray(epochs, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"want one epoch for each of {len(y)} values, got {len(x)}")
    y, x = y[2 * len(y) // 3 :], x[2 * len(x) // 3 :]
    if len(y) < 2:
        return float("nan")
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())
