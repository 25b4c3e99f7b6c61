"""What a command is asked for, as layers of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from negbench.config import plugin_section
from negbench.options import RunSettings
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


def flag_layer(asked: RunSettings) -> dict[str, Any]:
    """`--plugin` (first: a flag may name what its files define), the plug-in flags and `--seed`."""
    found = plugin_layer(asked.plugin)
    for section in ("strategy", "backbone", "loss"):
        found |= named(section, getattr(asked, section))
    found |= dataset_layer(asked.dataset, asked.data_root, asked.allow_missing)
    return found if asked.seed is None else {**found, "seed": asked.seed}
