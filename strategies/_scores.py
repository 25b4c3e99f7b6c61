"""Shared by several strategies: gaps to the target, distances of unit vectors, and weights from log weights."""

from typing import Literal

import torch
from torch import Tensor

from negbench.contracts import ScoreView
from negbench.metrics.ranks import at_least_float32

Triplets = Literal["semi-hard", "hard", "all"]


def gap(view: ScoreView) -> Tensor:
    """[B, N] s+ - s, float32 or wider: positive below the target, negative above it."""
    return at_least_float32(view.positive)[:, None] - at_least_float32(view.scores)


def violators(view: ScoreView, triplets: Triplets, margin: float) -> Tensor:
    """[B, N] bool: allowed images within the margin: below the target ("semi-hard"), not below ("hard"), or "all"."""
    below = gap(view)
    breaks = view.allowed & (below <= margin)
    if triplets == "semi-hard":
        return breaks & (below > 0)
    if triplets == "hard":
        return breaks & (below <= 0)
    return breaks


def distance(view: ScoreView) -> Tensor:
    """[B, N] float64 Euclidean distance of unit vectors whose cosine is the score: sqrt(2 - 2 s), in [0, 2]."""
    return (2 - 2 * view.scores.double()).clamp(min=0, max=4).sqrt()


def weights_of(log_weight: Tensor, pool: Tensor) -> Tensor:
    """[B, N] float64 weights proportional to exp(log_weight), with row maximum 1; > 0 in the pool and 0 outside.

    Weights that would underflow are clamped to the smallest normal number, so the pool does not depend on precision.
    """
    inside = log_weight.double().masked_fill(~pool, -torch.inf)
    top = inside.amax(1, keepdim=True) if inside.shape[1] else inside
    weights = (inside - torch.where(top.isfinite(), top, 0.0)).exp().clamp(min=torch.finfo(torch.float64).tiny)
    return weights.masked_fill(~pool, 0.0)
