"""The images just below the target, half as many at each refresh.

Paper: CIRQRS (query relevance scores for composed image retrieval), eq. 6 and alg. 1: n_neg 50 on FashionIQ and 100 on
CIRR, 5 definitions of the pool on FashionIQ (30 epochs: sizes 50, 25, 12, 6) and 6 on CIRR (50 epochs: 100, 50, 25, 12,
6, 3). The interval is epochs // n_def, so other numbers of epochs may redefine once more (12 epochs: five times).
Departures: an image that ties with the target is not below it.
Fallback: with fewer images below the target than asked for, the pool holds all of them; with none, it is empty.
"""

from dataclasses import dataclass

from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.strategies._ranked import PoolSize, below_target, images

PAPER = "CIRQRS eq. 6, alg. 1"


@dataclass(frozen=True, kw_only=True)
class Cirqrs(Strategy):
    """Pool: the n_neg // 2**refresh (at least 1) highest-scored allowed images with s < s+.

    Args:
        n_neg: pool size at the first refresh (refresh 0), images >= 1 or a share of the gallery ("0.6%").
    """

    n_def = 5

    n_neg: PoolSize = tunable(50, low=10, high=500, log=True)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, at most n_neg // 2**refresh True per row."""
        return view.window(below_target(view), images(self.n_neg, view, view.refresh))
