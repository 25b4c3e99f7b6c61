"""`after-target` without the known relevant images, to measure what false negatives cost it.

Paper: none; a ceiling of this benchmark. It reads the ground truth, so it is not a method.
Departures: none.
Fallback: if all images below the target are relevant, the pool is empty. A data set without known relevant images
beyond the target is refused, because the result would equal `after-target`.
"""

from dataclasses import dataclass

from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.strategies._ranked import PoolSize, below_target, images, not_relevant

PAPER = "ours: the ceiling of after-target"


@dataclass(frozen=True, kw_only=True)
class OracleAfterTarget(Strategy):
    """Pool: the k highest-scored allowed images with s < s+ that are not known to satisfy the query.

    Args:
        k: pool size, images >= 1 or a share of the gallery ("0.6%"); relevant images do not count.
    """

    reads_truth = True

    k: PoolSize = tunable(100, low=10, high=1000, log=True)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, at most k True per row. Raises OptionError where `view.relevant` is None."""
        return view.window(below_target(view) & not_relevant(view, "oracle-after-target"), images(self.k, view))
