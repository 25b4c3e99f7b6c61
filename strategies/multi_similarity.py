"""Images that score above the target minus a small margin: those that the multi-similarity loss learns from.

Rule: keep s_j + epsilon > s+, s+ being the lowest-scored positive.
Source: Wang et al., Multi-similarity loss (arXiv:1904.06627), eq. 12, unverified; pytorch-metric-learning,
miners/multi_similarity_miner.py (2024-12-11), epsilon 0.1.
Departures: the released miner looks at the batch, this one at the corpus; it also mines positives, but here a query has
only one. Except at the edge this equals `semi-hard:triplets=all` with margin epsilon.
Fallback: if no image is that near, the pool is empty.
"""

from dataclasses import dataclass

from pydantic import NonNegativeFloat
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.strategies._scores import gap

PAPER = "Multi-similarity loss, arXiv:1904.06627"


@dataclass(frozen=True, kw_only=True)
class MultiSimilarityMining(Strategy):
    """Pool: allowed images with s+ - s < epsilon.

    Args:
        epsilon: score units, >= 0.
    """

    epsilon: NonNegativeFloat = tunable(0.1, low=0.01, high=0.5, log=True)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool."""
        return view.allowed & (gap(view) < self.epsilon)
