"""Schedule of a run: its strategy in each epoch, when pools are defined, and the learning rate."""

import math
import warnings
from dataclasses import dataclass
from itertools import pairwise

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
    """Return the phases of a run: a switch's earlier strategies, the last one's warm-up, and the last one.

    For example `all-corpus:5>qure`, first refresh at 8: all-corpus to 5, qure drawing from the whole corpus to 8, qure
    to the end.
    """
    epochs = config.train.epochs
    parts = parts_of(strategy)  # each with the epoch in which it begins
    phases: list[Phase] = []
    for (begin, part), (end, _) in pairwise(parts):
        phases.append(Phase(end, part, part, _refreshes_of_earlier(part, begin, end, epochs), is_last=False))
    begin, last = parts[-1]
    refreshes_of_last: tuple[int, ...] = ()
    if last.scope == "corpus":
        refreshes_of_last = config.schedule.refresh_epochs
        end_of_warmup = refreshes_of_last[0] if refreshes_of_last else epochs
        if end_of_warmup > begin:
            all_corpus = registry.make("strategies", "all-corpus")
            phases.append(Phase(end_of_warmup, last, all_corpus, (begin,), is_last=False))
    phases.append(Phase(epochs, last, last, refreshes_of_last, is_last=True))
    return phases


def _refreshes_of_earlier(part: Strategy, begin: int, end: int, epochs: int) -> tuple[int, ...]:
    """Return the refreshes of a switch's earlier strategy: the first as it begins, then as its `n_def` says, to `end`.

    `Strategy.n_def` is how often the pools are defined in a run of all these epochs; 1: only once.
    """
    if part.scope == "batch":
        return ()
    if part.n_def == 1:
        return (begin,)
    return tuple(epoch for epoch in refresh_epochs(epochs, part.n_def, warmup=begin) if epoch < end)


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
