"""False-negative cancellation by elimination: the batch without the images most similar to the target.

Rule: member j counts as a false negative of query i if its cosine to a support view of i is above 0.7 and among the 10
highest; it is dropped from the denominator.
Source: Huynh et al., "Boosting Contrastive Self-Supervised Learning with False Negative Cancellation"
(arXiv:2011.11765); google-research/fnc objective.py and run.py (read 2021-10-18): 8 support views, top 10, 0.7.
Departures: FNC takes the maximum over several augmentations of the anchor; here the only view is the query's target
image, under the current model. The released objective attracts false negatives instead of eliminating them, and uses a
queue of 16 batches under a moving average; neither is implemented.
Fallback: none; if every member is dropped, the query has no negatives.
"""

from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor

from negbench.contracts import BatchStrategy, ScoreView, tunable
from negbench.metrics.ranks import at_least_float32, descending

PAPER = "FNC, arXiv:2011.11765 (elimination)"


@dataclass(frozen=True, kw_only=True)
class Fnc(BatchStrategy):
    """Pool: allowed members except those of the k most similar to the target with a cosine above `threshold`.

    Args:
        threshold: cosine to the target image above which a member may be dropped.
        k: maximum number of members dropped, >= 1; ties by place in the batch.
    """

    reads = ("target",)

    threshold: float = tunable(0.7, low=0.3, high=0.95)
    k: PositiveInt = tunable(10, low=1, high=100, log=True)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, B] bool."""
        likeness = at_least_float32(view.plane("target")).nan_to_num(nan=-torch.inf)
        likeness = likeness.masked_fill(~view.allowed, -torch.inf)
        rank = descending(likeness).argsort(1)
        return view.allowed & ~((likeness > self.threshold) & (rank < self.k))
