"""HN-NCE: InfoNCE whose negatives are weighted by their hardness, query to target.

Paper: Radenovic et al., DiHT (arXiv:2301.02280), as in CoVR's released code: lucas-ventura/CoVR
src/model/blip/loss.py and configs/model/loss/hn_nce.yaml (2025-04-08), alpha 1, beta 0.5.
Departures: the released loss adds the same term from targets to queries, which a loss here cannot see; and its code
divides the weight of row i, column j by the sum of row j (a broadcast), where the formula, as here, uses row i.
"""

import math
from dataclasses import dataclass

from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn.functional import softplus

from negbench.contracts import Loss, LossInput, tunable
from negbench.losses._importance import Hardened
from negbench.losses._rows import mean_of_rows

PAPER = "DiHT, arXiv:2301.02280, as CoVR has it"


@dataclass(frozen=True, kw_only=True)
class HnNCE(Loss):
    """Mean over queries of -log(e+ / (alpha e+ + sum of h_j exp(s_j / tau) over the negatives)), e+ = exp(s+ / tau).

    h_j = exp(beta s_j / tau) / its mean over the query's negatives, with gradients. alpha 1 and beta 0 are InfoNCE. An
    easy negative that scores more takes weight from the hard ones, so the loss may fall when a negative's score rises.

    Args:
        tau: temperature, > 0; if left out, the caller's, or 0.07.
        alpha: weight of the target's own term in the denominator, > 0.
        beta: how much hardness counts, >= 0.

    Inputs:
        | positive | negatives | mask          | weights                   | aspects |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | refused |

    A query without a valid negative, or whose weights are all 0, adds nothing and does not count in the mean. Weights
    are absolute: doubling them equals listing each negative twice.
    """

    monotone = False

    alpha: PositiveFloat = tunable(1.0, low=0.1, high=2.0)
    beta: NonNegativeFloat = tunable(0.5, low=0.0, high=2.0)

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        hardened = Hardened.of(given, self.beta)
        log_alpha = math.log(self.alpha)
        return mean_of_rows(softplus(hardened.log_sum - log_alpha) + log_alpha, hardened.some)
