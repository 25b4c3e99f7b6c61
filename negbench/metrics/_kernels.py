"""Passes over rows of scores, compiled with numba; `negbench.metrics.compiled` decides when they run.

Every function takes C-ordered arrays, with scores as float32 [B, N], and gives the same result as the torch path, bit
for bit. A pass marks the rows that it cannot resolve (a bin too full to sort, drops too close to call, no spread, a
non-finite score) in `unresolved` [B]; the torch path computes those.
"""

from typing import Any

import numpy as np

from negbench.metrics._numba import compiled

_BINS = 2**11  # equal parts of a row's range; their marks fit in the L1 cache
_MORE_BINS = 2**16  # used where _BINS are too coarse
_MOST = 32  # most drops of a row that are compared exactly
_WALK = 8  # drops wanted where neighbours must lie apart
_CROWD = 2**13  # most members of a bin that are sorted
_RUN = 2**6  # images among which one of a bin is looked for at once
_AT_ONCE = 2**11  # images whose bins are held at once, in the L1 cache
_OUTSIDE = 2**3  # bins of what is not eligible, in turn: an addition waits for the one before it to the same count

_LARGEST = np.int32(0x7FFFFFFF)
_INFINITE = np.int32(0x7F800000)
_ANY = np.float32(np.inf)
_SMALLEST = np.float32(1e-30)  # least spread that is divided into bins


@compiled
def _key(bits: Any) -> Any:
    """Map the bits of a float32 to an integer that sorts as the float does; its own inverse."""
    return bits ^ ((bits >> 31) & _LARGEST)


@compiled
def _range(bits: Any, eligible: Any, ends: Any) -> Any:
    """Return a row's eligible count and whether bins can separate its scores, whose lowest and highest go to `ends`."""
    count = np.int32(0)
    low = _LARGEST
    high = ~_LARGEST
    for j in range(len(bits)):
        key = np.int32(_key(bits[j]))
        count = np.int32(count + eligible[j])
        low = min(low, key if eligible[j] else _LARGEST)
        high = max(high, key if eligible[j] else ~_LARGEST)
    keys = ends.view(np.int32)
    keys[0] = _key(low)
    keys[1] = _key(high)
    finite = count > 0 and low > ~_INFINITE and high < _INFINITE
    return count, finite and _SMALLEST < ends[1] - ends[0] < np.float32(1e30)


@compiled
def _bins(scores: Any, eligible: Any, ends: Any, bins: Any, bin_of: Any) -> None:
    """Write each score's bin to `bin_of`, counted from the highest score down; from `bins` on if it is not eligible."""
    top = ends[1]
    scale = np.float32(bins) / (ends[1] - ends[0])
    outside = np.int32(bins)
    last = np.int32(bins - 1)
    for j in range(len(scores)):
        bin_of[j] = min(np.int32((top - scores[j]) * scale), last) if eligible[j] else outside + (j & (_OUTSIDE - 1))


@compiled
def _fill(scores: Any, eligible: Any, low: Any, high: Any, chosen: Any) -> Any:
    """Choose the eligible scores from low to high, both included; returns how many."""
    size = np.int32(0)
    for j in range(len(scores)):
        inside = eligible[j] & (scores[j] >= low) & (scores[j] <= high)
        chosen[j] = inside
        size = np.int32(size + inside)
    return size


