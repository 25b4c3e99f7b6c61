"""InfoNCE: cross-entropy of the target against its negatives.

Paper: HyCoLe-HNM, eq. 1-4; van den Oord et al., arXiv:1807.03748, eq. 4.
`hardness` above 0: Lan et al., LLaVE (arXiv:2503.04812; unverified), as in sentence-transformers 6
(MultipleNegativesRankingLoss, `hardness_mode="all_negatives"`), on whatever negatives the strategy chose.
Departures: none; the run decides how to combine the negatives of several slots (`hybrid.slots`).
"""

from dataclasses import dataclass

from pydantic import NonNegativeFloat
from torch import Tensor

from negbench.contracts import Loss, LossInput
from negbench.contracts.loss import without_masked
from negbench.losses._rows import cross_entropy

PAPER = "HyCoLe-HNM eq. 1-4"


@dataclass(frozen=True, kw_only=True)
class InfoNCE(Loss):
    """Mean over queries of -log(exp(s+ / tau) / (exp(s+ / tau) + sum of w exp(s- / tau) over the negatives)).

    Args:
        tau: temperature, > 0; if left out, the caller's, or 0.07.
        hardness: alpha >= 0: a negative of score s counts exp(alpha s) times as much, and no gradient flows through
            this weight; 0: all count alike.

    Inputs:
        | positive | negatives | mask          | weights                   | aspects |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | refused |

    A query without a valid negative, or whose weights are all 0, adds nothing and does not count in the mean. Weights
    are absolute: doubling them equals listing each negative twice.
    """

    hardness: NonNegativeFloat = 0.0

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        weights = given.weights
        if self.hardness > 0:
            weights = weights * (self.hardness * without_masked(given.negatives, given.mask).detach()).exp()
        return cross_entropy(given.positive, given.negatives, given.mask, weights, given.temperature)
