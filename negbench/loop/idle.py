"""Settings that do nothing in a run, found before it is computed: refused, or named with the rows they do not reach."""

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch

from negbench.data.scene import Scenes, Split
from negbench.datasets.dataset import Dataset
from negbench.errors import OptionError
from negbench.plugins.registry import registry
from negbench.settings.config import MiningConfig, ResolvedConfig, RunConfig

MOVES_SCORES = False  # only reads configurations

_EXCLUDED = {
    "exclude_relevant": "no query of {} knows a relevant image besides its target",
    "exclude_subset": "no query of {} has a group of look-alikes",
    "exclude_reference": "no reference of {} is among the images drawn from",
}
_ROWS = 4  # most rows that a remark names

Row = tuple[str, RunConfig, ResolvedConfig]  # name, configuration as read, the same resolved


def check_idle(rows: Sequence[Row], sets: Sequence[str], scenes: Scenes) -> list[str]:
    """Return a remark on each setting that does nothing in some rows, naming them.

    Args:
        rows: of a comparison; a run or a study is one row.
        sets: texts of `--set` and `--dial`, 'key=...'. Of the schedule, what a recipe or a system sets is never
            refused: it may fit other rules and lengths.
        scenes: loads annotations.

    Raises:
        OptionError: a setting does nothing in any row that has it.
    """
    asked, found = {text.partition("=")[0].strip() for text in sets}, dict[tuple[str, str], list[str]]()
    for name, given, config in rows:
        for setting, why in _idle(given, config, scenes, asked):
            found.setdefault((setting, why), []).append(name)
    remarks = list[str]()
    for setting in dict.fromkeys(setting for setting, _ in found):
        whys = {why: list(dict.fromkeys(names)) for (other, why), names in found.items() if other == setting}
        parts = [
            f"for {', '.join(names[:_ROWS])}{' and others' * (len(names) > _ROWS)}: {why}"
            for why, names in whys.items()
        ]
        line = f"{setting} does nothing {'; '.join(parts)}"
        idle = sum(len(names) for (other, _), names in found.items() if other == setting)
        if idle == sum(given.flat().get(setting, True) not in (None, False) for _, given, _ in rows) and (
            setting in asked or not setting.startswith("schedule.")
        ):
            raise OptionError(line)
        remarks.append(line)
    return remarks


def _idle(
    given: RunConfig, config: ResolvedConfig, scenes: Scenes, asked: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the settings of one run that do nothing, and why."""
    if any(getattr(config.mining, name) for name in _EXCLUDED):
        yield from idle_exclusions(config.mining, scenes.dataset(config.dataset, "train", images=False))
    epochs, schedule = config.train.epochs, config.schedule
    strategy: Any = registry.get("strategies", config.strategy.name)
    set_here = {key for key, value in given.schedule if value is not None}
    if strategy.scope == "batch" or (schedule.n_def == 1 and schedule.refresh_epochs):
        fixed = "pools that do not depend on the scores are never redefined"
        yield from ((f"schedule.{key}", fixed) for key in sorted(set_here) if f"schedule.{key}" in asked)
        return
    if not schedule.refresh_epochs:
        why = f"a warm-up of {schedule.warmup} epochs leaves none of {epochs} to the pools: give more, or warm up less"
        one = "the one definition is the whole corpus, as of all-corpus"
        yield "schedule.warmup" if "schedule.warmup" in asked else "strategy", one if schedule.n_def == 1 else why
    if "refresh_epochs" in set_here:
        over = sorted(set_here & {"rule", "n_def", "warmup", "refresh_every"})
        yield from ((f"schedule.{key}", "schedule.refresh_epochs overrides it") for key in over)
    elif schedule.n_def > epochs and "n_def" in set_here:
        yield "schedule.n_def", f"{epochs} epochs have room for {epochs} definitions, not for {schedule.n_def}"


def idle_exclusions(mining: MiningConfig, dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield each exclusion of `mining` that leaves out no image of this data set, and why."""
    for name, why in _EXCLUDED.items():
        if getattr(mining, name) and not _excludes(name, dataset):
            yield f"mining.{name}", why.format(f"{dataset.card.name} {dataset.split}")


@lru_cache(16)
def _excludes(name: str, dataset: Dataset) -> bool:
    """Whether an exclusion leaves out an image besides the targets."""
    nothing = torch.empty(0, dtype=torch.int64)  # features and texts do not matter here
    rows = Split(dataset, nothing, nothing, {}).excluded(MiningConfig.model_validate({name: True}))
    assert rows is not None
    return bool((rows.values != dataset.target_columns.repeat_interleave(rows.lengths)).any())
