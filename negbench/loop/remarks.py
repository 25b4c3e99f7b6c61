"""Warn about runs whose numbers are correct but say nothing about a strategy, or not what their settings promise."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch

from negbench.contracts import Loss, ScoreView, Slot, Strategy
from negbench.data.scene import DataCache, Split, needs_dev
from negbench.datasets.dataset import Dataset
from negbench.errors import OptionError
from negbench.loop.mining_task import planes_read
from negbench.loop.types import State
from negbench.metrics.fixed import GIVEN
from negbench.mining.composite import parts_of, slots_of
from negbench.mining.mined import copies_note
from negbench.plugins.registry import registry
from negbench.settings.config import MiningConfig, ResolvedConfig, RunConfig

MOVES_SCORES = False  # only reads results and settings

Row = tuple[str, RunConfig, ResolvedConfig]  # name, configuration as read, the same resolved

_REPEATED = 0.99  # share of the draws that are different images, below which there is a remark
_FALLBACKS = 0.10  # of the queries
_COLLAPSED = 0.98  # length of the mean of the unit query vectors
_PINNED = 0.01  # of the loss, relative, in the last quarter of the epochs


def remarks_of(config: ResolvedConfig, loss: Loss, state: State, queries: int) -> list[str]:
    """Return one line for each thing that looks wrong.

    Args:
        config: the run's.
        loss: the run's.
        state: the final one; its points and its behaviour are examined.
        queries: number of train queries.
    """
    return [
        *_remarks_on_mining(state, queries, config.train.draws),
        *_remarks_on_collapse(state),
        *_remarks_on_pinned_loss(config, loss, state),
    ]


def _remarks_on_mining(state: State, queries: int, draws: float) -> list[str]:
    """Report targets with copies, ties cut, draws that repeat, and stale pools and frequent fallbacks of refreshes.

    `draws` is the number of negatives drawn per query and step.
    """
    remarks: list[str] = []
    if state.behaviour:
        remarks += copies_note(state.behaviour[0], queries)
    for row in state.behaviour:
        when = f"epoch {int(row['epoch'])}"
        if row.get("stale"):
            remarks.append(f"{when}: the refresh changed no pool")
        share = (row.get("fallback_below", 0.0) + row.get("fallback_any", 0.0)) / queries
        if share > _FALLBACKS:
            remarks.append(f"{when}: {share:.0%} of the queries had an empty pool and drew from a fallback")
    fewest = min((row["distinct"] for row in state.behaviour if row.get("distinct")), default=draws)
    if fewest < draws * _REPEATED:
        remarks.append(
            f"draws repeat: of {draws:g} negatives per query and step {fewest:.1f} are different images, as pools are "
            "smaller than asked for"
        )
    cut = sum(row.get("cut_ties", 0.0) for row in state.behaviour)
    if cut:
        remarks.append(f"{cut:,.0f} pools cut a tie: of images with one score they hold those first in the corpus")
    return remarks


def _remarks_on_collapse(state: State) -> list[str]:
    """Report the first epoch in which all query vectors point the same way."""
    for point in state.points:
        for name, value in point.items():
            if name.endswith("/query_concentration") and value > _COLLAPSED:
                return [f"epoch {int(point['epoch']) + 1}: collapsed, all queries point the same way ({value:.3f})"]
    return []


def _remarks_on_pinned_loss(config: ResolvedConfig, loss: Loss, state: State) -> list[str]:
    """Report a loss that ends at its value for equal scores: log 2 for a logistic loss, the margin for a hinge."""
    losses = [point["train/loss"] for point in state.points if "train/loss" in point]
    if len(losses) < 4 or config.hybrid.active:
        return []
    margin = float(getattr(loss, "margin", 0.0))
    last = losses[-max(2, len(losses) // 4) :]
    for level in (math.log(2), margin):
        if level > 0 and all(abs(value - level) <= _PINNED * level for value in last):
            return [f"the loss stays at {level:.3f}, its value when all scores are equal: nothing is learned"]
    return []


# --- settings that do nothing ------------------------------------------------------------------------------------

_EXCLUDED = {  # settings of `mining`, and why they leave out nothing
    "exclude_relevant": "no query of {} knows a relevant image besides its target",
    "exclude_subset": "no query of {} has a group of look-alikes",
    "exclude_reference": "no reference of {} is among the images drawn from",
}
_NO_LIMIT = {"max_target": 1.0, "max_reference": 1.0, "margin": -2.0}  # settings of `mining` that leave out nothing
_ONCE = "its pools are defined once, before the first epoch"
_OF_DEV = ("dev", "dev_fraction", "dev_seed")
_OVERRIDDEN = {"schedule.rule", "schedule.n_def", "schedule.warmup", "schedule.refresh_every"}


def check_idle(rows: Sequence[Row], sets: Sequence[str], cache: DataCache, *, alone: bool = False) -> list[str]:
    """Return a remark on each setting that does nothing in some rows, naming them.

    Args:
        rows: of a comparison; a run is one row.
        sets: texts of `--set` and `--dial`, 'key=...'. What a recipe or a system sets of the schedule is never refused:
            it may fit other rules and lengths.
        cache: loads annotations.
        alone: whether it is one run: a comparison may choose learning rates on a dev part, and its strategies share
            the schedule, of which those that are defined once say nothing where another reads it.

    Raises:
        OptionError: a setting does nothing in any row that has it. One run of one epoch only gets the remark: people
            try a pipeline so.
    """
    keys_set = {text.partition("=")[0].strip() for text in sets}
    names_by_reason = dict[str, dict[str, list[str]]]()  # of each setting
    for name, raw, config in rows:
        reasons = list(_idle(raw, config, cache, keys_set))
        reasons += [(setting, why) for setting, why in _unread(config, alone=alone) if setting in keys_set]
        for setting, why in reasons:
            names_by_reason.setdefault(setting, {}).setdefault(why, []).append(name)
    remarks = list[str]()
    for setting, by_reason in names_by_reason.items():
        rows_with = sum(_is_set(raw, setting) for _, raw, _ in rows)
        unused = rows_with == sum(len(names) for names in by_reason.values())
        parts = []
        for why, names in by_reason.items():
            if alone or unused or why != _ONCE:
                parts.append(f"for {', '.join(dict.fromkeys(names))}: {why}")
        if not parts:
            continue
        remark = f"{setting} does nothing {'; '.join(parts)}"
        remarks.append(remark)
        smoke_test = alone and setting in ("strategy", "schedule.warmup") and _epochs_of(rows) == 1
        if unused and not smoke_test and (setting in keys_set or not setting.startswith("schedule.")):
            raise OptionError(remark)
    return remarks


def _epochs_of(rows: Sequence[Row]) -> int:
    """Return the epochs of the first row."""
    _, _, config = rows[0]
    return config.train.epochs


def _is_set(raw: RunConfig, setting: str) -> bool:
    """Whether a configuration gives a setting another value than its default; also "strategy", which has none."""
    section, _, name = setting.partition(".")
    field = type(getattr(raw, section)).model_fields.get(name)
    if field is None:
        return raw.flat().get(setting, True) not in (None, False)
    return bool(getattr(getattr(raw, section), name) != field.default)


def _idle(raw: RunConfig, config: ResolvedConfig, cache: DataCache, keys_set: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the settings of one run that do nothing, and why."""
    if any(getattr(config.mining, name) for name in _EXCLUDED):
        yield from idle_exclusions(config.mining, cache.dataset(config.dataset, "train", images=False))
    epochs = config.train.epochs
    schedule = config.schedule
    strategy: Any = registry.get("strategies", config.strategy.name)
    keys = {f"schedule.{key}" for key, value in raw.schedule if value is not None}
    if strategy.scope == "batch" or (schedule.n_def == 1 and schedule.refresh_epochs):
        for key in sorted(keys & keys_set):
            yield key, _ONCE
        return
    if not schedule.refresh_epochs:
        warm_up = "1 epoch" if schedule.warmup == 1 else f"{schedule.warmup} epochs"
        setting = "schedule.warmup" if "schedule.warmup" in keys_set else "strategy"
        if schedule.n_def == 1:
            yield setting, "the one definition is the whole corpus, as of all-corpus"
        else:
            what = f"a warm-up of {warm_up} leaves none of {epochs} to the pools"
            yield setting, f"{what}: train longer, or take it out with schedule.warmup=0"
    elif "schedule.refresh_epochs" in keys:
        for key in sorted(keys & _OVERRIDDEN):
            yield key, "schedule.refresh_epochs overrides it"
    elif schedule.n_def > epochs and "schedule.n_def" in keys:
        yield "schedule.n_def", f"{epochs} epochs have room for {epochs} definitions, not for {schedule.n_def}"


