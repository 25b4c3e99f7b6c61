"""How a metric moved over training: whether it ends below its best, and where it is heading."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def falls(curves: ArrayLike) -> NDArray[np.float64]:
    r"""Return how far each seed's curve ends below its value at the epoch where the mean of the other seeds peaks.

    .. math:: f_s = v_{s,e(s)} - v_{s,E}, \quad e(s) = \arg\max_e \sum_{t \ne s} v_{t,e}

    The mean over the seeds estimates the best of the expected curve minus its end. As no seed chooses its own epoch, a
    curve that only fluctuates falls by 0 on average; its own best minus its end would count the fluctuation.

    Args:
        curves: [S, E] values of one metric, evaluated at the same epochs. A single seed chooses its own epoch.

    Returns:
        [S] float64.

    Example:
        >>> falls([[0.25, 0.75, 0.5], [0.5, 0.75, 0.5]])
        array([0.25, 0.25])
    """
    values = np.asarray(curves, dtype=np.float64)
    others = values.sum(0) - values if len(values) > 1 else values
    return np.asarray(values[np.arange(len(values)), others.argmax(1)] - values[:, -1])


def late_slope(values: Sequence[float], epochs: Sequence[float]) -> float:
    """Least-squares slope, per epoch, of the last third of a curve: below 0 where training has passed its best.

    Args:
        values: one metric, in the order of the epochs.
        epochs: the epoch of each value, ascending.

    Returns:
        In units of the values per epoch; nan where the last third, the values from index floor(2 n / 3) on, holds fewer
        than two.

    Example:
        >>> round(late_slope([0.0, 0.5, 0.9, 1.0, 0.75, 0.5], range(6)), 6)
        -0.25
    """
    start = 2 * len(values) // 3
    return float(slope(values[start:], epochs[start:])) if len(values) - start > 1 else float("nan")


def slope(values: ArrayLike, at: ArrayLike | None = None) -> NDArray[np.float64]:
    """Least-squares slope along the first axis.

    Args:
        values: [n, ...] float, n >= 2.
        at: [n] position of each value; default 0, 1, 2, ...

    Returns:
        [...] float64, in units of the values per unit of `at`.

    Example:
        >>> slope([[1.0, 0.0], [3.0, 0.0]])
        array([2., 0.])
    """
    y = np.asarray(values, dtype=np.float64)
    x = np.arange(len(y), dtype=np.float64) if at is None else np.asarray(at, dtype=np.float64)
    x = x - x.mean()
    return np.asarray(np.tensordot(x, y, axes=1) / (x * x).sum())


def event_effect(values: Sequence[float], events: Sequence[int]) -> float:
    r"""Return how much more a curve changes at certain epochs than right before and after them, on average.

    .. math:: d_e = v_e - v_{e-1}, \quad \mathrm{effect}_e = d_e - \mathrm{mean}(d_{e-1}, d_{e+1})

    The comparison is with neighbouring epochs, so a curve that merely flattens shows no effect.

    Args:
        values: one metric or loss, a value per epoch.
        events: epochs, as indices into `values`. Neighbours that are events themselves are ignored.

    Returns:
        Mean over the events that have a change and a neighbour; nan where there is none.

    Example:
        >>> event_effect([0.0, 0.25, 1.0, 1.25], [2])
        0.5
    """
    change = np.diff(np.asarray(values, dtype=np.float64))  # change[e - 1] leads to epoch e
    quiet = set(range(len(change))) - {event - 1 for event in events}
    effects = []
    for event in events:
        if not 0 < event <= len(change):
            continue
        index = event - 1
        beside = [change[neighbour] for neighbour in (index - 1, index + 1) if neighbour in quiet]
        if beside:
            effects.append(change[index] - np.mean(beside))
    return float(np.mean(effects)) if effects else float("nan")
