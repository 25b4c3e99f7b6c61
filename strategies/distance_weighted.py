"""Images drawn as if all distances to the query were equally frequent, by inverting their density on a sphere.

Rule: weight exp[(2 - n) ln d - (n - 3) / 2 ln(1 - d^2 / 4)], d = max(distance, cutoff), none where d >= limit; n is the
width of the embeddings, distance sqrt(2 - 2 s).
Source: Wu et al., Sampling matters in deep embedding learning (arXiv:1706.07567), sec. 4; pytorch-metric-learning,
miners/distance_weighted_miner.py (2024-12-11): cutoff 0.5, limit 1.4.
Departures: the released miner subtracts the batch's largest logarithm before it exponentiates, which lets whole rows
underflow; here each row subtracts its own, and nothing within the limit underflows. A score over several tokens is
treated as the cosine of two unit vectors.
Fallback: if no image is nearer than the limit, the pool is empty.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PositiveFloat
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, check_option, tunable
from negbench.strategies._scores import distance, weights_of

PAPER = "Wu et al., arXiv:1706.07567, sec. 4"


@dataclass(frozen=True, kw_only=True)
class DistanceWeighted(Strategy):
    """Pool: allowed images at a distance below `limit`, weighted by the inverse density of distances on the sphere.

    Args:
        width: n, >= 3; if left out, the width of the scored embeddings.
        cutoff: smaller distances are raised to it, > 0 and < limit.
        limit: images at this distance or farther are left out, < 2.
    """

    width: Annotated[int, Field(ge=3)] | None = None
    cutoff: PositiveFloat = tunable(0.5, low=0.1, high=1.0, below="limit")
    limit: Annotated[float, Field(gt=0, lt=2)] = tunable(1.4, low=1.1, high=1.5)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] float64 weights.

        Raises:
            OptionError: no width is given, and that of the scored embeddings is unknown or below 3.
        """
        width = view.dim if self.width is None else self.width
        check_option("width", width, width >= 3, "given: the width of the embeddings is unknown or below 3")
        far = distance(view)
        near = view.allowed & (far < self.limit)
        far = far.clamp(min=self.cutoff, max=self.limit)
        log_weight = (2 - width) * far.log() - (width - 3) / 2 * (1 - far**2 / 4).log()
        return weights_of(log_weight, near)
