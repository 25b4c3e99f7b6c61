"""Every other target of the batch, for the queries that a mixture of two Gaussians of the losses takes for clean.

Rule: before each epoch the queries' losses are scaled to [0, 1], a mixture of two Gaussians is fitted to them, and only
queries whose loss belongs to the lower one with a probability above 0.5 are trained on.
Source: TME (CVPR 2025), as released: He-Changhao/2025-CVPR-TME, Partitioner (read 2025-06-09), which calls
scikit-learn's mixture with at most 10 steps, tolerance 1e-2, and 5e-4 added to the variances.
Departures: a loss is that of the query's last step, not of a pass of its own after the epoch. The mixture starts from
two means that start at the extremes, there from random ones. What is taken for noise is left out, where TME goes on
with its texts. Its warm-up of 6 epochs is a switch, `in-batch:5>tme`: the first epoch of `tme` trains on all. Its loss
is `rcl`.
Fallback: none; a query whose every column is disallowed has no negative, and one without a loss so far counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from negbench.contracts import Scope, ScoreView, Strategy, check_option, tunable
from negbench.strategies._scores import is_number

PAPER = "TME (CVPR 2025), the split"
_STEPS, _TOLERANCE, _ADDED = 10, 1e-2, 5e-4


@dataclass(frozen=True, kw_only=True)
class Tme(Strategy):
    """Pool: all allowed columns of the batch's own [B, B] score matrix; queries taken for noise have the weight 0.

    Args:
        threshold: probability of being clean that a query must exceed, >= 0 and < 1.
    """

    scope: ClassVar[Scope] = "batch"
    n_def: ClassVar[int] = 1  # the pool does not depend on scores: nothing to refresh
    reads_losses: ClassVar[bool] = True

    threshold: float = tunable(0.5, low=0.05, high=0.95)

    def __post_init__(self) -> None:
        inside = is_number(self.threshold, 0) and self.threshold < 1
        check_option("threshold", self.threshold, inside, "a number >= 0 and < 1")

    def query_weights(self, losses: Tensor) -> Tensor:
        """[Q] of 0 and 1."""
        weights, known = torch.ones_like(losses), losses.isfinite()
        if known.any():
            weights[known] = (_clean(losses[known]) > self.threshold).to(losses.dtype)
        return weights

    def pool(self, view: ScoreView) -> Tensor:
        """[B, B] bool, True at every allowed column."""
        return view.allowed.clone()


def _clean(losses: Tensor) -> Tensor:
    """[n] float64: probability of the component with the lower mean; 1 where all losses are equal."""
    spread = losses.max() - losses.min()
    if not spread > 0:
        return torch.ones_like(losses)
    x = ((losses - losses.min()) / spread)[:, None]
    mean = torch.tensor([0.0, 1.0], dtype=x.dtype)
    for _ in range(100):  # Lloyd's two means
        near = torch.nn.functional.one_hot((x - mean).abs().argmin(1), 2).to(x.dtype)
        moved = (near * x).sum(0) / near.sum(0)
        if torch.equal(moved, mean):
            break
        mean = moved
    share, mean, variance = _parameters(x, near)
    bound = -torch.inf
    for _ in range(_STEPS):
        before, joint = bound, _joint(x, share, mean, variance)
        bound = float(joint.logsumexp(1).mean())
        share, mean, variance = _parameters(x, joint.softmax(1))
        if abs(bound - before) < _TOLERANCE:
            break
    return _joint(x, share, mean, variance).softmax(1)[:, int(mean.argmin())]


def _parameters(x: Tensor, belongs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shares, means and variances [2] of values [n, 1] that belong to two components by [n, 2]."""
    count = belongs.sum(0) + 10 * torch.finfo(x.dtype).eps
    mean = (belongs * x).sum(0) / count
    return count / len(x), mean, (belongs * (x - mean) ** 2).sum(0) / count + _ADDED


def _joint(x: Tensor, share: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """[n, 2] logarithm of share times density."""
    return share.log() - 0.5 * ((x - mean) ** 2 / variance + (2 * torch.pi * variance).log())
