"""Shared by several strategies: images below the target, pool sizes, and shrinking pools."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated

import torch
from pydantic import PlainValidator
from torch import Tensor

from negbench.contracts import ScoreView
from negbench.errors import OptionError
from negbench.metrics.ranks import less


def below_target(view: ScoreView) -> Tensor:
    """[B, N] bool: allowed images that score strictly less than the target; a tie with it is not below."""
    return view.allowed & less(view.scores, view.positive[:, None])


def _share(size: object) -> Fraction | None:
    """Parse a percentage: '0.6%' is 3/500; return None for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", size, re.ASCII) if isinstance(size, str) else None
    return Fraction(match[1]) / 100 if match else None


def _size(size: object) -> object:
    share = _share(size)
    whole = isinstance(size, int) and not isinstance(size, bool) and size >= 1
    if not (whole if share is None else 0 < share <= 1):
        raise ValueError('a whole number >= 1, or a share of the gallery such as "0.6%"')
    return size


PoolSize = Annotated[int | str, PlainValidator(_size)]  # images, or a share of the gallery, > 0 and <= 100 %


def images(size: PoolSize, view: ScoreView, refresh: int = 0) -> int:
    """Return a pool size as a number of images in the view's gallery, halved `refresh` times; at least 1.

    A share counts all images that the query is ranked against, target included, and is rounded half up. Each halving
    rounds down, as in CIRQRS (alg. 1).
    """
    share = _share(size)
    whole = int(size if share is None else share * view.scores.shape[1] + Fraction(1, 2))
    return max(1, whole >> refresh)


def not_relevant(view: ScoreView, strategy: str) -> Tensor:
    """[B, N] bool: allowed images that are not known to satisfy the query.

    Raises:
        OptionError: the view has no ground truth; the message names `strategy`.
    """
    if view.relevant is None:
        raise OptionError(
            f"strategy '{strategy}' needs ground truth, but these data label only the target: "
            "use a data set with several relevant images per query, or a strategy that is not an oracle"
        )
    return view.allowed & ~view.relevant


def at_least_float32(scores: Tensor) -> Tensor:
    """Convert half-precision scores to float32 and leave others unchanged: differences of halves round to ties."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))
