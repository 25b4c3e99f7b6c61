"""Supervised contrastive loss: the mean of InfoNCE over several positives of a query, all of which it is compared with.

Paper: Khosla et al., Supervised Contrastive Learning (arXiv:2004.11362), eq. 2: the mean outside of the logarithm.
FNC's attraction (arXiv:2011.11765) is the same formula, its positives being found by the strategy.
Departures: positives may have weights, and enter the mean in proportion (soft labels); each counts once in the sum of
the denominator. With one positive it is `info-nce`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from negbench.contracts import Loss, LossInput
from negbench.losses._rows import at_least_float32, mean_over_rows, without_masked

PAPER = "Khosla et al., arXiv:2004.11362, eq. 2"


@dataclass(frozen=True, kw_only=True)
class SupCon(Loss):
    """Mean over queries of the mean over positives p of -log(exp(s_p / tau) / sum of exp(s / tau) over all of them).

    "All of them": the positives and the negatives.

    Args:
        tau: temperature, > 0; left out, it is the one that the caller passes, or 0.07.

    Inputs:
        | positive | negatives | mask          | weights                   | aspects | positives |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | refused | [B, P]    |

    A query without a valid negative, or whose weights are all 0, adds nothing and does not count in the mean. Weights
    of negatives are absolute: doubling them equals listing each negative twice. Those of positives are shares.
    """

    uses_positives: ClassVar[bool] = True

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        zero = at_least_float32(given.positive)[:, None]  # relative to the target: its own term is exp(0)
        share = given.positive_weights.to(zero.dtype)
        own = share > 0
        near = (without_masked(given.positives, own) - zero) / given.temperature
        counts = given.mask & (given.weights > 0)
        log_weight = torch.where(counts, given.weights.to(zero.dtype), 1.0).log()
        far = (without_masked(given.negatives, given.mask) - zero) / given.temperature + log_weight
        every = torch.cat([near.masked_fill(~own, -torch.inf), far.masked_fill(~counts, -torch.inf)], dim=1)
        mean = (share * near.masked_fill(~own, 0.0)).sum(1) / share.sum(1)
        rows = (every.logsumexp(1) - mean)[:, None]
        return mean_over_rows(rows, counts.any(1, keepdim=True), torch.ones_like(rows))
