"""The hardest half of all query-image pairs in the batch, ranked together instead of query by query.

Rule: take the ceil(share P) highest-scored of the P allowed pairs in the batch.
Source: Hard-aware deeply cascaded embedding (arXiv:1611.05720); pytorch-metric-learning, miners/hdc_miner.py
(2024-12-11), share 0.5.
Departures: all pairs that tie with the last one are taken, so the order of the batch does not matter. The released
miner drops easy positives too; the paper's cascade of models does not concern negatives.
Fallback: a query without a pair among them has no negative in this batch.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from negbench.contracts import BatchStrategy, ScoreView, tunable

PAPER = "Hard-aware deeply cascaded embedding, arXiv:1611.05720"


@dataclass(frozen=True, kw_only=True)
class Hdc(BatchStrategy):
    """Pool: allowed pairs that score at least as high as the ceil(share P)-th of all P pairs in the batch.

    Args:
        share: share of the pairs that is taken, > 0 and <= 1.
    """

    share: Annotated[float, Field(gt=0, le=1)] = tunable(0.5, low=0.05, high=1.0)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, B] bool."""
        pairs = view.scores[view.allowed]
        if not len(pairs):
            return view.allowed.clone()
        last = pairs.topk(math.ceil(self.share * len(pairs))).values[-1]
        return view.allowed & (view.scores >= last)
