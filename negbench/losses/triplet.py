"""Triplet loss: the target must score more than each negative by a margin.

Paper: FaceNet (arXiv:1503.03832), eq. 3, on squared distances, margin 0.2; on scores as image-text retrieval writes it,
VSE++ (arXiv:1707.05612), margin 0.2 (the latter unverified).
Departures: squared distances of unit vectors are 2 - 2 s, so FaceNet's loss is twice this one at half its margin. A
query's negatives are averaged.
"""

from dataclasses import dataclass

from pydantic import NonNegativeFloat
from torch import Tensor

from negbench.contracts import Loss, LossInput, mean_over_rows, tunable

PAPER = "FaceNet eq. 3"


@dataclass(frozen=True, kw_only=True)
class Triplet(Loss):
    """Mean over queries of the (weighted) mean over the query's negatives of max(0, margin - s+ + s-).

    Args:
        tau: refused: the formula has no temperature.
        margin: score units, >= 0.

    Inputs:
        | positive | negatives | mask          | weights                   | aspects |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | refused |

    A query without a valid negative, or whose weights are all 0, adds nothing. Weights are relative: they are divided
    by their sum over the query's valid negatives. A negative beyond the margin has no gradient.
    """

    monotone = False
    uses_temperature = False

    margin: NonNegativeFloat = tunable(0.2, low=0.01, high=0.5, log=True)

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        return mean_over_rows((self.margin + given.gap).relu(), given.mask, given.weights)
