"""Shared by `hcl` and `hn-nce`: a sum over negatives weighted by their hardness."""

from dataclasses import dataclass

import torch
from torch import Tensor

from negbench.contracts import LossInput


@dataclass(frozen=True)
class Hardened:
    """Log sums of B queries relative to the target's term exp(s+ / tau); rows without a negative are undefined.

    Attributes:
        log_sum: [B] log of the sum of w_j h_j exp((s_j - s+) / tau), h_j = exp(beta s_j / tau) / its weighted mean.
        log_count: [B] log of N, the sum of the weights w_j: the number of negatives where these are 1.
        some: [B] bool, whether the row has a negative.
    """

    log_sum: Tensor
    log_count: Tensor
    some: Tensor

    @classmethod
    def of(cls, given: LossInput, beta: float) -> "Hardened":
        """Compute both sums, with gradients through h_j; doubling the weights equals listing each negative twice."""
        gap = given.gap
        counts = given.mask & (given.weights > 0)
        some = counts.any(1)
        absent = ~counts & some[:, None]  # a row of nothing but -inf would have a gradient of NaN
        log_weight = torch.where(counts, given.weights.to(gap.dtype), 1.0).log().masked_fill(absent, -torch.inf)
        if not gap.shape[1]:
            nothing = gap.sum(1)
            return cls(nothing, nothing, some)
        logit = gap / given.temperature
        log_count = log_weight.logsumexp(1)
        log_sum = (log_weight + (1 + beta) * logit).logsumexp(1) - (log_weight + beta * logit).logsumexp(1)
        return cls(log_sum + log_count, log_count, some)
