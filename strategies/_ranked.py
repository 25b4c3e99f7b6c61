"""What several strategies share: who stands below the target, pool sizes and pools that shrink, checks of options."""

from __future__ import annotations

import re
from fractions import Fraction

import torch
from torch import Tensor

from negbench.contracts import ScoreView
from negbench.errors import OptionError, check_option
from negbench.metrics.ranks import less


def below_target(view: ScoreView) -> Tensor:
    """[B, N] bool: allowed images that score strictly less than the target; a tie with it is not below."""
    return view.allowed & less(view.scores, view.positive[:, None])


PoolSize = int | str  # images, or a share of the gallery: "0.6%"


def check_size(name: str, size: PoolSize) -> None:
    """OptionError unless `size` is a number of images >= 1, or a share of the gallery, > 0 and <= 100 %."""
    share = _share(size)
    known = is_whole(size, 1) if share is None else 0 < share <= 1
    check_option(name, size, known, 'a whole number >= 1, or a share of the gallery such as "0.6%"')


def images(size: PoolSize, view: ScoreView, refresh: int = 0) -> int:
    """How many images a pool size means in the view's gallery, after `refresh` integer halvings; at least 1.

    A share is of all images that the query is ranked against, its target included, rounded to the nearest, halves up.
    Halving is CIRQRS' (alg. 1).
    """
    share = _share(size)
    whole = int(size if share is None else share * view.scores.shape[1] + Fraction(1, 2))
    return max(1, whole >> refresh)


def _share(size: PoolSize) -> Fraction | None:
    """'0.6%' as 3/500; None for what is no percentage."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", size, re.ASCII) if isinstance(size, str) else None
    return Fraction(found[1]) / 100 if found else None


def not_relevant(view: ScoreView, strategy: str) -> Tensor:
    """[B, N] bool: allowed images that are not known to satisfy the query.

    Raises:
        OptionError: the view carries no ground truth; `strategy` is the name quoted.
    """
    if view.relevant is None:
        raise OptionError(
            f"strategy '{strategy}' needs ground truth, but nothing beyond the target is known here: "
            "use a data set with several relevant images per query, or a strategy that is not an oracle"
        )
    return view.allowed & ~view.relevant


def is_whole(value: object, low: int) -> bool:
    """Whether `value` is an int (no bool) of at least `low`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def at_least_float32(scores: Tensor) -> Tensor:
    """Half-precision scores as float32, others as they are: differences of halves would round, and tie, too early."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))
