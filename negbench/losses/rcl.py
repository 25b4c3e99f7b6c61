"""Robust complementary learning: every negative is pushed away on its own, and the target is never pulled.

Paper: TME (CVPR 2025), as its released code has it: He-Changhao/2025-CVPR-TME src/utility.py, get_closs "RCL"
(2025-06-09).
Departures: none in the formula; the released training splits its queries by their loss before, which is no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from negbench.contracts import Loss, LossInput
from negbench.losses._rows import at_least_float32, mean_over_rows, without_masked

PAPER = "TME (CVPR 2025), RCL"


@dataclass(frozen=True, kw_only=True)
class RCL(Loss):
    """Mean over queries of the sum over the negatives of -log(1 - p_j), p = softmax of [s+, s_1, ..., s_M] / tau.

    Where one negative outweighs the rest, raising another lowers its p, so the loss may fall when a negative's score
    rises.

    Args:
        tau: temperature, > 0; left out, it is the one that the caller passes, or 0.07.

    Inputs:
        | positive | negatives | mask          | weights                   | aspects |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | refused |

    A query without a valid negative, or whose weights are all 0, adds nothing and does not count in the mean. A weight
    w stands in the softmax: it adds log w to s_j / tau.
    """

    monotone: ClassVar[bool] = False

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        gap = without_masked(given.negatives, given.mask) - at_least_float32(given.positive)[:, None]
        if not gap.shape[1]:
            return gap.sum()
        counts = given.mask & (given.weights > 0)
        log_weight = torch.where(counts, given.weights.to(gap.dtype), 1.0).log()
        terms = (gap / given.temperature + log_weight).masked_fill(~counts, -torch.inf)
        own = terms.new_zeros(terms.shape[0], 1)  # the target's term, relative to itself
        # p may round to 1 for the largest negative alone: its 1 - p comes from the sum of all the others
        top = terms.argmax(1, keepdim=True)
        largest = torch.zeros_like(counts).scatter_(1, top, True)
        total = torch.cat([own, terms], dim=1).logsumexp(1, keepdim=True)
        others = torch.cat([own, terms.masked_fill(largest, -torch.inf)], dim=1).logsumexp(1, keepdim=True)
        log_p = (terms - total).masked_fill(largest, -torch.inf)
        rows = (total - others) - torch.log1p(-log_p.exp()).sum(1, keepdim=True)
        return mean_over_rows(rows, counts.any(1, keepdim=True), torch.ones_like(rows))
