"""Drawing members of pools without replacement, compiled by numba (see `negbench.metrics.compiled`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from negbench.metrics._numba import compiled

_CHUNK = 256  # images that are counted as one


@compiled
def _count(inside: Any) -> Any:
    """How many are True (of a slice: compilers make vector code of a loop over all of an array only)."""
    found = 0
    for j in range(len(inside)):
        found += inside[j]
    return found


@compiled
def _slot(keys: Any, place: Any) -> Any:
    """Where a place stands in a table of places, or may be put (-1 is none; its length is a power of two)."""
    last = len(keys) - 1
    at = (place * 0x9E3779B1 >> 15) & last
    while keys[at] != -1 and keys[at] != place:
        at = (at + 1) & last
    return at


@compiled
def shuffle(pool: Any, here: Any, there: Any, drawn: Any) -> None:
    """Swap members `here` and `there` ([B, D] each, counted in their pool) in turn; the columns that come to `here`."""
    rows, width = pool.shape
    before, room = np.empty(width // _CHUNK + 2, np.int64), 4
    while room < 4 * here.shape[1]:
        room *= 2
    keys, moved = np.empty(room, np.int64), np.empty(room, np.int64)  # the member at each place that was swapped
    for i in range(rows):
        before[0], keys[:] = 0, -1
        for c in range(len(before) - 1):
            before[c + 1] = before[c] + _count(pool[i, c * _CHUNK : (c + 1) * _CHUNK])
        for t in range(here.shape[1]):
            a, b = here[i, t], there[i, t]
            one = _slot(keys, a)
            if keys[one] == -1:
                keys[one], moved[one] = a, a
            other = _slot(keys, b)
            if keys[other] == -1:
                keys[other], moved[other] = b, b
            member = moved[other]
            moved[other] = moved[one]
            moved[one] = member
            c, end = 0, len(before) - 1
            while end - c > 1:
                middle = (c + end) // 2
                if before[middle] <= member:
                    c = middle
                else:
                    end = middle
            ahead, j = member - before[c] + 1, c * _CHUNK - 1
            while ahead:
                j += 1
                ahead -= pool[i, j]
            drawn[i, t] = j
