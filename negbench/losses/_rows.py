"""The softmax over a target and its negatives, shared by several losses."""

import torch
from torch import Tensor

from negbench.contracts.loss import mean_over_rows, without_masked
from negbench.metrics.ranks import at_least_float32


def cross_entropy(
    positive: Tensor, others: Tensor, mask: Tensor, weights: Tensor, temperature: Tensor | float
) -> Tensor:
    """Scalar: mean over rows of -log(exp(s+ / tau) / (exp(s+ / tau) + sum of w exp(s / tau) over the others)).

    Equal to KL([1, 0, ..., 0] || softmax([s+, others] / tau)) where the weights are 1. A row without any valid other,
    or whose weights are all 0, does not count in the mean.

    Args:
        positive: [B] scores of the targets.
        others: [B, M] scores.
        mask: [B, M] bool.
        weights: [B, M] >= 0, absolute: doubling them equals listing each one twice.
        temperature: scalar > 0.
    """
    gap = without_masked(others, mask) - at_least_float32(positive)[:, None]
    counts = mask & (weights > 0)
    log_weight = torch.where(counts, weights.to(gap.dtype), 1.0).log()
    terms = (gap / temperature + log_weight).masked_fill(~counts, -torch.inf)
    # relative to the target, whose own term is exp(0): the sum is never empty, so its gradient is never NaN
    own = terms.new_zeros(terms.shape[0], 1)
    rows = torch.cat([own, terms], dim=1).logsumexp(1, keepdim=True)
    return mean_over_rows(rows, counts.any(1, keepdim=True), torch.ones_like(rows))