def _unread(config: ResolvedConfig, *, alone: bool) -> Iterator[tuple[str, str]]:
    """Yield settings that one run does not read, and why."""
    strategy: Strategy = registry.make("strategies", config.strategy.name, **config.strategy.options)
    loss: Loss = registry.make("losses", config.loss.name, **config.loss.options)
    for name in sorted({*GIVEN} - planes_read(strategy, config.mining, loss)):
        yield f"mining.{name}", "neither the strategy nor a filter nor the loss reads it"
    for name, limit in _NO_LIMIT.items():
        if getattr(config.mining, name) == limit:
            yield f"mining.{name}", f"no cosine is beyond {limit:g}, so that it leaves out no image"
    if not config.backbone.options.get("attribute_weights"):
        for name in loss.aspect_options:
            yield f"loss.{name}", "it is about sub-queries, and the backbone has none (backbone.attribute_weights)"
    others = config.train.batch_size - 1
    if _draws_from_batch_alone(strategy) and (config.train.num_negatives or 0) > others:
        yield "train.num_negatives", f"a batch of {config.train.batch_size} has {others} others, and all are kept"
    if _ignores_counts(strategy, config.schedule.refresh_counts):
        yield "schedule.refresh_counts", "its pools do not depend on the count"
    if config.train.lr_schedule == "cosine":
        yield "train.lr_start_ratio", "the rise to a cosine starts near 0, that of one-cycle elsewhere"
    if config.train.wrong == 0:
        yield "train.wrong_kind", "train.wrong is 0"
    if all(len(slots_of(part)) < 2 for _, part in parts_of(strategy)):
        yield "hybrid.slots", "its negatives corrupt one slot"
    if strategy.scope == "batch":
        yield "mining.replacement", "it draws from each batch anew"
        yield "mining.redraw", "it draws from each batch anew"
    elif len(config.schedule.refresh_epochs) == config.train.epochs:
        yield "mining.redraw", "its pools are defined before every epoch"
    if alone and not needs_dev(config):
        for key in _OF_DEV:
            yield f"eval.{key}", "no part is carved from train: eval.select is not dev"


