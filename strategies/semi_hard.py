"""Images that score less than the target, but by no more than a margin.

Rule: 0 < s+ - s_j <= margin. `triplets` selects two variants: "hard", s+ - s_j <= 0; "all", s+ - s_j <= margin.
Source: FaceNet (arXiv:1503.03832), sec. 3.2; pytorch-metric-learning, miners/triplet_margin_miner.py (2024-12-11),
margin 0.2; as there, a gap equal to the margin counts.
Departures: the margin is in score units. FaceNet's is in squared distances, 2 (s+ - s_j) on unit vectors: its 0.2 is
0.1 here; pytorch-metric-learning's default is in distances. The version within a batch is `in-batch-semi-hard`.
Fallback: if no image violates the margin, the pool is empty.
"""

from dataclasses import dataclass

from pydantic import PositiveFloat
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.strategies._scores import Triplets, violators

PAPER = "FaceNet sec. 3.2"


@dataclass(frozen=True, kw_only=True)
class SemiHard(Strategy):
    """Pool: allowed images whose gap s+ - s is at most the margin, on the side of the target that `triplets` says.

    Args:
        margin: score units, > 0.
        triplets: "semi-hard": below the target; "hard": at or above it, whatever the margin; "all": both.
    """

    margin: PositiveFloat = tunable(0.2, low=0.01, high=0.5, log=True)
    triplets: Triplets = "semi-hard"

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool."""
        return violators(view, self.triplets, self.margin)
