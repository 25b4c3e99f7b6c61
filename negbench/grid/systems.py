"""Systems as an axis: every system with the negatives of every strategy, all else unchanged.

A cell keeps the system's loss, terms, backbone options, schedule and number of negatives per query and step: a corpus
strategy in a batch system draws as many as the batch has other members, a batch strategy in a corpus system keeps as
many members as the system draws.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from negbench.data.scene import DataCache
from negbench.grid.axes import Layer
from negbench.plugins.registry import registry
from negbench.settings.config import ResolvedConfig, build_config, resolve
from negbench.systems.system import system, with_system


def system_choices(
    names: Sequence[str], strategies: Sequence[Mapping[str, Any]], base: Sequence[Layer], cache: DataCache
) -> list[dict[str, Any]]:
    """Return every system with every strategy, its own (`is_own_strategy`) first: the table's baseline.

    Args:
        names: names of the systems.
        strategies: plug-in sections.
        base: layers above a system's own (backbone, data set, `--set`); a `system` that they name is ignored.
        cache: loads the data set's texts where a part of a system reads them.
    """
    choices: list[dict[str, Any]] = []
    others = [section for section in strategies if section]  # the empty one is "own", which stands first
    for name in names:
        layer, _ = with_system([*base, {"system": name}], cache)
        config = resolve(build_config([layer]))
        baseline = system(name).negatives["strategy"]
        if config.strategy.name == baseline["name"]:
            baseline = config.strategy.model_dump()  # with what `--set` gives it
        for section in [baseline, *others]:
            count = _num_negatives(config, str(section["name"]))
            choice = {"system": name, "strategy": section, "train.num_negatives": count}
            choices.append({**choice, "is_own_strategy": section is baseline})
    return choices


def _num_negatives(config: ResolvedConfig, strategy: str) -> int | None:
    """Return the number of negatives that a strategy has in a system; None: all that a batch has.

    Args:
        config: of the system with its own strategy.
        strategy: name of this or another one.
    """
    system_plugin: Any = registry.get("strategies", config.strategy.name)
    plugin: Any = registry.get("strategies", strategy)
    if config.train.num_negatives is None and system_plugin.scope == "batch" and plugin.scope == "corpus":
        return config.train.batch_size - 1
    return config.train.num_negatives
