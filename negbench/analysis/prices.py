"""What it costs to decide: how many seeds a difference needs, and what no number of seeds can resolve."""

from __future__ import annotations

import math

import scipy

from negbench.analysis.statistics import POWER, Difference


def seeds_for(found: Difference, target: float, *, nested: bool) -> float:
    """Seeds with which the interval would reach no further than `target` from its middle.

    The part of the variance that is seeds' shrinks with their number; the part that is queries' does not, unless every
    seed has queries of its own.

    Args:
        found: a difference with an interval.
        target: half width, in the unit of the values.
        nested: whether every seed has queries of its own.

    Returns:
        Infinity where the queries alone leave the interval wider; NaN with one seed, which says nothing of others.
    """
    if found.seeds < 2:
        return math.nan
    half, sd, queries = _parts(found, nested=nested)
    if half == 0:
        return found.seeds
    left = (target * sd / half) ** 2 - queries**2
    return found.seeds * max(sd**2 - queries**2, 0) / left if left > 0 else math.inf


def floor_of(found: Difference, *, nested: bool) -> float:
    """Half width of the interval with any number of seeds."""
    half, sd, queries = _parts(found, nested=nested)
    return half * queries / sd if sd else 0.0


def more_seeds(found: Difference, margin: float, *, nested: bool) -> float:
    """Seeds to add until an undecided difference is decided, if it is as it seems; else as `seeds_for`."""
    needed = seeds_for(found, max(abs(found.value), margin - abs(found.value)), nested=nested)
    return needed if not math.isfinite(needed) else max(1, math.ceil(needed) - found.seeds)


def _parts(found: Difference, *, nested: bool) -> tuple[float, float, float]:
    """Half width of the interval, standard deviation of the difference, and that over queries alone."""
    half = (found.interval.high - found.interval.low) / 2
    sd = (found.minimum_detectable - half) / scipy.stats.norm.ppf(POWER)
    models = (found.models.high - found.models.low) / 2 / scipy.stats.norm.ppf(0.5 + found.models.level / 2)
    return half, sd, 0.0 if nested else min(models, sd)
