"""Schedule of a run: its strategy in each epoch, when pools are defined, and the learning rate."""

import math
import warnings
from dataclasses import dataclass

import torch
from torch.optim.lr_scheduler import LambdaLR

from negbench.contracts import Strategy
from negbench.mining.composite import parts_of
from negbench.plugins.registry import registry
from negbench.settings.config import ResolvedConfig, refresh_epochs


@dataclass(frozen=True)
class Stage:
    """One strategy over some epochs of a run.

    Attributes:
        end: the first epoch after it.
        strategy: supplies the negatives of the steps.
        mined: defines the pools of a corpus strategy: itself, or all of the corpus before its first refresh.
        refreshes: epochs before which pools are defined.
        kept: whether they count as refreshes of the run: only the last stage's do.
    """

    end: int
    strategy: Strategy
    mined: Strategy
    refreshes: tuple[int, ...]
    kept: bool


def stages_of(strategy: Strategy, config: ResolvedConfig) -> list[Stage]:
    """Return the stages of a run: a switch's earlier strategies, the last one's warm-up, and the last one."""
    epochs = config.train.epochs
    listed = config.schedule.refresh_epochs
    *early, (start, last) = parts_of(strategy)
    ends = [begin for begin, _ in parts_of(strategy)[1:]]
    plan: list[Stage] = []
    for (begin, part), end in zip(early, ends, strict=True):
        due = (begin,) if part.n_def == 1 else refresh_epochs(epochs, part.n_def, warmup=begin)
        due = tuple(epoch for epoch in due if epoch < end) if part.scope == "corpus" else ()
        plan.append(Stage(end, part, part, due, kept=False))
    if last.scope == "batch":
        return [*plan, Stage(epochs, last, last, (), kept=True)]
    first = listed[0] if listed else epochs
    if first > start:
        plan.append(Stage(first, last, registry.make("strategies", "all-corpus"), (start,), kept=False))
    return [*plan, Stage(epochs, last, last, listed, kept=True)]


def cosine(optimizer: torch.optim.Optimizer, config: ResolvedConfig, steps_per_epoch: int) -> LambdaLR:
    """Warm up linearly over `lr_warmup_epochs`, then decay by half a cosine from lr to lr * min_lr_ratio.

    With `lr_update = "epoch"` all steps of an epoch have the rate of its first one, as in QuRe's train_qure.py, so that
    the last epoch stays above the floor.
    """
    total = config.train.epochs * steps_per_epoch
    rise = round(config.train.lr_warmup_epochs * steps_per_epoch)
    floor = config.train.min_lr_ratio

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        if config.train.lr_update == "epoch":
            step = max(rise, step // steps_per_epoch * steps_per_epoch)
        progress = min(1.0, (step - rise) / max(1, total - rise))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))

    # of fp16, whose scaler skips the first steps where their gradients overflow
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
