"""Images drawn as if all distances to the query were equally frequent: the density of distances on a sphere inverted.

Rule: weight exp[(2 - n) ln d - (n - 3) / 2 ln(1 - d^2 / 4)], d = max(distance, cutoff), none where d >= limit; n is the
width of the embeddings, distance sqrt(2 - 2 s).
Source: Wu et al., Sampling matters in deep embedding learning (arXiv:1706.07567), sec. 4; pytorch-metric-learning,
miners/distance_weighted_miner.py (2024-12-11): cutoff 0.5, limit 1.4.
Departures: the released miner subtracts the batch's largest logarithm before it exponentiates, which lets whole rows
underflow; here each row's own, and nothing within the limit underflows. A score over several tokens is taken for the
cosine of two unit vectors.
Fallback: no image nearer than the limit gives an empty pool.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from negbench.contracts import ScoreView, Strategy, check_option, tunable
from negbench.strategies._ranked import is_whole
from negbench.strategies._scores import distance, is_number, weights_of

PAPER = "Wu et al., arXiv:1706.07567, sec. 4"


@dataclass(frozen=True, kw_only=True)
class DistanceWeighted(Strategy):
    """Pool: allowed images at a distance below `limit`, weighted by the inverse density of distances on the sphere.

    Args:
        width: n, >= 3; left out, that of the embeddings that the scores come from.
        cutoff: distances below it count as it, > 0 and < limit.
        limit: no image at this distance or beyond, < 2.
    """

    width: int | None = None
    cutoff: float = tunable(0.5, low=0.1, high=1.0, below="limit")
    limit: float = tunable(1.4, low=1.1, high=1.5)

    def __post_init__(self) -> None:
        check_option("width", self.width, self.width is None or is_whole(self.width, 3), "a whole number >= 3")
        check_option("limit", self.limit, is_number(self.limit) and 0 < self.limit < 2, "a number > 0 and < 2")
        inside = is_number(self.cutoff) and 0 < self.cutoff < self.limit
        check_option("cutoff", self.cutoff, inside, f"a number > 0 and below limit ({self.limit})")

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] float64 weights.

        Raises:
            OptionError: no width is given, and the scores come from no embeddings of at least three numbers.
        """
        width = view.dim if self.width is None else self.width
        check_option("width", width, width >= 3, "given: the scores' own is not at least 3")
        far = distance(view)
        near = view.allowed & (far < self.limit)
        far = far.clamp(min=self.cutoff, max=self.limit)
        log_weight = (2 - width) * far.log() - (width - 3) / 2 * (1 - far**2 / 4).log()
        return weights_of(log_weight, near)
