"""The softmax over a target and its negatives, shared by several losses."""

import torch
from torch import Tensor

from negbench.contracts.loss import mean_over_rows, without_masked
from negbench.metrics.ranks import at_least_float32


def log_sum(terms: Tensor, mask: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return [B] log(1 + sum of w exp(term) over the valid negatives), and [B] bool: whether there are any.

    Never empty, thanks to the one, so that its gradient is never NaN.
    """
    counts = mask & (weights > 0)
    log_weight = torch.where(counts, weights.to(terms.dtype), 1.0).log()
    terms = (terms + log_weight).masked_fill(~counts, -torch.inf)
    return torch.cat([terms.new_zeros(len(terms), 1), terms], dim=1).logsumexp(1), counts.any(1)


def mean_of_rows(rows: Tensor, some: Tensor) -> Tensor:
    """Scalar: mean over the rows [B] that have `some` negative."""
    return mean_over_rows(rows[:, None], some[:, None], torch.ones_like(rows[:, None]))


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
    return mean_of_rows(*log_sum(gap / temperature, mask, weights))  # relative to the target, whose own term is exp(0)
