"""InfoNCE: cross-entropy of the target against its negatives.

Paper: HyCoLe-HNM, eq. 1-4; van den Oord et al., arXiv:1807.03748, eq. 4.
Departures: none; the run decides how to combine the negatives of several slots (`hybrid.slots`).
"""

from dataclasses import dataclass

from torch import Tensor

from negbench.contracts import Loss, LossInput
from negbench.losses._rows import cross_entropy

PAPER = "HyCoLe-HNM eq. 1-4"


@dataclass(frozen=True, kw_only=True)
class InfoNCE(Loss):
    """Mean over queries of -log(exp(s+ / tau) / (exp(s+ / tau) + sum of w exp(s- / tau) over the negatives)).

    Args:
        tau: temperature, > 0; if left out, the caller's, or 0.07.

    Inputs:
        | positive | negatives | mask          | weights                   | aspects |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | refused |

    A query without a valid negative, or whose weights are all 0, adds nothing and does not count in the mean. Weights
    are absolute: doubling them equals listing each negative twice.
    """

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        return cross_entropy(given.positive, given.negatives, given.mask, given.weights, given.temperature)
