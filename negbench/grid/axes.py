"""The axes that options and recipe name: their product gives the configurations of a comparison's cells."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Self

from negbench.errors import OptionError, short_repr
from negbench.grid.axis import Axis, Value, parse_dial
from negbench.grid.setting import COMMON_SETTING, OWN_SETTING
from negbench.metrics.fixed import OFFLINE
from negbench.plugins.registry import SECTIONS, option_defaults, registry
from negbench.settings.config import Note, ResolvedConfig, RunConfig, build_config
from negbench.settings.layers import (
    dataset_layer,
    merge_layers,
    plugin_layer,
    plugin_section,
    recipe_settings,
    set_layer,
)
from negbench.settings.options import Compare, parse_seeds
from negbench.systems.system import with_system

if TYPE_CHECKING:
    from negbench.data.scene import DataCache

# the strategies that the four papers propose or compare with, in order of mention, and the oracles, which know the
# relevant images; strategies of the wider field belong to none of these papers
CIR = (
    "all-corpus", "top-k", "after-target", "qure", "cirqrs", "dqe", "hycole", "in-batch", "in-batch-cube",
    "oracle-after-target", "oracle-all",
)  # fmt: skip

Layer = Mapping[str, Any]
Choice = Mapping[str, Any]  # key of an axis -> one of its values; several cells, or one


@dataclass(frozen=True)
class Axes:
    """The axes that the options and the recipe name.

    Args:
        base: configuration layers below them.
        axes: the slowest first: features are loaded once, and a seed's cells are adjacent. Their keys differ.
    """

    base: tuple[Layer, ...]
    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, options: Compare) -> Self:
        """Read the axes from the options, above the sections of the recipe.

        Raises:
            NegbenchError: an unknown name or key, or an option that names nothing.
        """
        recipe = recipe_settings(options.recipe)
        overrides = [plugin_layer(options.plugin)]  # first: flags may name a file's plug-ins
        overrides += [set_layer(text) for text in options.sets]
        if isinstance(options.lr, float):
            overrides.append({"train": {"lr": options.lr}})
        layers = (recipe, *overrides)
        dials = [parse_dial(text) for text in options.dials]
        dial_layers = [set_layer(f"{dial.key}=0") for dial in dials]

        flags = dataset_layer(None, options.data_root, options.allow_missing).get("dataset", {})
        named = section_values("dataset", options.datasets, layers, dial_layers)
        datasets = tuple({**section, **flags} for section in named)
        backbones = section_values("backbone", options.backbones, layers, dial_layers)
        strategies = section_values("strategy", options.strategies, layers, dial_layers)
        losses: tuple[dict[str, Any], ...] = ()
        in_system = any("system" in layer for layer in (*layers, *dial_layers))
        if options.losses is not None or not in_system:  # a system brings its own loss
            losses = section_values("loss", options.losses, layers, dial_layers)

        epochs = tuple(int(count) for count in options.epochs)
        counts = tuple(int(count) for count in options.negatives)
        axes = [
            *dials,
            Axis("dataset", datasets, "dataset"),
            Axis("backbone", backbones, "backbone"),
            Axis("train.epochs", epochs, "epochs"),  # each has a table, schedule and rates of its own
            Axis("seed", parse_seeds(options.seeds), "seed"),
            Axis("loss", losses, "loss"),
            Axis("strategy", strategies, "strategy"),
            Axis("train.num_negatives", counts, "num_negatives"),
        ]
        if options.tuned is not None:
            axes.append(Axis("settings", ("default",), "settings"))  # `tuned` follows once it is found
        if options.temperature == "grid":
            axes.append(Axis("settings", (COMMON_SETTING, OWN_SETTING), "settings"))  # alike until trials have chosen
        return cls(layers, tuple(axis for axis in axes if axis.values))

    def values(self, key: str) -> tuple[Any, ...]:
        """Return the values of an axis; none if the comparison has no such axis."""
        return next((axis.values for axis in self.axes if axis.key == key), ())

    @property
    def dials(self) -> tuple[Axis, ...]:
        """The dials among the axes."""
        return tuple(axis for axis in self.axes if axis.is_dial)

    def without(self, *keys: str) -> Axes:
        """Return these axes but those of some keys."""
        return Axes(self.base, tuple(axis for axis in self.axes if axis.key not in keys))

    def combinations(self) -> list[dict[str, Any]]:
        """Return all combinations of the axes' values."""
        keys = [axis.key for axis in self.axes]
        values_of_axes = [axis.values for axis in self.axes]
        return [dict(zip(keys, values, strict=True)) for values in product(*values_of_axes)]

    def columns(self, choice: Choice) -> dict[str, Value]:
        """Return what comparison.json says of a choice besides what follows from its configuration."""
        axes = {axis.key: axis for axis in self.axes if axis.key not in (*SECTIONS, "seed")}
        columns = {}
        for key, value in choice.items():
            if key in axes:
                columns[axes[key].column] = axes[key].table_value(value)
        return columns

    def configs(
        self, choices: Iterable[Choice] | None = None, cache: DataCache | None = None, note: Note = warnings.warn
    ) -> list[RunConfig]:
        """Return the configuration of each of these choices, or of all combinations of the axes.

        Args:
            choices: values of all axes.
            cache: caches data sets, whose texts decide which parts of a system are supported.
            note: called once per part of a system that the backbone or data set does not support.
        """
        from negbench.data.scene import DataCache  # here, as reading a comparison needs no torch

        cache = cache or DataCache()
        remarks: dict[str, None] = {}
        configs: list[RunConfig] = []
        for choice in self.combinations() if choices is None else choices:
            whole, missing = with_system([*self.base, *choice_layers(choice)], cache)
            configs.append(build_config([whole]))
            remarks |= dict.fromkeys(missing)
        for remark in remarks:
            note(remark)
        return configs


