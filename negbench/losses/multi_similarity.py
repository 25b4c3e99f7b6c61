"""Multi-similarity loss: a soft threshold on the target's score, and one on the largest of the negatives' scores.

Paper: Wang et al. (arXiv:1904.06627), eq. 15 (unverified), as in pytorch-metric-learning
(losses/multi_similarity_loss.py, 2024-12-11): alpha 2, beta 50, base 0.5; the paper's own code has beta 40.
Departures: one positive a query. Its miner is the strategy `multi-similarity`.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PositiveFloat
from torch import Tensor
from torch.nn.functional import softplus

from negbench.contracts import Loss, LossInput, tunable
from negbench.contracts.loss import without_masked
from negbench.losses._rows import log_sum, mean_of_rows
from negbench.metrics.ranks import at_least_float32

PAPER = "Multi-similarity loss, arXiv:1904.06627"


@dataclass(frozen=True, kw_only=True)
class MultiSimilarity(Loss):
    """Mean over queries of log(1 + exp(-alpha (s+ - base))) / alpha + log(1 + sum of exp(beta (s_j - base))) / beta.

    Args:
        tau: refused: alpha and beta take its place.
        alpha: steepness at the target, > 0.
        beta: steepness at the negatives, > 0.
        base: the score that a target should exceed and a negative should not.

    Inputs:
        | positive | negatives | mask          | weights                   | aspects |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | refused |

    A query without a valid negative, or whose weights are all 0, adds nothing and does not count in the mean. Weights
    are absolute: doubling them equals listing each negative twice.
    """

    uses_temperature = False

    alpha: PositiveFloat = tunable(2.0, low=0.5, high=10.0, log=True)
    beta: PositiveFloat = tunable(50.0, low=10.0, high=100.0, log=True)
    base: Annotated[float, Field(gt=-1)] = tunable(0.5, low=0.0, high=1.0)

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        scores = without_masked(given.negatives, given.mask)
        far, some = log_sum(self.beta * (scores - self.base), given.mask, given.weights)
        near = softplus(-self.alpha * (at_least_float32(given.positive) - self.base)) / self.alpha
        return mean_of_rows(far / self.beta + near, some)
