"""The k highest-scored images but the target.

Paper: QuRe (arXiv:2507.12416), sec. 5.4, strategy (2), k = 100. CIRQRS' baseline "Top" has k = 1000, halved at
each refresh (`halve=true`). One modality alone (`by`): negatives of FBCIR (arXiv:2603.11520) and MM-Embed
(arXiv:2411.02571), of which only the abstracts were read; what is ranked and how deep is ours.
Departures: k counts allowed images only, so a disallowed one never takes a place.
Fallback: with fewer than k allowed images, the pool holds all of them; with none, it is empty.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.metrics.ranks import window
from negbench.strategies._ranked import PoolSize, images

PAPER = "QuRe sec. 5.4 (2); CIRQRS 'Top'"


@dataclass(frozen=True, kw_only=True)
class TopK(Strategy):
    """Pool: the k highest-scored allowed images, above or below the target; ties by corpus index.

    Args:
        k: pool size, images >= 1 or a share of the gallery ("0.6%").
        halve: use k // 2**refresh (at least 1) instead of k.
        by: what ranks the images: the composed query, the reference image alone (images that look like it, whatever the
            text says), or the text alone (images that fit it, whatever the reference shows).
    """

    k: PoolSize = tunable(100, low=10, high=1000, log=True)
    halve: bool = False
    by: Literal["query", "reference", "text"] = "query"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by != "query":
            object.__setattr__(self, "reads", (self.by,))  # of this instance; frozen, as it decides what is computed

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, at most k True per row."""
        count = images(self.k, view, view.refresh if self.halve else 0)
        if self.by == "query":
            return view.window(view.allowed, count)
        scores = view.plane(self.by)
        return window(scores.nan_to_num(nan=0.0), view.allowed & ~scores.isnan(), 0, count)