def choice_layers(choice: Choice) -> list[Layer]:
    """Return the configuration layers of a choice: sections, then single settings, which win.

    What is no setting (`settings`, `is_own_strategy`) has none.
    """
    layers: list[Layer] = []
    for key, value in choice.items():
        if key in RunConfig.model_fields or key == "system":
            layers.append({key: value})
    for key, value in choice.items():
        section, dot, option = key.partition(".")
        if dot:
            layers.append({section: {option: value}})
    return layers


def section_values(
    section: str, values: Any, layers: Sequence[Layer], dials: Sequence[Layer] = ()
) -> tuple[dict[str, Any], ...]:
    """Return the values of an axis whose values are plug-ins, each with what `--set` gives its section.

    A value's own options win.

    Args:
        section: of the configuration: strategy, loss, backbone or dataset.
        values: what `plugin_sections` takes; None: the one value that the layers configure.
        layers: the recipe (its options reach the values of its name by `merge_layers`), then flags and `--set`.
        dials: a layer for each dial, whose values win over all others.

    Raises:
        OptionError: what is set beside the axis can apply to no value, or not to all.
    """
    kind = SECTIONS[section]
    if values is None:
        default = {section: RunConfig.model_fields[section].default.name}
        return plugin_sections(kind, [merge_layers([default, *layers])[section]])
    plugins = plugin_sections(kind, values)
    beside = merge_layers(layers[1:]).get(section, {})
    if not isinstance(beside, Mapping) or "name" in beside:
        raise OptionError(f"--set {section}: {kind} are an axis here; name them there, as --{kind} NAME,NAME")
    if plugins:
        _check_beside(section, plugins, beside, dials)
    return tuple({**beside, **plugin} if plugin else plugin for plugin in plugins)


