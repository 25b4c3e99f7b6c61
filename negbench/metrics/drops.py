"""How a query's scores fall along its ranking: the drops that QuRe's pool lies between, and how clear they are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from negbench.metrics.ranks import checked_scores, descending


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


class Prominence(NamedTuple):
    """How clearly the steepest drops stand out, per query.

    `largest` [B] float64: the largest drop over the median drop below the target; `second` [B] float64: the second
    largest over the third. inf where only the divisor is 0; nan where there is no such drop (two images below the
    target make one), or all are 0.
    """

    largest: Tensor
    second: Tensor


def drop_prominence(scores: Tensor, target: Tensor, allowed: Tensor | None = None) -> Prominence:
    """Whether a query's score curve has the clear drops that QuRe's pool is made from, or is flat.

    Args:
        scores: [B, N] float of any sign.
        target: [B] int64, column of the target.
        allowed: [B, N] bool, the candidates; default: all. What scores less than the target is below it.

    Raises:
        NegbenchError: a score is NaN.
    """
    scores = checked_scores(scores)
    below = scores < scores.gather(1, target[:, None])
    if allowed is not None:
        below &= allowed
    masked = scores.masked_fill(~below, -torch.inf)
    count = below.sum(1, keepdim=True)
    ranked = scores.gather(1, descending(masked))  # what is below the target, then the rest, which no drop reaches
    found = drops(ranked, 0, count).double()
    falls = found.gather(1, descending(found))  # the -1s last
    number = (count[:, 0] - 1).clamp(min=0)
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
