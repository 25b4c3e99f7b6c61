"""InfoNCE: cross-entropy of the target against its negatives.

Paper: HyCoLe-HNM, eq. 1-4; van den Oord et al., arXiv:1807.03748, eq. 4.
Departures: none for negatives of one slot; whoever corrupts several slots adds up one value for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from negbench.contracts import AspectScores, Loss
from negbench.losses._rows import at_least_float32, mean_over_rows, without_masked

PAPER = "HyCoLe-HNM eq. 1-4"


@dataclass(frozen=True, kw_only=True)
class InfoNCE(Loss):
    """Mean over queries of -log(exp(s+ / tau) / (exp(s+ / tau) + sum of w exp(s- / tau) over the negatives)).

    Args:
        tau: temperature, > 0; left out, it is the one that the caller passes, or 0.07.

    Inputs:
        | positive | negatives | mask          | weights                   | aspects |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | refused |

    A query without a valid negative, or whose weights are all 0, adds nothing and does not count in the mean. Weights
    are absolute: doubling them equals listing each negative twice.
    """

    def value(
        self,
        positive: Tensor,
        negatives: Tensor,
        mask: Tensor,
        weights: Tensor,
        temperature: Tensor | float,
        aspects: Sequence[AspectScores],
    ) -> Tensor:
        """Scalar, float32 or wider."""
        gap = without_masked(negatives, mask) - at_least_float32(positive)[:, None]
        counts = mask & (weights > 0)
        log_weight = torch.where(counts, weights.to(gap.dtype), 1.0).log()
        terms = (gap / temperature + log_weight).masked_fill(~counts, -torch.inf)
        # relative to the target, whose own term is exp(0): the sum is never empty, so its gradient is never NaN
        own = terms.new_zeros(terms.shape[0], 1)
        rows = torch.cat([own, terms], dim=1).logsumexp(1, keepdim=True)
        some = counts.any(1, keepdim=True)
        return mean_over_rows(rows, some, torch.ones_like(rows))
