"""False-negative cancellation by attraction: what looks most like the target is a positive, too.

Rule: the members that `fnc` drops become further positives; the denominator keeps all.
Source: as `fnc`'s; its loss, the mean over the target and what is found, is the loss `sup-con`, which a run must name.
The released objective.py does this rather than eliminate.
Departures: as `fnc`'s.
Fallback: none; a query without any other member has no negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from negbench.contracts import PlaneName, Scope, ScoreView, Strategy, tunable
from negbench.strategies.fnc import Fnc

PAPER = "FNC, arXiv:2011.11765 (attraction)"


@dataclass(frozen=True, kw_only=True)
class FncAttraction(Strategy):
    """Pool: that of `fnc`; positives, all of one weight: the target and the members that it lacks.

    Args:
        threshold: cosine to the target image.
        k: members that are positives at most, >= 1; ties by place in the batch.
    """

    scope: ClassVar[Scope] = "batch"
    reads: ClassVar[tuple[PlaneName, ...]] = ("target",)
    n_def: ClassVar[int] = 1  # scores are those of the step: nothing to refresh
    several_positives: ClassVar[bool] = True

    threshold: float = tunable(0.7, low=0.3, high=0.95)
    k: int = tunable(10, low=1, high=100, log=True)

    def __post_init__(self) -> None:
        Fnc(threshold=self.threshold, k=self.k)  # checks both

    def pool(self, view: ScoreView) -> Tensor:
        """[B, B] bool."""
        pool: Tensor = Fnc(threshold=self.threshold, k=self.k).pool(view)
        return pool

    def positives(self, view: ScoreView) -> Tensor:
        """[B, B] of 0 and 1."""
        found = view.allowed & ~self.pool(view)
        return torch.ones_like(view.scores) * found.scatter(1, view.target[:, None], True)
