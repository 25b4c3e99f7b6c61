"""Scores to ranks: the only place that sorts. Ranks are taken in float32 and ties count against the model."""

from __future__ import annotations

import torch
from torch import Tensor


def descending(scores: Tensor) -> Tensor:
    """[B, N] scores -> [B, N] int64 columns by descending score, ties broken by corpus index (lower first)."""
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices
