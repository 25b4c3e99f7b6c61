"""Drops in a query's ranked scores: those that bound QuRe's pool, and how clearly they stand out."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from negbench.metrics.compiled import kernels
from negbench.metrics.ranks import arrays, at_most, count, descending, highest, less, ranked_scores, top_columns

_WALK = 16  # drops among which the first neighbours that lie apart are looked for


def drops(ranked: Tensor, first: Tensor | int, count: Tensor) -> Tensor:
    r"""Drop after each position of a sorted row (QuRe eq. 5).

    .. math:: d_p = s_p - s_{p+1}, \quad first \le p < first + count - 1

    Args:
        ranked: [B, N] float scores of either sign, by descending score.
        first: [B, 1] int64 or one number, the 0-based position of the first image below the target.
        count: [B, 1] int64, images below the target; the last of them is at position first + count - 1.

    Returns:
        [B, N - 1]; -1, which no drop can be, at every other position.

    Example:
        >>> drops(torch.tensor([[0.5, 0.25, -0.5, -9.0]]), 0, torch.tensor([[3]]))
        tensor([[ 0.2500,  0.7500, -1.0000]])
    """
    position = torch.arange(ranked.shape[1] - 1, device=ranked.device)
    real = at_most(first, position) & less(position, first + count - 1)
    return (ranked[:, :-1] - ranked[:, 1:]).masked_fill_(~real, -1.0)


def steepest(drop: Tensor) -> Tensor:
    """Positions of the two largest drops, between which QuRe's pool lies (QuRe eq. 6).

    Args:
        drop: [B, P], the result of `drops`.

    Returns:
        [B, 2] int64, the largest drop's position first, the earlier of equal drops; -1 where there is no such drop.
        Equal scores have no drop between them: a band holds all images of a score, or none.

    Example:
        >>> steepest(torch.tensor([[0.25, 0.75, -1.0], [-1.0, 0.5, 0.0]]))
        tensor([[ 1,  0],
                [ 1, -1]])
    """
    if drop.shape[1] < 2:
        drop = functional.pad(drop, (0, 2), value=-1.0)
    first = highest(drop)
    other_drops = drop.scatter(1, first, -1.0)
    second = highest(other_drops)
    return torch.cat([_where_positive(drop, first), _where_positive(other_drops, second)], dim=1)


def _where_positive(drop: Tensor, position: Tensor) -> Tensor:
    """Return the positions [B, 1] of drops above 0; -1 for the others."""
    return torch.where(drop.gather(1, position) > 0, position, -1)


def between_drops(scores: Tensor, eligible: Tensor, apart: int = 0) -> Tensor:
    """Choose the images between two steep drops: the first neighbours, by descending drop, that lie apart.

    Args:
        scores: [B, N] float of any sign and precision.
        eligible: [B, N] bool, the images whose scores are sorted; of equal drops the earlier is first.
        apart: the positions of the two must differ by more than this; 0 takes the two largest drops.

    Returns:
        [B, N] bool: images after the earlier drop and before the later one; none where there are no such drops.
    """
    fast = kernels(scores)
    if fast is None:
        return _between_sorted(scores, eligible, apart)
    pool = torch.empty_like(eligible)
    unresolved = np.zeros(len(scores), np.bool_)
    fast.between_drops(*arrays(scores, eligible), apart, pool.numpy(), unresolved)
    if unresolved.any():
        rows = torch.from_numpy(unresolved)
        pool[rows] = _between_sorted(scores[rows], eligible[rows], apart)
    return pool


def _between_sorted(scores: Tensor, eligible: Tensor, apart: int) -> Tensor:
    """Return `between_drops` by sorting the scores."""
    if eligible.shape[1] < 3:  # two drops need three images
        return torch.zeros_like(eligible)
    ranked = ranked_scores(scores, eligible)
    drop = drops(ranked, 0, count(eligible)[:, None])
    pair = _neighbours(drop, apart) if apart else steepest(drop)
    pair = pair.where(pair[:, 1:] >= 0, 0)
    first = ranked.gather(1, pair.amin(1)[:, None] + 1)
    last = ranked.gather(1, pair.amax(1)[:, None])
    pool = at_most(scores, first).logical_and_(at_most(last, scores)).logical_and_(eligible)
    pool[pair[:, 0] == pair[:, 1]] = False
    return pool


def _neighbours(drop: Tensor, apart: int, limit: int = _WALK) -> Tensor:
    """[B, P] drops -> [B, 2] positions; the same position twice where no pair is far enough apart.

    Rows without such a pair among their `limit` largest drops are walked to the end.
    """
    part = limit < drop.shape[1] and bool(drop.sum().isfinite())
    walk = top_columns(drop, limit) if part else descending(drop)
    real = drop.gather(1, walk) > 0
    wide = (walk.diff(dim=1).abs() > apart) & real[:, 1:]
    step = wide.int().argmax(1, keepdim=True)  # the first True
    has_pair = wide.gather(1, step)
    first = walk.gather(1, step)
    second = walk.gather(1, step + 1)
    pair = torch.cat([first, torch.where(has_pair, second, first)], dim=1)
    if part:
        without_pair = (~has_pair[:, 0]).nonzero().squeeze(1)
        if len(without_pair):
            pair[without_pair] = _neighbours(drop[without_pair], apart, drop.shape[1])
    return pair


class Prominence(NamedTuple):
    """How clearly the steepest drops stand out, per query.

    `largest` [B] float64: the largest drop over the median drop below the target; `second` [B] float64: the second
    largest over the third. inf where only the divisor is 0; nan where a drop is missing (two images below the target
    make one drop), or all are 0.
    """

    largest: Tensor
    second: Tensor


def drop_prominence(drop: Tensor) -> Prominence:
    """Measure whether a query's score curve has the clear drops that QuRe's pool relies on, or is flat.

    Args:
        drop: [B, P], the result of `drops`, with any number of rows.
    """
    real = drop >= 0
    falls = ranked_scores(drop, real)
    number = count(real)
    middle = (_at(falls, (number - 1) // 2) + _at(falls, number // 2)) / 2
    largest = torch.where(number >= 1, _at(falls, number * 0) / middle, torch.nan)
    second = torch.where(number >= 3, _at(falls, number * 0 + 1) / _at(falls, number * 0 + 2), torch.nan)
    return Prominence(largest, second)


def _at(rows: Tensor, position: Tensor) -> Tensor:
    """[B] float64 value at each row's position, nan outside the row."""
    width = rows.shape[1]
    if not width:
        return torch.full((len(rows),), torch.nan, dtype=torch.float64)
    inside = (position >= 0) & (position < width)
    return torch.where(inside, rows.gather(1, position.clamp(0, width - 1)[:, None])[:, 0].double(), torch.nan)
