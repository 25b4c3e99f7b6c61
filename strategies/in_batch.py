"""Every other target of the batch.

Paper: the field's default, for instance CLIP4CIR (CVPR 2022 Workshops) and SPRC (ICLR 2024).
Departures: none.
Fallback: none is needed; a query whose every column is disallowed has no negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from negbench.contracts import Scope, ScoreView, Strategy

PAPER = "the field's default: CLIP4CIR, SPRC"


@dataclass(frozen=True, kw_only=True)
class InBatch(Strategy):
    """Pool: all allowed columns of the batch's own [B, B] score matrix."""

    scope: ClassVar[Scope] = "batch"
    n_def: ClassVar[int] = 1  # the pool does not depend on scores: nothing to refresh

    def pool(self, view: ScoreView) -> Tensor:
        """[B, B] bool, True at every allowed column."""
        return view.allowed.clone()
