"""What several strategies share: who stands below the target, pools that shrink, checks of options."""

from __future__ import annotations

import torch
from torch import Tensor

from negbench.contracts import ScoreView
from negbench.errors import OptionError
from negbench.metrics.ranks import less


def below_target(view: ScoreView) -> Tensor:
    """[B, N] bool: allowed images that score strictly less than the target; a tie with it is not below."""
    return view.allowed & less(view.scores, view.positive[:, None])


def halved(k: int, refresh: int) -> int:
    """K after `refresh` integer halvings, at least 1 (CIRQRS alg. 1)."""
    return max(1, k >> refresh)


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
