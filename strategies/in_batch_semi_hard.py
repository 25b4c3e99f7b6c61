"""Other targets of the batch that score less than the query's own, but by no more than a margin.

Rule: 0 < s+ - s_j <= margin over the batch, as FaceNet and pytorch-metric-learning mine it (`semi-hard`, the same rule
over the corpus, says where margin and edges come from).
Source: FaceNet (arXiv:1503.03832), sec. 3.2; pytorch-metric-learning, miners/triplet_margin_miner.py (2024-12-11).
Departures: as `semi-hard`.
Fallback: a query without such a member has no negative in this batch.
"""

from dataclasses import dataclass

from pydantic import PositiveFloat
from torch import Tensor

from negbench.contracts import BatchStrategy, ScoreView, tunable
from negbench.strategies._scores import Triplets, violators

PAPER = "FaceNet sec. 3.2"


@dataclass(frozen=True, kw_only=True)
class InBatchSemiHard(BatchStrategy):
    """Pool: allowed columns whose gap s+ - s is at most the margin, on the side of the target that `triplets` says.

    Args:
        margin: score units, > 0.
        triplets: "semi-hard": below the target; "hard": at or above it, whatever the margin; "all": both.
    """

    margin: PositiveFloat = tunable(0.2, low=0.01, high=0.5, log=True)
    triplets: Triplets = "semi-hard"

    def pool(self, view: ScoreView) -> Tensor:
        """[B, B] bool."""
        return violators(view, self.triplets, self.margin)