@compiled
def _sort(values: Any) -> None:
    """Sort in descending order, in place (Shellsort: there are few values, and it compiles fast)."""
    gap = len(values)
    while gap > 1:
        gap = max(1, gap * 5 // 11)
        for k in range(gap, len(values)):
            value = values[k]
            at = k
            while at >= gap and values[at - gap] < value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value


@compiled
def _counts(scores: Any, eligible: Any, ends: Any, bin_of: Any, counts: Any) -> None:
    """Count a row's scores in each of _BINS bins; the last counts are of those that are not eligible."""
    counts[:] = 0
    for begin in range(0, len(scores), _AT_ONCE):
        part = scores[begin : begin + _AT_ONCE]
        _bins(part, eligible[begin : begin + _AT_ONCE], ends, _BINS, bin_of)
        for k in bin_of[: len(part)]:
            counts[np.uint32(k)] += np.uint32(1)  # unsigned: no check for a negative index


@compiled
def _gather(scores: Any, eligible: Any, ends: Any, bin_of: Any, one: Any, other: Any, first: Any, second: Any) -> None:
    """Copy the scores of two bins to `first` and `second`; if both are the same bin, to `first` alone."""
    size = 0
    second_size = 0
    for begin in range(0, len(scores), _AT_ONCE):
        part = scores[begin : begin + _AT_ONCE]
        _bins(part, eligible[begin : begin + _AT_ONCE], ends, _BINS, bin_of)
        for start in range(0, len(part), _RUN):
            run = bin_of[start : min(start + _RUN, len(part))]
            matches = 0
            for j in range(len(run)):
                matches += (run[j] == one) | (run[j] == other)
            if not matches:
                continue
            for j in range(start, start + len(run)):
                if bin_of[j] == one:
                    first[size] = part[j]
                    size += 1
                elif bin_of[j] == other:
                    second[second_size] = part[j]
                    second_size += 1


@compiled
def _bin_of(counts: Any, position: Any, k: Any, before: Any) -> Any:
    """Return the bin, k or a later one, with this position of the descending order, and how many scores precede it."""
    while before + counts[k] <= position:
        before += counts[k]
        k += 1
    return k, before


@compiled
def _above(ranked: Any, value: Any) -> Any:
    """Count the values of a descending array that are larger than `value`."""
    count = 0
    while count < len(ranked) and ranked[count] > value:
        count += 1
    return count


@compiled
def _edges(
    scores: Any, eligible: Any, ends: Any, bin_of: Any, counts: Any, start: Any, stop: Any, count: Any, edges: Any
) -> Any:
    """Write the scores at the positions stop - 1 and start to `edges` [2], as low and high.

    Returns (skip, take): of the images at the high score, the first `skip` by column are outside the window; of those
    at the low score, the first `take` are inside. (-1, -1) if a bin is too full to sort.
    """
    _counts(scores, eligible, ends, bin_of, counts)
    upper, before = _bin_of(counts, start, 0, 0)
    lower, ahead = _bin_of(counts, stop - 1, upper, before)
    if (start > 0 and counts[upper] > _CROWD) or (stop < count and counts[lower] > _CROWD):
        return -1, -1
    edges[0] = ends[0]
    edges[1] = ends[1]
    skip = 0
    take = count
    if start == 0:
        upper = lower
    if stop == count:
        lower = upper
    high = np.empty(counts[upper], np.float32)
    low = np.empty(counts[lower] if lower != upper else 0, np.float32)
    _gather(scores, eligible, ends, bin_of, upper, lower, high, low)
    _sort(high)
    _sort(low)
    if start > 0:
        edges[1] = high[start - before]
        skip = start - before - _above(high, edges[1])
    if stop < count:
        ranked = high if lower == upper else low
        edges[0] = ranked[stop - 1 - ahead]
        take = stop - ahead - _above(ranked, edges[0])
    return skip, take


@compiled
def _untie(scores: Any, edges: Any, skip: Any, take: Any, chosen: Any) -> None:
    """Unchoose the first `skip` images at the high score, and those at the low score after the first `take`."""
    highest = 0
    lowest = 0
    for j in range(len(scores)):
        if chosen[j]:
            highest += scores[j] == edges[1]
            lowest += scores[j] == edges[0]
            ahead = scores[j] == edges[1] and highest <= skip
            chosen[j] = not ahead and not (scores[j] == edges[0] and lowest > take)


@compiled
def window(scores: Any, bits: Any, eligible: Any, start: Any, stop: Any, chosen: Any, unresolved: Any) -> None:
    """Choose the eligible images at the positions start, ..., stop - 1 ([B] each) of the descending order."""
    bin_of = np.empty(_AT_ONCE, np.int32)
    counts = np.empty(_BINS + _OUTSIDE, np.uint32)
    ends = np.empty(2, np.float32)
    edges = np.empty(2, np.float32)
    for i in range(len(scores)):
        count, spread = _range(bits[i], eligible[i], ends)
        first = start[i]
        stopped = min(stop[i], count)
        if stopped <= first:
            chosen[i] = False
        elif first == 0 and stopped == count:
            chosen[i] = eligible[i]
        elif not spread:
            unresolved[i] = True
        else:
            skip, take = _edges(scores[i], eligible[i], ends, bin_of, counts, first, stopped, count, edges)
            unresolved[i] = skip < 0
            if skip >= 0 and _fill(scores[i], eligible[i], edges[0], edges[1], chosen[i]) != stopped - first:
                _untie(scores[i], edges, skip, take, chosen[i])


@compiled
def _mark(scores: Any, eligible: Any, ends: Any, bins: Any, bin_of: Any, marks: Any) -> None:
    """Mark the bins that hold a score of a row; the last bins are for images that are not eligible."""
    marks[: bins + _OUTSIDE] = 0
    for begin in range(0, len(scores), _AT_ONCE):
        part = scores[begin : begin + _AT_ONCE]
        _bins(part, eligible[begin : begin + _AT_ONCE], ends, bins, bin_of)
        for k in bin_of[: len(part)]:
            marks[np.uint32(k)] = 1


@compiled
def _wide_runs(bins: Any, least: Any, marks: Any, runs: Any) -> Any:
    """Write the longest runs of empty bins (`least` or more), as (bin before, bin after), to `runs`, highest first.

    Returns how many there are (0: too few or too many), and a width in bins that no other drop exceeds. A drop across n
    empty bins is wider than n - 1 bins and narrower than n + 2, rounding included.
    """
    lengths = np.zeros(bins, np.int32)
    full = np.empty(bins, np.int32)
    size = 0
    for k in range(bins):
        full[size] = k
        size += marks[k] != 0
    longest = 0
    for n in range(1, size):
        run = full[n] - full[n - 1] - 1
        lengths[np.uint32(run)] += 1
        longest = max(longest, run)
    shortest = longest + 1
    count = 0
    while shortest > 3 and count < least:
        shortest -= 1
        count += lengths[shortest]
    shortest = max(shortest - 3, 1)
    number = 0
    for n in range(1, size):
        if full[n] - full[n - 1] - 1 >= shortest:
            if number == len(runs):
                return 0, 0.0
            runs[number, 0] = full[n - 1]
            runs[number, 1] = full[n]
            number += 1
    return (number if count >= 2 else 0), shortest + 1.1


@compiled
def _drops(
    scores: Any, eligible: Any, ends: Any, bins: Any, bin_of: Any, runs: Any, marks: Any, edges: Any, order: Any
) -> None:
    """Write the scores at both ends of each run to `edges` [count, 2], and the runs by descending drop to `order`."""
    count = len(runs)
    edges[:count, 0] = np.inf
    edges[:count, 1] = -np.inf
    for c in range(count):
        marks[runs[c, 0]] = marks[runs[c, 1]] = 2
    for begin in range(0, len(scores) if count else 0, _AT_ONCE):
        part = scores[begin : begin + _AT_ONCE]
        _bins(part, eligible[begin : begin + _AT_ONCE], ends, bins, bin_of)
        for j in range(len(part)):
            if marks[np.uint32(bin_of[j])] == 2:
                for c in range(count):
                    if runs[c, 0] == bin_of[j]:
                        edges[c, 0] = min(edges[c, 0], part[j])
                    if runs[c, 1] == bin_of[j]:
                        edges[c, 1] = max(edges[c, 1], part[j])
    for c in range(count):
        at = c
        drop = edges[c, 0] - edges[c, 1]
        while at > 0 and edges[order[at - 1], 0] - edges[order[at - 1], 1] < drop:
            order[at] = order[at - 1]
            at -= 1
        order[at] = c


@compiled
def _between(scores: Any, eligible: Any, edges: Any, order: Any, certain: Any, apart: Any, chosen: Any) -> Any:
    """Choose the images between the first neighbours in `order` that are far enough apart; return whether any are."""
    for step in range(certain - 1):
        upper = min(order[step], order[step + 1])
        lower = max(order[step], order[step + 1])
        if _fill(scores, eligible, edges[lower, 0], edges[upper, 1], chosen) > apart:
            return True
    return False


@compiled
def between_drops(scores: Any, bits: Any, eligible: Any, apart: Any, chosen: Any, unresolved: Any) -> None:
    """Choose the images between the first neighbours, by descending drop, that lie more than `apart` positions apart.

    The largest drops span empty bins: drops across the longest runs of empty bins are compared exactly, and the bins
    bound all other drops.
    """
    bin_of = np.empty(_AT_ONCE, np.int32)
    ends = np.empty(2, np.float32)
    marks = np.empty(_MORE_BINS + _OUTSIDE, np.uint8)
    runs = np.empty((_MOST, 2), np.int64)
    edges = np.empty((_MOST, 2), np.float32)
    order = np.empty(_MOST, np.int64)
    for i in range(len(scores)):
        count, spread = _range(bits[i], eligible[i], ends)
        chosen[i] = False
        done = count < 3
        bins = _BINS
        while spread and not done and bins <= _MORE_BINS:
            _mark(scores[i], eligible[i], ends, bins, bin_of, marks)
            number, other_width = _wide_runs(bins, _WALK if apart else 2, marks, runs)
            _drops(scores[i], eligible[i], ends, bins, bin_of, runs[:number], marks, edges, order)
            limit = other_width * (np.float64(ends[1] - ends[0]) / bins)
            certain = 0
            while certain < number and edges[order[certain], 0] - edges[order[certain], 1] > limit:
                certain += 1
            done = _between(scores[i], eligible[i], edges, order, certain, apart, chosen[i])
            bins *= _MORE_BINS // _BINS
        unresolved[i] = not done


@compiled
def tally(scores: Any, bits: Any, allowed: Any, pool: Any, target: Any, drawn: Any, out: Any) -> None:
    """Fill `out` [5, B] with the fields of `ranks.PoolCounts`."""
    width = scores.shape[1]
    ends = np.empty(2, np.float32)
    for i in range(len(scores)):
        size, _ = _range(bits[i], pool[i], ends)
        target_score = scores[i, target[i]]
        drawn_score = scores[i, drawn[i]]
        lowest = ends[0]
        highest = ends[1]
        reached = np.int32(0)
        first = np.int32(0)
        last = np.int32(0)
        ahead = np.int32(0)
        for j in range(width):
            reached = np.int32(reached + (allowed[i, j] & (scores[i, j] >= target_score)))
            first = np.int32(first + (allowed[i, j] & (scores[i, j] > highest)))
            last = np.int32(last + (allowed[i, j] & (scores[i, j] >= lowest)))
            ahead = np.int32(ahead + (allowed[i, j] & (scores[i, j] > drawn_score)))
        out[0, i] = size
        out[1, i] = reached
        out[2, i] = first
        out[3, i] = last - 1
        out[4, i] = ahead


@compiled
def reaching(scores: Any, counted: Any, values: Any, out: Any) -> None:
    """Count for each of `values` [B, K] how many of its row's `counted` [B, N] scores are at least as large."""
    for i in range(len(scores)):
        for k in range(values.shape[1]):
            least = values[i, k]
            count = 0
            for j in range(scores.shape[1]):
                count += counted[i, j] & (scores[i, j] >= least)
            out[i, k] = count


@compiled
def nearest_below(scores: Any, bits: Any, rows: Any, allowed: Any, bound: Any, column: Any) -> None:
    """Fill `column` [R] with `ranks.nearest_below` of the rows [R] and what they allow [R, N]."""
    below = np.empty(scores.shape[1], np.bool_)
    ends = np.empty(2, np.float32)
    width = scores.shape[1]
    for r in range(len(rows)):
        row = scores[rows[r]]
        first = width
        _fill(row, allowed[r], -_ANY, np.nextafter(bound[rows[r]], -_ANY), below)
        _range(bits[rows[r]], below, ends)
        for j in range(width):
            first = min(first, j if below[j] & (row[j] == ends[1]) else width)
        column[r] = first if first < width else -1
