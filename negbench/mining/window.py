"""Where in the ranking to draw negatives from, said before training: around a multiple of the target's median rank.

The multiple was fitted on generated worlds with 1 and 16 negatives, after 600 steps, and judged on fresh ones with 1, 4
and 16, and on emoji with 1 and 16 (`examples/zone_formula.py`; docs/findings.md has the regrets).
"""

import math
from collections.abc import Mapping
from typing import Any

MOVES_SCORES = False  # only recommends

WINDOW = "shifted-top-k"
FACTOR, POWER = 1.6, 0.24
LOSSES = ("bradley-terry", "info-nce")
MOST = 63  # negatives


def middle(target: float, negatives: int) -> float:
    """Return the rank, from 1, around which to draw negatives.

    Args:
        target: median rank of the train queries' targets before training, from 1.
        negatives: number per query and step.
    """
    return float(FACTOR * negatives**POWER * target)


def unjudged(loss: str, options: Mapping[str, Any], negatives: int) -> str:
    """Return why no window is known for this loss, its options and number of negatives; "" where one was judged."""
    if loss not in LOSSES:
        return f"it was judged with {' and '.join(LOSSES)}, not with {loss}"
    if options.get("tau") is not None:
        return f"it was judged at a learned temperature, and at loss.tau={options['tau']:g} the best ranks are others"
    return "" if negatives <= MOST else f"it was judged with 1 to {MOST} negatives, not with {negatives}"


def window(target: float, negatives: int, images: float) -> str:
    """Return the window around `middle` as a strategy with options: as wide as its start, at least two per negative.

    Args:
        target, negatives: as for `middle`.
        images: number of images ranked, target included.
    """
    centre, least = math.log(middle(target, negatives)), 2 * negatives
    starts = range(max(1, min(math.ceil(middle(target, negatives)), int(images) - least)))
    start = min(starts, key=lambda start: abs(math.log((start + 1) * (start + max(start, least))) / 2 - centre))
    return f"{WINDOW}:start={start}:stop={min(start + max(start, least), max(int(images), 1))}"
