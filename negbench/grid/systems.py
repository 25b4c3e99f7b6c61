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
    """Return every system with every strategy, its own (`own`) first: the table's baseline.

    Args:
        names: names of the systems.
        strategies: plug-in sections.
        base: layers above a system's own (backbone, data set, `--set`); a `system` that they name is ignored.
        cache: loads the data set's texts where a part of a system reads them.
    """
    choices: list[dict[str, Any]] = []
    others = [section for section in strategies if section]  # the empty one is "own", which stands first
    for name in names:
        before = resolve(build_config([with_system([*base, {"system": name}], cache)[0]]))
        own = system(name).negatives["strategy"]
        if before.strategy.name == own["name"]:
            own = before.strategy.model_dump()  # with what `--set` gives it
        for number, section in enumerate([own, *others]):
            count = _num_negatives(before, str(section["name"]))
            choices.append({"system": name, "strategy": section, "train.num_negatives": count, "own": number == 0})
    return choices


def _num_negatives(own: ResolvedConfig, strategy: str) -> int | None:
    """Return a system's number of negatives, for another strategy in it; None: all that a batch has."""
    scopes = [registry.get("strategies", name).scope for name in (own.strategy.name, strategy)]  # type: ignore[attr-defined]
    if scopes == ["batch", "corpus"] and own.train.num_negatives is None:
        return own.train.batch_size - 1
    return own.train.num_negatives
