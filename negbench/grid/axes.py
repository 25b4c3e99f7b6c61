"""The axes of a comparison: names and options from flags and recipes, and their product as configurations."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from negbench.data.scene import Scenes
from negbench.errors import OptionError, quoted
from negbench.plugins.registry import SECTIONS, constructor_of, option_defaults, registry
from negbench.settings.config import Note, ResolvedConfig, RunConfig, build_config, resolved
from negbench.settings.layers import dataset_layer, merged, plugin_layer, plugin_section, recipe_settings, set_layer
from negbench.settings.options import Compare, parse_negatives, parse_seeds
from negbench.systems.system import CIR, system, with_system


@dataclass(frozen=True)
class Axes:
    """Axes of a comparison: every combination is a cell.

    Args:
        base: configuration layers below the axes; a system that they name goes below them.
        strategies, losses, backbones, datasets: plug-in sections {"name": ..., option: ...}.
        seeds: seeds of every combination.
        negatives: per query and step, for every strategy alike: draws of a corpus strategy, members that a batch
            strategy keeps; empty leaves each strategy its own number.
        top: layers above all others.
    """

    base: tuple[Mapping[str, Any], ...]
    strategies: tuple[dict[str, Any], ...]
    losses: tuple[dict[str, Any], ...]
    backbones: tuple[dict[str, Any], ...]
    datasets: tuple[dict[str, Any], ...]
    seeds: tuple[int, ...]
    negatives: tuple[int, ...] = ()
    top: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, asked: Compare) -> Axes:
        """Build the axes from the options, above the sections of the recipe.

        Raises:
            NegbenchError: an unknown name or key, or an axis without a value.
        """
        recipe = recipe_settings(asked.recipe)
        overrides = [plugin_layer(asked.plugin), *map(set_layer, asked.sets)]  # first: flags may name a file's plug-ins
        if isinstance(asked.lr, float):
            overrides.append({"train": {"lr": asked.lr}})
        objective = system(str(recipe["system"])).objective if "system" in recipe else {}
        below = {"loss": "bradley-terry", "backbone": "tiny", "dataset": "synthetic", **merged([objective, recipe])}
        losses, backbones, datasets = (
            expand(SECTIONS[section], [below[section]] if given is None else given)
            for section, given in (("loss", asked.losses), ("backbone", asked.backbones), ("dataset", asked.datasets))
        )
        given = dataset_layer(None, asked.data_root, asked.allow_missing).get("dataset", {})
        axes = cls(
            base=(recipe, *overrides),
            strategies=expand("strategies", asked.strategies),
            losses=losses,
            backbones=_with_sets(backbones, "backbone", overrides),
            datasets=tuple({**section, **given} for section in _with_sets(datasets, "dataset", overrides)),
            seeds=parse_seeds(asked.seeds),
            negatives=parse_negatives(asked.negatives),
        )
        if not (axes.strategies and axes.losses and axes.backbones and axes.datasets):
            raise OptionError("an axis is empty: name at least one strategy, loss, backbone and data set")
        return axes

    def configs(self, note: Note = warnings.warn) -> list[RunConfig]:
        """Return every cell's configuration, ordered by data set and backbone so that features are loaded once.

        Args:
            note: called once per component of the system that the backbone or data set does not support.
        """
        scenes, remarks = Scenes(), dict[str, None]()
        configs = []
        for layers in self._layers():
            whole, missing = with_system(layers, scenes)
            configs.append(build_config([whole]))
            remarks |= dict.fromkeys(missing)
        for remark in remarks:
            note(remark)
        return configs

    def above(self, layers: Sequence[Mapping[str, Any]]) -> Axes:
        """Return the same axes with these layers above all others."""
        return replace(self, top=(*self.top, *layers))

    def labels(self, configs: Sequence[RunConfig]) -> list[dict[str, str]]:
        """Return extra labels for each of `configs`: strategy names followed by the number of negatives, if given."""
        if not self.negatives:
            return [{} for _ in configs]
        named = [(labels_of(resolved(config))["strategy"], config.train.num_negatives) for config in configs]
        return [{"strategy": f"{strategy} x{count}"} for strategy, count in named]

    def _layers(self) -> Iterator[list[Mapping[str, Any]]]:
        """Yield the layers of each cell; the number of negatives varies fastest."""
        axes = (self.datasets, self.backbones, self.seeds, self.losses, self.strategies)
        for dataset, backbone, seed, loss, strategy in itertools.product(*axes):
            layer = {"dataset": dataset, "backbone": backbone, "seed": seed, "loss": loss, "strategy": strategy}
            for count in self.negatives or (None,):
                drawn = {} if count is None else {"train": {"num_negatives": count}}
                yield [*self.base, layer, drawn, *self.top]


def expand(kind: str, given: str | Mapping[str, Any] | Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Turn 'all', 'cir', 'a,b:k=1' (a flag), a table, or a list of names and tables (a recipe) into plug-in sections.

    "cir" selects the strategies of the papers on composed image retrieval (`negbench.systems.system.CIR`).
    "all" leaves out strategies that read a guide or a judge, which a run has only if it is configured.
    """
    sections: list[dict[str, Any]] = []
    for item in listed(given, kind):
        if item == "all":
            sections.extend({"name": name} for name in registry.plugins(kind) if not _needs_another(kind, name))
        elif item == "cir" and kind == "strategies":
            sections.extend({"name": name} for name in CIR)
        else:
            sections.append(plugin_section(kind, item if isinstance(item, Mapping) else str(item)))
    for section in sections:
        registry.parts(kind, str(section.get("name")))
    return tuple(sections)


