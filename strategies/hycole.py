"""Every other member of the batch, in each of the three slots.

Paper: HyCoLe-HNM, sec. 2.3 and eq. 3: a negative triple differs from the positive one in exactly one of reference,
modification and target.
Departures: none known; the slots are corrupted one at a time by whoever builds the score matrix of each slot.
Fallback: none is needed; a query whose every column is disallowed has no negative in that slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from negbench.contracts import Scope, ScoreView, Slot, Strategy

PAPER = "HyCoLe-HNM sec. 2.3, eq. 3"


@dataclass(frozen=True, kw_only=True)
class Hycole(Strategy):
    """Pool: all allowed columns of the slot's [B, B] score matrix."""

    scope: ClassVar[Scope] = "batch"
    corrupts: ClassVar[tuple[Slot, ...]] = ("reference", "modification", "target")
    n_def: ClassVar[int] = 1  # the pool does not depend on scores: nothing to refresh

    def pool(self, view: ScoreView) -> Tensor:
        """[B, B] bool, True at every allowed column."""
        return view.allowed.clone()
