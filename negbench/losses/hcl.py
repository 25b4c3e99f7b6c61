"""Hard contrastive loss: negatives weighted by their hardness, and corrected for the share that may be positives.

Paper: Robinson et al., Contrastive learning with hard negative samples (arXiv:2010.04592), as in its released code:
joshr17/HCL image/main.py (2021-08-26), tau_plus 0.1, beta 1, tau 0.5. With beta 0 it is the debiased loss of Chuang et
al. (arXiv:2007.00224), chingyaoc/DCL main.py (2021-06-07).
Departures: the released code can lower beta over the epochs; here it is constant.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor
from torch.nn.functional import softplus

from negbench.contracts import Loss, LossInput, tunable
from negbench.losses._importance import Hardened
from negbench.losses._rows import mean_of_rows
from negbench.metrics.ranks import at_least_float32

PAPER = "HCL, arXiv:2010.04592; debiased (beta 0), arXiv:2007.00224"


@dataclass(frozen=True, kw_only=True)
class HCL(Loss):
    """Mean over queries of -log(e+ / (e+ + G)), e+ = exp(s+ / tau).

    G = max((sum of h_j exp(s_j / tau) - tau_plus N e+) / (1 - tau_plus), N exp(-1 / tau)), over the query's N
    negatives, h_j = exp(beta s_j / tau) / mean over them. Gradients flow through h_j. The second argument of max is the
    smallest value that cosines allow. An easy negative that scores more takes weight from the hard ones, so the loss
    may fall when a negative's score rises.

    Args:
        tau: temperature, > 0; if left out, the caller's, or 0.07.
        tau_plus: share of the negatives that is assumed to be positive, >= 0 and < 1.
        beta: how much hardness counts, >= 0.

    Inputs:
        | positive | negatives | mask          | weights                   | aspects |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | refused |

    A query without a valid negative, or whose weights are all 0, adds nothing and does not count in the mean. Weights
    are absolute: doubling them equals listing each negative twice.
    """

    monotone = False

    tau_plus: Annotated[float, Field(ge=0, lt=1)] = tunable(0.1, low=0.0, high=0.3)
    beta: NonNegativeFloat = tunable(1.0, low=0.0, high=2.0)

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        hardened = Hardened.of(given, self.beta)
        floor = hardened.log_count - (1 + at_least_float32(given.positive)) / given.temperature
        log_tau_plus = math.log(self.tau_plus) if self.tau_plus else -math.inf
        excess = hardened.log_sum - (hardened.log_count + log_tau_plus)
        positive = excess > 0  # else nothing is left of the sum, and the floor applies
        share = -torch.expm1(-torch.where(positive, excess, 1.0))  # of the sum that is left
        rest = hardened.log_sum + share.log() - math.log(1 - self.tau_plus)
        log_g = torch.where(positive, torch.maximum(rest, floor), floor)  # of G, relative to e+
        return mean_of_rows(softplus(log_g), hardened.some)
