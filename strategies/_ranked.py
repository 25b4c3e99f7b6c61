"""Shared by several strategies: images below the target, pool sizes, and shrinking pools."""

import re
from decimal import Decimal
from fractions import Fraction
from typing import Annotated

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


def _images(least: int) -> PlainValidator:
    """Check a number of images >= `least`, or a share of the gallery, <= 100 % and > 0 % unless `least` is 0.

    A share gets one spelling, so that "50%" and "50.0 %" are the same run.
    """

    def check(size: object) -> object:
        share = _share(size)
        if share is None:
            valid = isinstance(size, int) and not isinstance(size, bool) and size >= least
        else:
            valid = share <= 1 and (share > 0 or least == 0)
        if not valid:
            raise ValueError(f'a whole number >= {least}, or a share of the gallery such as "0.6%"')
        if share is None:
            return size
        return f"{Decimal(str(size).rstrip(' %')).normalize():f}%"

    return PlainValidator(check)


PoolSize = Annotated[int | str, _images(1)]
Rank = Annotated[int | str, _images(0)]  # 0-based; a share of the gallery is the number of images before it


def images(size: PoolSize, view: ScoreView, refresh: int = 0) -> int:
    """Return a pool size as a number of images in the view's gallery, halved `refresh` times; at least 1.

    A share counts all images that the query is ranked against, target included. Each halving rounds down, as in CIRQRS
    (alg. 1).
    """
    return max(1, rank(size, view.scores.shape[1]) >> refresh)


def rank(rank_or_share: Rank, gallery: int) -> int:
    """Return a rank, or a number of images, in a gallery of this size; a share is rounded half up."""
    share = _share(rank_or_share)
    return int(rank_or_share if share is None else share * gallery + Fraction(1, 2))


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
