"""After-target without the known relevant images: what false negatives cost it.

Paper: none; a ceiling of this benchmark. It reads the ground truth, so it is no method.
Departures: none.
Fallback: no image below the target but relevant ones gives an empty pool. A data set that knows nothing beyond the
target is refused, because the result would be `after-target` under another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.strategies._ranked import PoolSize, below_target, images, not_relevant

PAPER = "ours: the ceiling of after-target"


@dataclass(frozen=True, kw_only=True)
class OracleAfterTarget(Strategy):
    """Pool: the k allowed images of highest score among those with s < s+ that are not known to satisfy the query.

    Args:
        k: pool size, images >= 1 or a share of the gallery ("0.6%"); relevant images take no place.
    """

    reads_truth: ClassVar[bool] = True

    k: PoolSize = tunable(100, low=10, high=1000, log=True)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, at most k True per row. Raises OptionError where `view.relevant` is None."""
        return view.window(below_target(view) & not_relevant(view, "oracle-after-target"), images(self.k, view))
