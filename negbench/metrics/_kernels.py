"""Passes over rows of scores, compiled by numba; `negbench.metrics.compiled` says when they run, and imports them.

Every function takes C-ordered arrays, float32 scores [B, N] among them, and answers as the torch path does, bit for
bit. Rows that a pass cannot tell (ties at an edge, no spread, a score that is not finite) it marks in `left` [B]: the
torch path does these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from negbench.metrics.compiled import code_folder

_BINS = 2**11  # equal parts of a row's range; their marks stay in the first cache
_MORE_BINS = 2**16  # where those are too coarse
_MOST = 32  # drops of a row that are compared exactly
_WALK = 8  # of these are wanted where neighbours must lie apart
_CROWD = 2**13  # members of one bin that are sorted
_CHUNK = 256  # images that are counted as one

_LARGEST = np.int32(0x7FFFFFFF)
_INFINITE = np.int32(0x7F800000)
_SMALLEST = np.float32(1e-30)  # spread that bins are made of


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, and keep the machine code in negbench's cache folder for other processes."""
    settings: Any = numba.config  # its names are made when it is imported
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(code_folder())
    try:
        made: Callable[..., Any] = numba.njit(nogil=True, cache=True)(function)
    finally:
        settings.CACHE_DIR = before
    return made


@_compiled
def _key(bits: Any) -> Any:
    """The bits of a float32 as a whole number that orders as the float does; its own inverse."""
    return bits ^ ((bits >> 31) & _LARGEST)


@_compiled
def _ends(bits: Any, eligible: Any) -> Any:
    """How many of a row are eligible, and the keys of their lowest and their highest score."""
    count, low, high = 0, _LARGEST, ~_LARGEST
    for j in range(len(bits)):
        key = _key(bits[j])
        count += eligible[j]
        low = min(low, key if eligible[j] else _LARGEST)
        high = max(high, key if eligible[j] else ~_LARGEST)
    return count, low, high


@_compiled
def _range(bits: Any, eligible: Any, ends: Any) -> Any:
    """How many of a row are eligible, and whether bins tell them apart; their lowest and highest score into `ends`."""
    count, low, high = _ends(bits, eligible)
    keys = ends.view(np.int32)
    keys[0], keys[1] = _key(low), _key(high)
    finite = count > 0 and low > ~_INFINITE and high < _INFINITE
    return count, finite and _SMALLEST < ends[1] - ends[0] < np.float32(1e30)


@_compiled
def _bins(scores: Any, eligible: Any, ends: Any, bins: Any, bin_of: Any) -> None:
    """The bin that each score of a row falls into, counted from the highest score down; `bins`: not eligible."""
    scale, outside, last = np.float32(bins) / (ends[1] - ends[0]), np.int32(bins), np.int32(bins - 1)
    for j in range(len(scores)):
        bin_of[j] = min(np.int32((ends[1] - scores[j]) * scale), last) if eligible[j] else outside


@_compiled
def _fill(scores: Any, eligible: Any, low: Any, high: Any, chosen: Any) -> Any:
    """Choose the eligible scores from low to high, both included; returns how many."""
    size = 0
    for j in range(len(scores)):
        inside = eligible[j] & (scores[j] >= low) & (scores[j] <= high)
        chosen[j] = inside
        size += inside
    return size


