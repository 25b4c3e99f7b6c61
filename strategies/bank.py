"""All images of the gallery in every step, embedded by the model as it is; the gradient flows through the query alone.

Rule: every allowed image, or the k highest-scored of the step.
Source: SPN4CIR stage 2 (BUAADreamer/SPN4CIR, clip4cir/models_negplus.py, read 2024-10-12), whose bank is of a frozen
image tower: with frozen images and no trained head on them this is the same. ADORE (jingtaozhan/DRhard, adore/train.py,
read 2022-02-15) takes the 200 highest of each step: k 200.
Departures: the target's own embedding has a gradient, where the backbone trains one. SPN4CIR's first unlabelled images,
and ADORE's loss, which weighs pairs by rank, are not here.
Needs: stored image features.
Fallback: none; a query whose every image is disallowed has no negative.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import PositiveInt
from torch import Tensor

from negbench.contracts import BankStrategy, ScoreView

PAPER = "SPN4CIR stage 2; ADORE"


@dataclass(frozen=True, kw_only=True)
class Bank(BankStrategy):
    """Pool: the k allowed images of the bank of highest score, or all of them; ties by place in the corpus.

    Args:
        k: images, >= 1; left out, all.
    """

    k: PositiveInt | None = None

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool."""
        return view.allowed.clone() if self.k is None else view.window(view.allowed, self.k)
