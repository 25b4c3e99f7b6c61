"""Multi-similarity loss: a soft threshold on the target's score, and one on the largest of the negatives' scores.

Paper: Wang et al. (arXiv:1904.06627), eq. 15 (unverified), as in pytorch-metric-learning
(losses/multi_similarity_loss.py, 2024-12-11): alpha 2, beta 50, base 0.5; the paper's own code has beta 40.
Departures: one positive a query. Its miner is the strategy `multi-similarity`.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor
from torch.nn.functional import softplus

from negbench.contracts import Loss, LossInput, mean_over_rows, tunable
from negbench.contracts.loss import without_masked
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

    uses_temperature: ClassVar[bool] = False

    alpha: PositiveFloat = tunable(2.0, low=0.5, high=10.0, log=True)
    beta: PositiveFloat = tunable(50.0, low=10.0, high=100.0, log=True)
    base: Annotated[float, Field(gt=-1)] = tunable(0.5, low=0.0, high=1.0)

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        scores = without_masked(given.negatives, given.mask)
        counts = given.mask & (given.weights > 0)
        some = counts.any(1)
        log_weight = torch.where(counts, given.weights.to(scores.dtype), 1.0).log()
        terms = (self.beta * (scores - self.base) + log_weight).masked_fill(~counts, -torch.inf)
        own = terms.new_zeros(terms.shape[0], 1)  # log 1: the sum is never empty, so its gradient is never NaN
        rows = torch.cat([own, terms], dim=1).logsumexp(1) / self.beta
        rows = rows + softplus(-self.alpha * (at_least_float32(given.positive) - self.base)) / self.alpha
        return mean_over_rows(rows[:, None], some[:, None], torch.ones_like(rows[:, None]))
