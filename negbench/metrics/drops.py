"""How a query's scores fall along its ranking: the drops that QuRe's pool lies between, and how clear they are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from negbench.metrics.ranks import count, ranked_scores


def drops(ranked: Tensor, first: Tensor | int, count: Tensor) -> Tensor:
    r"""Drop after each place of a sorted row (QuRe eq. 5).

    .. math:: d_p = s_p - s_{p+1}, \quad first \le p < first + count - 1

    Args:
        ranked: [B, N] float scores of either sign, by descending score.
        first: [B, 1] int64 or one number, the 0-based place of the first image below the target.
        count: [B, 1] int64, images below the target, so that the last of them stands at first + count - 1.

    Returns:
        [B, N - 1], -1, which no drop can be, at every other place.

    Example:
        >>> drops(torch.tensor([[0.5, 0.25, -0.5, -9.0]]), 0, torch.tensor([[3]]))
        tensor([[ 0.2500,  0.7500, -1.0000]])
    """
    place = torch.arange(ranked.shape[1] - 1, device=ranked.device)
    real = (place >= first) & (place < first + count - 1)
    return (ranked[:, :-1] - ranked[:, 1:]).masked_fill(~real, -1.0)


def steepest(drop: Tensor) -> Tensor:
    """Places of the two largest drops, between which QuRe's pool lies (QuRe eq. 6).

    Args:
        drop: [B, P] of `drops`.

    Returns:
        [B, 2] int64, the largest drop's place first, of equal drops the earlier; -1 where there is no such drop.

    Example:
        >>> steepest(torch.tensor([[0.25, 0.75, -1.0], [-1.0, 0.0, -1.0]]))
        tensor([[ 1,  0],
                [ 1, -1]])
    """
    if drop.shape[1] < 2:
        drop = functional.pad(drop, (0, 2), value=-1.0)
    first = drop.argmax(1, keepdim=True)
    rest = drop.scatter(1, first, -1.0)
    second = rest.argmax(1, keepdim=True)
    return torch.cat([torch.where(d.gather(1, at) >= 0, at, -1) for d, at in ((drop, first), (rest, second))], dim=1)


class Prominence(NamedTuple):
    """How clearly the steepest drops stand out, per query.

    `largest` [B] float64: the largest drop over the median drop below the target; `second` [B] float64: the second
    largest over the third. inf where only the divisor is 0; nan where there is no such drop (two images below the
    target make one), or all are 0.
    """

    largest: Tensor
    second: Tensor


def drop_prominence(drop: Tensor) -> Prominence:
    """Whether a query's score curve has the clear drops that QuRe's pool is made from, or is flat.

    Args:
        drop: [B, P] of `drops`, of any number of rows.
    """
    real = drop >= 0
    falls, number = ranked_scores(drop, real).double(), count(real)
    middle = (_at(falls, (number - 1) // 2) + _at(falls, number // 2)) / 2
    largest = torch.where(number >= 1, _at(falls, number * 0) / middle, torch.nan)
    second = torch.where(number >= 3, _at(falls, number * 0 + 1) / _at(falls, number * 0 + 2), torch.nan)
    return Prominence(largest, second)


def _at(rows: Tensor, place: Tensor) -> Tensor:
    """[B] value at each row's place, nan outside the row."""
    width = rows.shape[1]
    if not width:
        return rows.new_full((len(rows),), torch.nan)
    inside = (place >= 0) & (place < width)
    return torch.where(inside, rows.gather(1, place.clamp(0, width - 1)[:, None])[:, 0], torch.nan)
