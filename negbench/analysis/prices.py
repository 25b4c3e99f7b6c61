"""Cost of deciding a difference: how many seeds it needs, and what no number of seeds can resolve."""

import math

import scipy

from negbench.analysis.statistics import POWER, Difference


def seeds_for(difference: Difference, target: float, *, nested: bool) -> float:
    """Return how many seeds would shrink the interval's half width to `target`.

    The part of the variance due to seeds shrinks with their number. The part due to queries does not, unless every seed
    has its own queries, nor does that of the choice of learning rates.

    Args:
        difference: with an interval.
        target: half width, in the unit of the values.
        nested: whether every seed has queries of its own.

    Returns:
        Infinity if the other parts alone keep the interval wider; NaN with one seed, which says nothing about others.
    """
    if difference.seeds < 2:
        return math.nan
    half, sd, fixed = _parts(difference, nested=nested)
    if half == 0:
        return difference.seeds
    variance_of_seeds = (target * sd / half) ** 2 - fixed**2  # that `target` allows
    if variance_of_seeds <= 0:
        return math.inf
    return difference.seeds * max(sd**2 - fixed**2, 0) / variance_of_seeds


def floor_of(difference: Difference, *, nested: bool) -> float:
    """Return the interval's half width in the limit of many seeds."""
    half, sd, fixed = _parts(difference, nested=nested)
    return half * fixed / sd if sd else 0.0


def more_seeds(difference: Difference, margin: float, *, nested: bool) -> float:
    """Return how many seeds to add to decide a difference if its estimate is right; infinity, NaN as in `seeds_for`."""
    needed = seeds_for(difference, max(abs(difference.value), margin - abs(difference.value)), nested=nested)
    return needed if not math.isfinite(needed) else max(1, math.ceil(needed) - difference.seeds)


def _parts(contrast: Difference, *, nested: bool) -> tuple[float, float, float]:
    """Return the interval's half width, and the standard deviation of the difference in all and with many seeds."""
    half = (contrast.interval.high - contrast.interval.low) / 2
    sd = (contrast.minimum_detectable - half) / scipy.special.ndtri(POWER)
    models = (contrast.models.high - contrast.models.low) / 2 / scipy.special.ndtri(0.5 + contrast.models.level / 2)
    queries = 0.0 if nested else models
    return half, sd, min(math.hypot(queries, contrast.choice), sd)
