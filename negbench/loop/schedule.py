"""The learning rate over a run."""

from __future__ import annotations

import math

import torch
from torch.optim.lr_scheduler import LambdaLR

from negbench.config import ResolvedConfig


def cosine(optimizer: torch.optim.Optimizer, config: ResolvedConfig, steps_per_epoch: int) -> LambdaLR:
    """Linear rise over `lr_warmup_epochs`, then half a cosine from lr to lr * min_lr_ratio over the remaining steps."""
    total = config.train.epochs * steps_per_epoch
    rise = round(config.train.lr_warmup_epochs * steps_per_epoch)
    floor = config.train.min_lr_ratio

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        progress = min(1.0, (step - rise) / max(1, total - rise))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
