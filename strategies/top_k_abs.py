"""The k highest-scored images that score below a fixed limit, the same for every query.

Rule: s_j < limit, then the k highest: NV-Retriever's TopK-Abs (arXiv:2407.15831). Its limit of 0.7 and its number of
negatives are unverified.
Departures: the paper scores with a teacher, here the model being trained does: a limit that suits one backbone's scores
says little about another's.
Fallback: if no image is below the limit, the pool is empty.
"""

from dataclasses import dataclass

from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.metrics.ranks import at_least_float32
from negbench.strategies._ranked import PoolSize, images

PAPER = "NV-Retriever, TopK-Abs"


@dataclass(frozen=True, kw_only=True)
class TopKAbs(Strategy):
    """Pool: the k highest-scored allowed images with s < limit; ties by corpus index.

    Args:
        limit: score that images must stay below.
        k: pool size, images >= 1 or a share of the gallery ("0.6%").
    """

    limit: float = tunable(0.7, low=0.0, high=1.0)
    k: PoolSize = tunable(10, low=5, high=1000, log=True)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, at most k True per row."""
        return view.window(view.allowed & (at_least_float32(view.scores) < self.limit), images(self.k, view))
