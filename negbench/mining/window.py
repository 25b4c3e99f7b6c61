"""Recommend before training where in the ranking to draw negatives: around a multiple of the target's median rank.

At a learned temperature the multiple was fitted on generated worlds with 1 and 16 negatives, after 600 steps, and
judged on fresh ones with 1, 4 and 16, and on emoji with 1 and 16; at fixed ones it was fitted and judged with 1 and 16
(`examples/zone_formula.py`; docs/findings_tables.md has the regrets).
"""

import math
from collections.abc import Mapping
from typing import Any

from negbench.metrics.fixed import DEFAULT_TEMPERATURE

MOVES_SCORES = False  # only recommends

WINDOW = "shifted-top-k"
FACTOR = 1.6
POWER = 0.24
FIXED_FACTOR = 0.85  # these three at a fixed temperature
FIXED_POWER = 0.15
TEMPER = 1.25
TEMPERATURES = (0.01, 0.15)
LOSSES = ("bradley-terry", "info-nce")
MOST = 63  # negatives, at a learned temperature
FIXED_MOST = 16  # and at a fixed one
JUDGED_IN_WORLDS = {"train.batch_size": 64, "backbone.decay": 0.9}  # the settings where it was judged, of zone-1
JUDGED_ON_EMOJI = {"train.batch_size": 128}  # and of zone-emoji-1


def where_judged() -> str:
    """Say for which batches and steps, and for how even attributes, the window was judged."""
    worlds = JUDGED_IN_WORLDS["train.batch_size"]
    decay = JUDGED_IN_WORLDS["backbone.decay"]
    emoji = JUDGED_ON_EMOJI["train.batch_size"]
    return (
        f"judged after 600 steps with batches of {worlds} in worlds whose attributes weigh almost the same "
        f"(backbone.decay={decay}), and after 640 with batches of {emoji} on emoji; not with smaller batches, fewer "
        "steps, or attributes of unequal weight"
    )


def middle(target: float, negatives: int, tau: float | None = None) -> float:
    """Return the rank, from 1, around which to draw negatives: the nearer to the target, the lower the temperature.

    Args:
        target: median rank of the train queries' targets before training, from 1.
        negatives: number per query and step.
        tau: the loss's temperature; None if it is learned from 0.07.
    """
    if tau is None:
        return float(FACTOR * negatives**POWER * target)
    return float(FIXED_FACTOR * negatives**FIXED_POWER * (tau / DEFAULT_TEMPERATURE) ** TEMPER * target)


def why_unjudged(loss: str, options: Mapping[str, Any], negatives: int) -> str:
    """Return why no window is known for this loss, its options and number of negatives; "" where one was judged."""
    if loss not in LOSSES:
        return f"it was judged with {' and '.join(LOSSES)}, not with {loss}"
    tau = options.get("tau")
    least, highest = TEMPERATURES
    if tau is not None and not least <= tau <= highest:
        return f"it was judged at temperatures of {least} to {highest} and at a learned one, not at {tau:g}"
    if tau is None and negatives > MOST:
        return f"it was judged with 1 to {MOST} negatives, not with {negatives}"
    if tau is not None and negatives > FIXED_MOST:
        return f"at a fixed temperature it was judged with 1 to {FIXED_MOST} negatives, not with {negatives}"
    return ""


def window(target: float, negatives: int, images: float, tau: float | None = None) -> str:
    """Return the window around `middle` as a strategy with options: as wide as its start, at least two per negative.

    Args:
        target, negatives, tau: as for `middle`.
        images: number of images ranked, target included.
    """
    rank = middle(target, negatives, tau)
    least = 2 * negatives
    centre = math.log(rank)
    starts = range(max(1, min(math.ceil(rank), int(images) - least)))

    def distance(start: int) -> float:
        first = start + 1
        last = start + max(start, least)
        return abs(math.log(first * last) / 2 - centre)

    start = min(starts, key=distance)
    return f"{WINDOW}:start={start}:stop={min(start + max(start, least), max(int(images), 1))}"
