"""The k highest-scored images that score less than the target by at least a margin.

Rule: s_j <= s+ - margin, then the k highest: NV-Retriever's TopK-MarginPos (arXiv:2407.15831). Its margin of 0.05 and
its number of negatives are unverified.
Departures: the paper scores with a teacher, here the model being trained does.
Fallback: if no image is at or under the limit, the pool is empty.
"""

from dataclasses import dataclass

from pydantic import NonNegativeFloat
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.strategies._ranked import PoolSize, images
from negbench.strategies._scores import gap

PAPER = "NV-Retriever, TopK-MarginPos"


@dataclass(frozen=True, kw_only=True)
class MarginPos(Strategy):
    """Pool: the k highest-scored allowed images with s+ - s >= margin; ties by corpus index.

    Args:
        margin: score units, >= 0.
        k: pool size, images >= 1 or a share of the gallery ("0.6%").
    """

    margin: NonNegativeFloat = tunable(0.05, low=0.0, high=0.3)
    k: PoolSize = tunable(10, low=5, high=1000, log=True)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, at most k True per row."""
        return view.window(view.allowed & (gap(view) >= self.margin), images(self.k, view))
