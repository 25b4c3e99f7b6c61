"""What several strategies share: gaps to the target, distances of unit vectors, and weights out of their logarithms."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from negbench.contracts import ScoreView
from negbench.strategies._ranked import at_least_float32

Triplets = Literal["semi-hard", "hard", "all"]


def gap(view: ScoreView) -> Tensor:
    """[B, N] s+ - s, float32 or wider: positive below the target, negative above it."""
    return at_least_float32(view.positive)[:, None] - at_least_float32(view.scores)


def violators(view: ScoreView, triplets: Triplets, margin: float) -> Tensor:
    """[B, N] bool: allowed images that break the margin, all of them, or those below ("semi-hard") or not ("hard")."""
    below = gap(view)
    breaks = view.allowed & (below <= margin)
    return breaks if triplets == "all" else breaks & ((below > 0) if triplets == "semi-hard" else (below <= 0))


def distance(view: ScoreView) -> Tensor:
    """[B, N] float64 Euclidean distance of unit vectors whose cosine is the score: sqrt(2 - 2 s), in [0, 2]."""
    return (2 - 2 * view.scores.double()).clamp(min=0, max=4).sqrt()


def weights_of(log_weight: Tensor, pool: Tensor) -> Tensor:
    """[B, N] float64 weights > 0 exactly in the pool, in proportion to exp(log_weight), the largest of a row 1.

    What would underflow is held at the smallest normal number, so that the pool does not depend on precision.
    """
    inside = log_weight.double().masked_fill(~pool, -torch.inf)
    top = inside.amax(1, keepdim=True) if inside.shape[1] else inside
    weights = (inside - torch.where(top.isfinite(), top, 0.0)).exp().clamp(min=torch.finfo(torch.float64).tiny)
    return weights.masked_fill(~pool, 0.0)
