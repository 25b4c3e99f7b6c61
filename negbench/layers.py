"""What a command is asked for, as layers of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from negbench.config import plugin_section, recipe_settings, set_layer
from negbench.options import DatasetOptions, ModelOptions, RunSettings
from negbench.registry import SECTIONS, registry

MOVES_SCORES = False  # all that is decided here stands in the resolved configuration, which the hash holds

Named = str | Mapping[str, Any]


def plugin_layer(files: Sequence[Path] | None) -> dict[str, Any]:
    """Register files of plug-ins and name them in the configuration."""
    for file in files or ():
        registry.add_file(file)
    return {"plugins": [str(file.resolve()) for file in files]} if files else {}


def named(section: str, given: Named | None) -> dict[str, Any]:
    """One plug-in, NAME:option=value:... or a table, as a section; {} where it is not given."""
    return {} if given is None else {section: plugin_section(SECTIONS[section], given)}


def dataset_layer(name: Named | None, root: Path | None, allow_missing: bool) -> dict[str, Any]:
    """`--dataset`, `--data-root` and `--allow-missing` as a section."""
    section: dict[str, Any] = named("dataset", name).get("dataset", {})
    if root is not None:
        section["root"] = str(root)
    if allow_missing:
        section["allow_missing"] = True
    return {"dataset": section} if section else {}


def flag_layer(asked: DatasetOptions) -> dict[str, Any]:
    """`--plugin` (first: a flag may name what its files define), the plug-in flags and `--seed` of a run."""
    found = plugin_layer(asked.plugin) | dataset_layer(asked.dataset, asked.data_root, asked.allow_missing)
    if isinstance(asked, ModelOptions):
        found |= named("backbone", asked.backbone)
    if isinstance(asked, RunSettings):
        found |= named("strategy", asked.strategy) | named("loss", asked.loss)
        found |= {} if asked.seed is None else {"seed": asked.seed}
    return found


def layers_of(asked: DatasetOptions) -> list[dict[str, Any]]:
    """The recipe ({} where there is none), the flags and each `--set`, the lowest first; registers `--plugin`."""
    recipe = recipe_settings(asked.recipe) if isinstance(asked, ModelOptions) else {}
    return [recipe, flag_layer(asked), *map(set_layer, asked.sets)]