def listed(given: Any, what: str) -> list[Any]:
    """Split 'a,b' (a flag), one table, or a list (a recipe) into names and tables.

    Raises:
        OptionError: anything else; the message names `what`.
    """
    if isinstance(given, str):
        return [part for part in re.split(r",(?![^\[]*\])", given) if part.strip()]  # not the commas of a list
    entries = [given] if isinstance(given, Mapping) else given
    if not isinstance(entries, Sequence) or not all(isinstance(each, str | Mapping) for each in entries):
        raise OptionError(f"{what} {quoted(given)}: expected comma-separated names, or a list of names and tables")
    return list(entries)


def _needs_another(kind: str, name: str) -> bool:
    """Whether this strategy reads a guide or a judge, which not every run has, and so is not one of "all"."""
    if kind != "strategies":
        return False
    strategy: Any = registry.get(kind, name)
    return bool({"guide", "judge"} & set(strategy.reads))


def label(section: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return a plug-in's name in tables: 'qure', or 'qure(variant=release)' if it differs from the defaults."""
    options = {k: v for k, v in section.items() if k != "name" and defaults.get(k) != v}
    inside = ", ".join(f"{k}={v}" for k, v in options.items())
    return f"{section['name']}({inside})" if inside else str(section["name"])


def short(labels: Iterable[str]) -> dict[str, str]:
    """Return label -> label with paths cut to file names, unless two labels would become equal."""
    cut = {label: re.sub(r"(?<=[=:])[/~][^,)]*", lambda match: Path(match[0]).name, label) for label in labels}
    return cut if len(set(cut.values())) == len(cut) else {label: label for label in cut}


def labels_of(config: ResolvedConfig) -> dict[str, str]:
    """Return strategy, loss and backbone as tables print them, leaving out a world that equals the data set's."""
    labels, world = {}, config.dataset.options.get("world")
    for section, kind in (("strategy", "strategies"), ("loss", "losses"), ("backbone", "backbones")):
        plugin = getattr(config, section)
        defaults = option_defaults(constructor_of(kind, registry.get(kind, plugin.name)))
        options = {key: value for key, value in plugin.options.items() if key != "world" or value != world}
        labels[section] = label({"name": plugin.name, **options}, defaults)
    return labels


def _with_sets(
    sections: tuple[dict[str, Any], ...], name: str, overrides: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """Apply `--set backbone.KEY=...` to every entry of the axis."""
    extra: dict[str, Any] = {}
    for layer in overrides:
        extra.update(layer.get(name, {}) if isinstance(layer.get(name), dict) else {})
    return tuple({**section, **extra} for section in sections)