def _check_beside(
    section: str, plugins: Sequence[Mapping[str, Any]], beside: Mapping[str, Any], dials: Sequence[Layer]
) -> None:
    """Refuse what is set beside an axis if it can apply to no value of it, or not to all.

    Args:
        section: of the configuration.
        plugins: the axis' values.
        beside: option -> value, from flags and `--set`.
        dials: a layer for each dial.
    """
    kind = SECTIONS[section]
    useless = [option for option in beside if all(option in plugin for plugin in plugins)]
    for dial in dials:
        useless += [option for option in dial.get(section, {}) if any(option in plugin for plugin in plugins)]
    if useless:
        raise OptionError(f"{section}.{useless[0]} is set beside {kind} that give their own: leave one of them out")
    names = {str(plugin["name"]) for plugin in plugins if "name" in plugin}
    for option in beside:
        having = {name for name in names if option in option_defaults(registry.get(kind, name))}
        if having and having != names:
            advice = f"give it where it applies, as {min(having)}:{option}=VALUE in --{kind}"
            lacking = ", ".join(sorted(names - having))
            raise OptionError(f"--set {section}.{option}: no option of {lacking}; {advice}")


def plugin_sections(kind: str, plugins: str | Mapping[str, Any] | Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Turn 'all', 'cir', 'a,b:k=1' (a flag), a table, or a list of names and tables (a recipe) into plug-in sections.

    "cir" selects the strategies of the papers on composed image retrieval (`CIR`).
    "all" leaves out strategies that read a plane of `OFFLINE`, which a run has only if it is given; "own" is an
    empty section: the strategy of the run's system.
    """
    sections: list[dict[str, Any]] = []
    for item in split_list(plugins, kind):
        if item == "all":
            sections += [{"name": name} for name in registry.plugins(kind) if not _needs_offline_plane(kind, name)]
        elif item == "cir" and kind == "strategies":
            sections.extend({"name": name} for name in CIR)
        elif item == "own" and kind == "strategies":
            sections.append({})
        else:
            sections.append(plugin_section(kind, item if isinstance(item, Mapping) else str(item)))
    for section in sections:
        if section:
            registry.parts(kind, str(section.get("name")))
    return tuple(sections)


def _needs_offline_plane(kind: str, name: str) -> bool:
    """Whether a strategy reads a plane that a run has only if it is given."""
    if kind != "strategies":
        return False
    return bool({*OFFLINE} & {*getattr(registry.get(kind, name), "reads", ())})


def split_list(value: Any, option: str) -> list[Any]:
    """Split 'a,b' (a flag), one table, or a list (a recipe) into names and tables.

    Raises:
        OptionError: anything else, or no name; the message names the option.
    """
    if isinstance(value, str):
        parts = re.split(r",(?![^\[]*\])", value)  # not the commas of a list
        entries: Any = [part for part in parts if part.strip()]
    elif isinstance(value, Mapping):
        entries = [value]
    else:
        entries = value
    if not isinstance(entries, Sequence) or not all(isinstance(entry, str | Mapping) for entry in entries):
        raise OptionError(
            f"{option} {short_repr(value)}: expected comma-separated names, or a list of names and tables"
        )
    if not entries:
        raise OptionError(f"{option} {short_repr(value)} names nothing: give one or several, with commas between")
    return list(entries)


def labels_of_config(config: ResolvedConfig, varied: Collection[str] = ()) -> dict[str, str]:
    """Return strategy, loss and backbone as tables print them: the name, and options that differ from the defaults.

    Left out are options that a dial varies or trials choose (`varied` are their keys), since all points of it share a
    table and a line, and a world that equals the data set's.
    """
    labels = {}
    world = config.dataset.options.get("world")
    for section in ("strategy", "loss", "backbone"):
        plugin = getattr(config, section)
        defaults = option_defaults(registry.get(SECTIONS[section], plugin.name))
        options = {}
        for key, value in plugin.options.items():
            same_world = key == "world" and value == world
            if not same_world and f"{section}.{key}" not in varied:
                options[key] = value
        labels[section] = label({"name": plugin.name, **options}, defaults)
    return labels


def label(section: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return a plug-in's name in tables: 'qure', or 'qure(variant=release)' if it differs from the defaults."""
    options = {k: v for k, v in section.items() if k != "name" and defaults.get(k) != v}
    inside = ", ".join(f"{k}={v}" for k, v in options.items())
    return f"{section['name']}({inside})" if inside else str(section["name"])
