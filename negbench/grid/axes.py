"""The axes of a grid: names and options from flags and recipes, and their product as configurations."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from negbench.config import RunConfig, build_config, plugin_section
from negbench.errors import OptionError


@dataclass(frozen=True)
class Grid:
    """Axes of a comparison: every combination is a cell.

    Args:
        base: configuration layers below the axes (a recipe, `--set`, ...).
        strategies, losses, backbones, datasets: plug-in sections {"name": ..., option: ...}.
        seeds: of every combination.
    """

    base: tuple[Mapping[str, Any], ...]
    strategies: tuple[Mapping[str, Any], ...]
    losses: tuple[Mapping[str, Any], ...]
    backbones: tuple[Mapping[str, Any], ...]
    datasets: tuple[Mapping[str, Any], ...]
    seeds: tuple[int, ...]

    def configs(self) -> list[RunConfig]:
        """All cells; those that share a data set and a backbone stand together, so that features are loaded once."""
        axes = (self.datasets, self.backbones, self.seeds, self.losses, self.strategies)
        found = []
        for dataset, backbone, seed, loss, strategy in itertools.product(*axes):
            layer = {"dataset": dataset, "backbone": backbone, "seed": seed, "loss": loss, "strategy": strategy}
            found.append(build_config([*self.base, layer]))
        return found


def expand(kind: str, given: str | Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """'all' or 'a,b:k=1' (a flag), or a list of names and tables (a recipe) -> plug-in sections."""
    from negbench.registry import registry

    if isinstance(given, str):
        given = [part for part in re.split(r",(?![^\[]*\])", given) if part.strip()]  # not the commas of a list
    sections: list[dict[str, Any]] = []
    for item in given:
        if item == "all":
            sections.extend({"name": name} for name in registry.plugins(kind))
        else:
            sections.append(plugin_section(kind, item if isinstance(item, Mapping) else str(item)))
    for section in sections:
        registry.find(kind, str(section.get("name")))
    return tuple(sections)


def parse_seeds(text: str) -> tuple[int, ...]:
    """'3' -> 0, 1, 2; '0,5,7' -> as listed."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise OptionError(f"--seeds {text!r}: want a count (3) or a list (0,1,2)") from error
    if len(numbers) == 1 and "," not in text:
        numbers = list(range(numbers[0]))
    if not numbers or min(numbers) < 0 or len(set(numbers)) != len(numbers):
        raise OptionError(f"--seeds {text!r}: want a count (3) or a list of different seeds (0,1,2)")
    return tuple(numbers)


def label(section: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Name of a plug-in in a table: 'qure', or 'qure(variant=release)' where it differs from the defaults."""
    options = {k: v for k, v in section.items() if k != "name" and defaults.get(k) != v}
    inside = ", ".join(f"{k}={v}" for k, v in options.items())
    return f"{section['name']}({inside})" if inside else str(section["name"])
