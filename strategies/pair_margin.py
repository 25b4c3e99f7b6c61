"""Images nearer to the query than a fixed distance, the same for every query.

Rule: Euclidean distance of the unit vectors, sqrt(2 - 2 s), below `margin`.
Source: pytorch-metric-learning, miners/pair_margin_miner.py (2024-12-11): a negative pair nearer than 0.8 is kept; 0.8
is its default, under its default distance.
Departures: its other half, positives farther than 0.2, does not concern negatives. A score over several tokens is
treated as the cosine of two unit vectors.
Fallback: if no image is nearer than the margin, the pool is empty.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.strategies._scores import distance

PAPER = "pytorch-metric-learning, PairMarginMiner"


@dataclass(frozen=True, kw_only=True)
class PairMargin(Strategy):
    """Pool: allowed images at a distance below `margin`.

    Args:
        margin: distance, > 0 and <= 2.
    """

    margin: Annotated[float, Field(gt=0, le=2)] = tunable(0.8, low=0.4, high=1.4)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool."""
        return view.allowed & (distance(view) < self.margin)
