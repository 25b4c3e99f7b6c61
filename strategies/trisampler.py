"""TriSampler: images about as near to the query as the target is, and nearer to the target than to the query.

Rule: p_j in proportion to exp(-(s_j - s+)^2 / 4) relu(s(d+, d_j) - s_j) over the k highest-scored images, s(d+, d_j)
being the similarity of image j to the target. All scores come from the current model.
Source: TriSampler (arXiv:2402.11855). Unverified: read in a summary, not in the paper, and no code was found. There the
two factors are two successive draws; here one draw uses their product. Its region of at most 60 degrees between the two
angles has no formula in the summary and is not implemented. The default k is ours.
Fallback: if none of the k images is nearer to the target than to the query, the pool is empty.
"""

from dataclasses import dataclass

from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.strategies._ranked import PoolSize, images
from negbench.strategies._scores import gap

PAPER = "TriSampler, arXiv:2402.11855 (from a summary)"


@dataclass(frozen=True, kw_only=True)
class Trisampler(Strategy):
    """Pool: those of the k highest-scored allowed images that are more like the target than like the query, weighted.

    Args:
        k: depth of the ranking that is searched, images >= 1 or a share of the gallery ("0.6%").
    """

    reads = ("target",)

    k: PoolSize = tunable(100, low=10, high=1000, log=True)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] float64 weights."""
        near = (-(gap(view).double() ** 2) / 4).exp()
        between = (view.plane("target").double() - view.scores.double()).nan_to_num(nan=0.0).clamp(min=0)
        return near * between * view.window(view.allowed, images(self.k, view))