@_compiled
def _sort(values: Any) -> None:
    """Falling, in place (Shell's sort: few values, and nothing that takes seconds to compile)."""
    gap = len(values)
    while gap > 1:
        gap = max(1, gap * 5 // 11)
        for k in range(gap, len(values)):
            value, at = values[k], k
            while at >= gap and values[at - gap] < value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value


@_compiled
def _at(scores: Any, bin_of: Any, counts: Any, place: Any, members: Any) -> Any:
    """The score at a place of a row's descending order, from how many are in each bin; NaN: its bin is too full."""
    found, before = 0, 0
    while before + counts[found] <= place:
        before += counts[found]
        found += 1
    if counts[found] > _CROWD:
        return np.float32(np.nan)
    size = 0
    for j in range(len(scores)):
        members[size] = scores[j]
        size += bin_of[j] == found
    _sort(members[:size])
    return members[place - before]


@_compiled
def window(scores: Any, bits: Any, eligible: Any, start: Any, stop: Any, chosen: Any, left: Any) -> None:
    """Choose the eligible images at the places start, ..., stop - 1 ([B] each) of the descending order."""
    width = scores.shape[1]
    bin_of, members = np.empty(width, np.int32), np.empty(width + 1, np.float32)
    ends, counts = np.empty(2, np.float32), np.empty(_BINS + 1, np.int64)
    for i in range(len(scores)):
        count, spread = _range(bits[i], eligible[i], ends)
        first, stopped = start[i], min(stop[i], count)
        if stopped <= first:
            chosen[i] = False
        elif first == 0 and stopped == count:
            chosen[i] = eligible[i]
        elif not spread:
            left[i] = True
        else:
            _bins(scores[i], eligible[i], ends, _BINS, bin_of)
            counts[:] = 0
            for j in range(width):
                counts[bin_of[j]] += 1
            high = ends[1] if first == 0 else _at(scores[i], bin_of, counts, first, members)
            low = ends[0] if stopped == count else _at(scores[i], bin_of, counts, stopped - 1, members)
            left[i] = _fill(scores[i], eligible[i], low, high, chosen[i]) != stopped - first


@_compiled
def _wide_runs(bin_of: Any, bins: Any, wanted: Any, marks: Any, runs: Any) -> Any:
    """The longest runs of empty bins, `wanted` or more, each as the bins before and behind it, in falling order.

    Returns how many there are (0: too few or too many), and the number of bins that no drop outside them exceeds. A
    drop over n empty bins is more than n - 1 bins and less than n + 2, roundings included.
    """
    marks[: bins + 1] = 0
    for j in range(len(bin_of)):
        marks[bin_of[j]] = 1
    lengths, longest, last = np.zeros(bins, np.int32), 0, 0
    for k in range(1, bins):
        if marks[k]:
            lengths[k - last - 1] += 1
            longest, last = max(longest, k - last - 1), k
    shortest, count = longest + 1, 0
    while shortest > 3 and count < wanted:
        shortest -= 1
        count += lengths[shortest]
    shortest = max(shortest - 3, 1)
    found, last = 0, 0
    for k in range(1, bins):
        if marks[k]:
            if k - last - 1 >= shortest:
                if found == len(runs):
                    return 0, 0.0
                runs[found, 0], runs[found, 1] = last, k
                found += 1
            last = k
    return (found if count >= 2 else 0), shortest + 1.1


@_compiled
def _drops(scores: Any, bin_of: Any, runs: Any, found: Any, marks: Any, edges: Any, order: Any) -> None:
    """The scores at both ends of each run into `edges` [found, 2], and the runs in falling order of their drops."""
    edges[:found, 0], edges[:found, 1] = np.inf, -np.inf
    for c in range(found):
        marks[runs[c, 0]], marks[runs[c, 1]] = 2, 2
    for j in range(len(scores)):
        if marks[bin_of[j]] == 2:
            for c in range(found):
                if runs[c, 0] == bin_of[j]:
                    edges[c, 0] = min(edges[c, 0], scores[j])
                if runs[c, 1] == bin_of[j]:
                    edges[c, 1] = max(edges[c, 1], scores[j])
    for c in range(found):
        at, drop = c, edges[c, 0] - edges[c, 1]
        while at > 0 and edges[order[at - 1], 0] - edges[order[at - 1], 1] < drop:
            order[at] = order[at - 1]
            at -= 1
        order[at] = c


@_compiled
def _between(scores: Any, eligible: Any, edges: Any, order: Any, certain: Any, apart: Any, chosen: Any) -> Any:
    """Choose what lies between the first neighbours of `order` that are far enough apart; whether there are such."""
    for step in range(certain - 1):
        upper, lower = min(order[step], order[step + 1]), max(order[step], order[step + 1])
        if _fill(scores, eligible, edges[lower, 0], edges[upper, 1], chosen) > apart:
            return True
    return False


@_compiled
def between_drops(scores: Any, bits: Any, eligible: Any, apart: Any, chosen: Any, left: Any) -> None:
    """Choose the images between the first neighbours, by descending drop, that lie more than `apart` places apart.

    The largest drops are where bins are empty: the longest runs of empty bins are compared exactly, and what other
    drops can be at most is known from the bins.
    """
    width = scores.shape[1]
    bin_of, ends = np.empty(width, np.int32), np.empty(2, np.float32)
    marks, runs = np.empty(_MORE_BINS + 1, np.uint8), np.empty((_MOST, 2), np.int64)
    edges, order = np.empty((_MOST, 2), np.float32), np.empty(_MOST, np.int64)
    for i in range(len(scores)):
        count, spread = _range(bits[i], eligible[i], ends)
        if count < 3:
            chosen[i] = False
            continue
        done, bins = False, _BINS
        while spread and not done and bins <= _MORE_BINS:
            _bins(scores[i], eligible[i], ends, bins, bin_of)
            found, other = _wide_runs(bin_of, bins, _WALK if apart else 2, marks, runs)
            _drops(scores[i], bin_of, runs, found, marks, edges, order)
            limit, certain = other * (np.float64(ends[1] - ends[0]) / bins), 0
            while certain < found and edges[order[certain], 0] - edges[order[certain], 1] > limit:
                certain += 1
            done = _between(scores[i], eligible[i], edges, order, certain, apart, chosen[i])
            bins *= _MORE_BINS // _BINS
        left[i] = not done


@_compiled
def tally(scores: Any, bits: Any, allowed: Any, pool: Any, target: Any, told: Any) -> None:
    """Fill `told` [4, B] with the fields of `ranks.Tally`."""
    width, ends = scores.shape[1], np.empty(2, np.float32)
    keys = ends.view(np.int32)
    for i in range(len(scores)):
        size, low, high = _ends(bits[i], pool[i])
        keys[0], keys[1] = _key(low), _key(high)
        own, lowest, highest = scores[i, target[i]], ends[0], ends[1]
        reached, first, last = 0, 0, 0
        for j in range(width):
            reached += allowed[i, j] & (scores[i, j] >= own)
            first += allowed[i, j] & (scores[i, j] > highest)
            last += allowed[i, j] & (scores[i, j] >= lowest)
        told[0, i], told[1, i], told[2, i], told[3, i] = size, reached, first, last - 1


@_compiled
def reach(scores: Any, bits: Any, counted: Any, own: Any, lengths: Any, found: Any) -> None:
    """Fill `found` [B, K] with how many counted images score at least `own` [B, K], of the first `lengths` [B]."""
    width = scores.shape[1]
    for i in range(len(scores)):
        for k in range(lengths[i]):
            ahead, least = 0, own[i, k]
            for j in range(width):
                ahead += counted[i, j] & (scores[i, j] >= least)
            found[i, k] = ahead


@_compiled
def shuffle(pool: Any, here: Any, there: Any, drawn: Any) -> None:
    """Swap members `here` and `there` ([B, D] each, counted in their pool) in turn; the columns that come to `here`."""
    rows, width = pool.shape
    order, before = np.arange(width), np.empty(width // _CHUNK + 2, np.int64)
    for i in range(rows):
        before[0] = 0
        for c in range(len(before) - 1):
            inside = 0
            for j in range(c * _CHUNK, min((c + 1) * _CHUNK, width)):
                inside += pool[i, j]
            before[c + 1] = before[c] + inside
        for t in range(here.shape[1]):
            a, b = here[i, t], there[i, t]
            member = order[b]
            order[b] = order[a]
            order[a] = member
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
        for t in range(here.shape[1]):
            order[here[i, t]], order[there[i, t]] = here[i, t], there[i, t]
