"""The harder half of all query-image pairs of the batch, taken together rather than query by query.

Rule: of all allowed pairs of the batch the ceil(share P) of highest score, P being their number.
Source: Hard-aware deeply cascaded embedding (arXiv:1611.05720); pytorch-metric-learning, miners/hdc_miner.py
(2024-12-11), share 0.5.
Departures: pairs that tie with the last one are all taken, so that no order of the batch matters. The released miner
drops easy positives too; the paper's cascade of models is no matter of negatives.
Fallback: a query without a pair among them has no negative in this batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from negbench.contracts import BatchStrategy, ScoreView, tunable

PAPER = "Hard-aware deeply cascaded embedding, arXiv:1611.05720"


@dataclass(frozen=True, kw_only=True)
class Hdc(BatchStrategy):
    """Pool: allowed pairs that score at least as the pair of place ceil(share P) among all P of the batch.

    Args:
        share: of the pairs, > 0 and <= 1.
    """

    share: Annotated[float, Field(gt=0, le=1)] = tunable(0.5, low=0.05, high=1.0)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, B] bool."""
        pairs = view.scores[view.allowed]
        if not len(pairs):
            return view.allowed.clone()
        last = pairs.topk(math.ceil(self.share * len(pairs))).values[-1]
        return view.allowed & (view.scores >= last)
