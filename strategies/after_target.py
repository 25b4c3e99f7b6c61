"""The k highest-scored images below the target.

Paper: QuRe (arXiv:2507.12416), sec. 5.4, strategy (3), k = 100.
Departures: an image that ties with the target is not below it.
Fallback: with fewer than k images below the target, the pool holds all of them; with none, it is empty.
"""

from dataclasses import dataclass

from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.strategies._ranked import PoolSize, below_target, images

PAPER = "QuRe sec. 5.4 (3)"


@dataclass(frozen=True, kw_only=True)
class AfterTarget(Strategy):
    """Pool: the k highest-scored allowed images with s < s+; ties by corpus index.

    Args:
        k: pool size, images >= 1 or a share of the gallery ("0.6%").
    """

    k: PoolSize = tunable(100, low=10, high=1000, log=True)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, at most k True per row."""
        return view.window(below_target(view), images(self.k, view))
