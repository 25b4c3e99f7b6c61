"""The axes of a grid: names and options from flags and recipes, and their product as configurations."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from negbench.config import Note, ResolvedConfig, RunConfig, build_config, plugin_section, resolved
from negbench.data.scene import Scenes
from negbench.errors import OptionError
from negbench.registry import constructor_of, option_defaults, registry
from negbench.systems.system import CIR, with_system


@dataclass(frozen=True)
class Grid:
    """Axes of a comparison: every combination is a cell.

    Args:
        base: configuration layers below the axes (a recipe, `--set`, ...); a system that they name goes below them.
        strategies, losses, backbones, datasets: plug-in sections {"name": ..., option: ...}.
        seeds: of every combination.
        variants: name -> layer above all others, for cells that differ in more than one plug-in (a table of ablations).
        negatives: per query and step, for every strategy alike: draws of a corpus strategy, members that a batch
            strategy keeps; none leaves each strategy its own number.
        top: layers above all others.
    """

    base: tuple[Mapping[str, Any], ...]
    strategies: tuple[Mapping[str, Any], ...]
    losses: tuple[Mapping[str, Any], ...]
    backbones: tuple[Mapping[str, Any], ...]
    datasets: tuple[Mapping[str, Any], ...]
    seeds: tuple[int, ...]
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    negatives: tuple[int, ...] = ()
    top: tuple[Mapping[str, Any], ...] = ()

    def configs(self, note: Note = warnings.warn) -> list[RunConfig]:
        """All cells; those that share a data set and a backbone stand together, so that features are loaded once.

        Args:
            note: told once, in a line, what a backbone or a data set cannot carry of the system.
        """
        scenes, remarks = Scenes(), dict[str, None]()
        found = []
        for layers in self._layers():
            whole, missing = with_system(layers, scenes)
            found.append(build_config([whole]))
            remarks |= dict.fromkeys(missing)
        for remark in remarks:
            note(remark)
        return found

    def above(self, layers: Sequence[Mapping[str, Any]]) -> Grid:
        """The same grid with these layers above all its own."""
        return replace(self, top=(*self.top, *layers))

    def labels(self, configs: Sequence[RunConfig]) -> list[dict[str, str]]:
        """What tables call each of `configs` where that does not follow from it.

        A variant stands under its name as the strategy, beside the first one's loss and backbone, so that all variants
        share a table and its tests; so does a number of negatives, behind the strategy's name.
        """
        names = list(self.variants)
        if not names and not self.negatives:
            return [{} for _ in configs]
        found = []
        for start in range(0, len(configs), len(names) or 1):
            first = labels_of(resolved(configs[start]))
            count = f" x{configs[start].train.num_negatives}" if self.negatives else ""
            several = f"{first['strategy']}: " * (len(self.strategies) > 1)
            titles = [several + name for name in names] or [first["strategy"]]
            found += [{**first, "strategy": title + count} for title in titles]
        return found

    def _layers(self) -> Iterator[list[Mapping[str, Any]]]:
        """Layers of each cell, the variants innermost."""
        axes = (self.datasets, self.backbones, self.seeds, self.losses, self.strategies)
        for dataset, backbone, seed, loss, strategy in itertools.product(*axes):
            layer = {"dataset": dataset, "backbone": backbone, "seed": seed, "loss": loss, "strategy": strategy}
            for count, variant in itertools.product(self.negatives or (None,), self.variants.values() or ({},)):
                drawn = {} if count is None else {"train": {"num_negatives": count}}
                yield [*self.base, layer, drawn, variant, *self.top]


def expand(kind: str, given: str | Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """'all', 'cir' or 'a,b:k=1' (a flag), or a list of names and tables (a recipe) -> plug-in sections.

    "cir" are the strategies of the papers on composed image retrieval (`negbench.systems.system.CIR`).
    Strategies that read a guide or a judge, which a run has only where it is told one, are not among "all".
    """
    if isinstance(given, str):
        given = [part for part in re.split(r",(?![^\[]*\])", given) if part.strip()]  # not the commas of a list
    sections: list[dict[str, Any]] = []
    for item in given:
        if item == "all":
            sections.extend({"name": name} for name in registry.plugins(kind) if not _needs_another(kind, name))
        elif item == "cir" and kind == "strategies":
            sections.extend({"name": name} for name in CIR)
        else:
            sections.append(plugin_section(kind, item if isinstance(item, Mapping) else str(item)))
    for section in sections:
        registry.parts(kind, str(section.get("name")))
    return tuple(sections)


def _needs_another(kind: str, name: str) -> bool:
    """Whether it is a strategy that not every run can have, and so not one of "all"."""
    if kind != "strategies":
        return False
    found: Any = registry.get(kind, name)
    return bool({"guide", "judge"} & set(found.reads))


def parse_negatives(given: Any) -> tuple[int, ...]:
    """'1,5,63' (a flag) or [1, 5, 63] (a recipe) -> (1, 5, 63)."""
    parts = [part for part in given.split(",") if part.strip()] if isinstance(given, str) else given
    try:
        numbers = tuple(int(part) for part in parts)
    except (TypeError, ValueError) as error:
        raise OptionError(f"--negatives {given!r}: want numbers per query and step, e.g. 1,5,63") from error
    if (numbers and min(numbers) < 1) or len(set(numbers)) != len(numbers):
        raise OptionError(f"--negatives {given!r}: want different numbers of at least 1, e.g. 1,5,63")
    return numbers


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


def short(labels: Iterable[str]) -> dict[str, str]:
    """Label -> the same with its paths cut to their file names, or to as many of their last parts as tell it apart."""
    known = list(dict.fromkeys(labels))
    for parts in range(1, 100):
        cut = [_cut(name, parts) for name in known]
        if len(set(cut)) == len(known):
            break
    return dict(zip(known, cut, strict=True))


def _cut(label: str, parts: int) -> str:
    return re.sub(r"(?<=[=:])[/~][^,)]*", lambda found: "/".join(Path(found[0]).parts[-parts:]), label)


def labels_of(config: ResolvedConfig) -> dict[str, str]:
    """Strategy, loss and backbone as tables print them."""
    found = {}
    for section, kind in (("strategy", "strategies"), ("loss", "losses"), ("backbone", "backbones")):
        plugin = getattr(config, section)
        defaults = option_defaults(constructor_of(kind, registry.get(kind, plugin.name)))
        found[section] = label({"name": plugin.name, **plugin.options}, defaults)
    return found


def parse_variants(given: Any) -> dict[str, dict[str, Any]]:
    """The recipe's list of variants, {"name": ..., section: {...}}, as name -> layer.

    Raises:
        OptionError: no list of tables, or names that are missing or stand there twice.
    """
    variants = given if isinstance(given, list) and all(isinstance(each, Mapping) for each in given) else None
    names = [each.get("name") for each in variants or ()]
    if variants is None or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise OptionError("compare.variants: want a list of tables, each with a name of its own and sections")
    return {each["name"]: {key: value for key, value in each.items() if key != "name"} for each in variants}
