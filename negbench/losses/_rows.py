"""What several losses share: the mean over a batch in which rows may hold different numbers of negatives."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(scores: Tensor) -> Tensor:
    """Half-precision scores as float32, others as they are: exp and log lose the tail of a half."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def without_masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores with zeros for what is masked, so that nothing that stands there (padding, NaN) reaches a gradient."""
    return at_least_float32(scores).masked_fill(~mask, 0.0)


def mean_over_rows(values: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """Scalar: weighted mean over the valid negatives of each row, then mean over the rows that have any.

    Args:
        values: [B, M], finite even where masked.
        mask: [B, M] bool.
        weights: [B, M] >= 0; a row whose weights are all 0 has no negative.

    Returns:
        Scalar; a zero that is still connected to `values` where no row has a negative.
    """
    share = weights.to(values.dtype) * mask
    total = share.sum(1)
    some = total > 0
    rows = (share * values).sum(1) / torch.where(some, total, 1.0)
    return rows.sum() / some.sum().clamp(min=1)
