"""The k highest-scored images that score at most 95 % of the target's score.

Rule: s_j <= s+ - (1 - share) |s+|, then the k highest: NV-Retriever's TopK-PercPos (arXiv:2407.15831), its 95 % and up
to 10 negatives as sentence-transformers (util/hard_negatives.py, 2026-08-21) and its documentation give them; the
paper itself is unverified.
Variants: NVIDIA-NeMo/Automodel's mine_hard_negatives.py (2026-08-22) writes s_j <= share s+. The two agree where
s+ >= 0; below 0, share s+ lies above s+ and admits images that score more than the target.
Departures: the paper scores with a teacher, here the model being trained does.
Fallback: if no image is at or under the limit, the pool is empty.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.metrics.ranks import at_least_float32
from negbench.strategies._ranked import PoolSize, images

PAPER = "NV-Retriever, TopK-PercPos"


@dataclass(frozen=True, kw_only=True)
class PercPos(Strategy):
    """Pool: the k highest-scored allowed images at or under the query's limit; ties by corpus index.

    Args:
        share: share of the target's score that an image may reach, > 0 and <= 1.
        k: pool size, images >= 1 or a share of the gallery ("0.6%").
        variant: the limit. "sign-safe": s+ - (1 - share) |s+|; "published": share s+.
    """

    share: Annotated[float, Field(gt=0, le=1)] = tunable(0.95, low=0.5, high=1.0)
    k: PoolSize = tunable(10, low=5, high=1000, log=True)
    variant: Literal["sign-safe", "published"] = "sign-safe"

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, at most k True per row."""
        positive = at_least_float32(view.positive)
        if self.variant == "published":
            limit = positive * self.share
        else:
            limit = positive - (1 - self.share) * positive.abs()
        eligible = view.allowed & (at_least_float32(view.scores) <= limit[:, None])
        return view.window(eligible, images(self.k, view))