def _draws_from_batch_alone(strategy: Strategy) -> bool:
    """Whether all negatives of a query are other members of its batch, each in one slot: no triples and no bank."""
    slots: set[Slot] = set()
    for _, part in parts_of(strategy):
        slots |= {*slots_of(part)}
    return strategy.scope == "batch" and slots.isdisjoint({"triple", "bank"})


def _ignores_counts(strategy: Strategy, counts: Sequence[int]) -> bool:
    """Whether a corpus strategy's pools are the same under these counts of refreshes as under 0, 1, 2, ...

    Tried on a table of random scores; False for a strategy that reads more than scores.
    """
    _, last = parts_of(strategy)[-1]
    if last.scope != "corpus" or last.reads or last.reads_truth or list(counts) == [*range(len(counts))]:
        return False
    scores = torch.rand(4, 1000, generator=torch.Generator().manual_seed(0))
    target = scores.argsort(dim=1)[:, 700]  # 700 images below it
    for refresh, count in enumerate(counts):
        by_default = last.pool(ScoreView(scores, target, refresh=refresh))
        if not torch.equal(by_default, last.pool(ScoreView(scores, target, refresh=count))):
            return False
    return True


@lru_cache(16)
def idle_exclusions(mining: MiningConfig, dataset: Dataset) -> list[tuple[str, str]]:
    """Return each exclusion of `mining` that leaves out no image of this data set besides targets, and why."""
    idle = list[tuple[str, str]]()
    nothing = torch.empty(0, dtype=torch.int64)  # neither features nor texts matter
    for name, why in _EXCLUDED.items():
        rows = Split(dataset, nothing, nothing, {}).excluded_columns(
            MiningConfig.model_validate({name: getattr(mining, name)})
        )
        if rows is not None and (rows.values == dataset.target_columns.repeat_interleave(rows.lengths)).all():
            idle.append((f"mining.{name}", why.format(f"{dataset.card.name} {dataset.split}")))
    return idle
