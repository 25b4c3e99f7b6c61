"""Shared by several losses: the softmax, and means over rows with different numbers of negatives."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(scores: Tensor) -> Tensor:
    """Convert half-precision scores to float32 and leave others unchanged: exp and log lose the tail of a half."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def without_masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Set masked scores to 0, so that padding or NaN reaches no gradient."""
    return at_least_float32(scores).masked_fill(~mask, 0.0)


def mean_over_rows(values: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """Scalar: weighted mean over the valid negatives of each row, then mean over the rows that have any.

    Args:
        values: [B, M], finite even where masked.
        mask: [B, M] bool.
        weights: [B, M] >= 0; a row whose weights are all 0 has no negative.

    Returns:
        Scalar; a zero that is still connected to `values` if no row has a negative.
    """
    share = weights.to(values.dtype) * mask
    total = share.sum(1)
    some = total > 0
    rows = (share * values).sum(1) / torch.where(some, total, 1.0)
    return rows.sum() / some.sum().clamp(min=1)


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
