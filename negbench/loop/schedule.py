"""Schedule of a run: its strategy in each epoch, when pools are defined, and the learning rate."""

import math
import warnings
from dataclasses import dataclass

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from negbench.contracts import Strategy
from negbench.errors import OptionError
from negbench.mining.composite import parts_of
from negbench.plugins.registry import registry
from negbench.settings.config import ResolvedConfig, ResolvedTrain, refresh_epochs


@dataclass(frozen=True)
class Phase:
    """One strategy over some epochs of a run.

    Attributes:
        end: the first epoch after it.
        strategy: supplies the negatives of the steps.
        mined: defines the pools of a corpus strategy: itself, or all of the corpus before its first refresh.
        refreshes: epochs before which pools are defined.
        is_last: whether it is the run's last phase; only its refreshes count as those of the run.
    """

    end: int
    strategy: Strategy
    mined: Strategy
    refreshes: tuple[int, ...]
    is_last: bool


def phases_of(strategy: Strategy, config: ResolvedConfig) -> list[Phase]:
    """Return the phases of a run: a switch's earlier strategies, the last one's warm-up, and the last one."""
    epochs = config.train.epochs
    listed = config.schedule.refresh_epochs
    *early, (start, last) = parts_of(strategy)
    ends = [begin for begin, _ in parts_of(strategy)[1:]]
    plan: list[Phase] = []
    for (begin, part), end in zip(early, ends, strict=True):
        refreshes: tuple[int, ...] = ()
        if part.scope == "corpus":
            due = (begin,) if part.n_def == 1 else refresh_epochs(epochs, part.n_def, warmup=begin)
            refreshes = tuple(epoch for epoch in due if epoch < end)
        plan.append(Phase(end, part, part, refreshes, is_last=False))
    if last.scope == "batch":
        return [*plan, Phase(epochs, last, last, (), is_last=True)]
    first = listed[0] if listed else epochs
    if first > start:
        plan.append(Phase(first, last, registry.make("strategies", "all-corpus"), (start,), is_last=False))
    return [*plan, Phase(epochs, last, last, listed, is_last=True)]


def check_batches(train: ResolvedTrain, queries: int) -> None:
    """Raise OptionError if an epoch of so many queries has no step."""
    if train.steps(queries) == 0:
        raise OptionError(
            f"train.drop_last leaves out what does not fill a batch of {train.batch_size}, and there are {queries} "
            f"train queries: --set train.batch_size={max(2, queries // 2)}, or --set train.drop_last=false"
        )


def rate_schedule(optimizer: torch.optim.Optimizer, train: ResolvedTrain, steps_per_epoch: int) -> LRScheduler:
    """Return the schedule of the learning rate (`train.lr_schedule`): torch's one cycle, or `cosine`.

    One cycle rises by half a cosine from lr * lr_start_ratio to lr over `lr_warmup_epochs`, at most half of the
    schedule, and falls by another to lr * min_lr_ratio; the optimizer's beta1 falls from 0.95 to 0.85, and rises again.
    """
    if train.lr_schedule == "cosine":
        return cosine(optimizer, train, steps_per_epoch)
    epochs = train.lr_schedule_epochs or train.epochs
    total = epochs * steps_per_epoch
    rise = min(train.lr_warmup_epochs / epochs, 0.5)
    if rise * total == 1:  # torch divides by the steps from the first to the last of the rise
        rise = 1.5 / total
    fall = math.inf if train.min_lr_ratio == 0 else train.lr_start_ratio / train.min_lr_ratio
    return OneCycleLR(
        optimizer,
        max_lr=[group["lr"] for group in optimizer.param_groups],
        total_steps=total,
        pct_start=rise,
        div_factor=1 / train.lr_start_ratio,
        final_div_factor=fall,
    )


def cosine(optimizer: torch.optim.Optimizer, train: ResolvedTrain, steps_per_epoch: int) -> LambdaLR:
    """Warm up linearly over `lr_warmup_epochs`, then decay by half a cosine from lr to lr * min_lr_ratio.

    With `lr_update = "epoch"` all steps of an epoch have the rate of its first one, as in QuRe's train_qure.py, so that
    the last epoch stays above the floor.
    """
    total = (train.lr_schedule_epochs or train.epochs) * steps_per_epoch
    rise = round(train.lr_warmup_epochs * steps_per_epoch)
    floor = train.min_lr_ratio

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        if train.lr_update == "epoch":
            step = max(rise, step // steps_per_epoch * steps_per_epoch)
        progress = min(1.0, (step - rise) / max(1, total - rise))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))

    # of fp16, whose scaler skips the first steps where their gradients overflow
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
