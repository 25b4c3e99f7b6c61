"""The k highest-scored images but the target.

Paper: QuRe (arXiv:2507.12416), sec. 5.4, strategy (2), k = 100. CIRQRS' baseline "Top" has k = 1000, halved at
each refresh (`halve=true`).
Departures: k counts allowed images only, so a disallowed one never takes a place.
Fallback: with fewer than k allowed images, the pool holds all of them; with none, it is empty.
"""

from dataclasses import dataclass

from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.strategies._ranked import PoolSize, images

PAPER = "QuRe sec. 5.4 (2); CIRQRS 'Top'"


@dataclass(frozen=True, kw_only=True)
class TopK(Strategy):
    """Pool: the k highest-scored allowed images, above or below the target; ties by corpus index.

    Args:
        k: pool size, images >= 1 or a share of the gallery ("0.6%").
        halve: use k // 2**refresh (at least 1) instead of k.
    """

    k: PoolSize = tunable(100, low=10, high=1000, log=True)
    halve: bool = False

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, at most k True per row."""
        return view.window(view.allowed, images(self.k, view, view.refresh if self.halve else 0))
