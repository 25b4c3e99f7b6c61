"""All gallery images at every step, embedded by the current model; the gradient flows through the query only.

Rule: every allowed image, or the k highest-scored of the step.
Source: SPN4CIR stage 2 (BUAADreamer/SPN4CIR, clip4cir/models_negplus.py, read 2024-10-12), whose bank comes from a
frozen image tower: equal to this rule if images are frozen and have no trained head. ADORE (jingtaozhan/DRhard,
adore/train.py, read 2022-02-15) takes the 200 highest of each step: k 200.
Departures: the target's own embedding has a gradient if the backbone trains one. SPN4CIR's first unlabelled images and
ADORE's rank-weighted loss are not implemented.
Needs: stored image features.
Fallback: none; a query without allowed images has no negatives.
"""

from dataclasses import dataclass

from pydantic import PositiveInt
from torch import Tensor

from negbench.contracts import BankStrategy, ScoreView

PAPER = "SPN4CIR stage 2; ADORE"


@dataclass(frozen=True, kw_only=True)
class Bank(BankStrategy):
    """Pool: the k highest-scored allowed images of the bank, or all of them; ties by corpus index.

    Args:
        k: number of images, >= 1; all if left out.
    """

    k: PositiveInt | None = None

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool."""
        return view.allowed.clone() if self.k is None else view.window(view.allowed, self.k)
