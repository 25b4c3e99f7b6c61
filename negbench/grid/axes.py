"""The axes of a comparison: each is a list of choices; their product gives the configurations of its cells."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Self

from negbench.errors import OptionError, quoted
from negbench.machine.files import without_folders
from negbench.metrics.fixed import OFFLINE
from negbench.plugins.registry import SECTIONS, option_defaults, registry
from negbench.settings.config import Note, ResolvedConfig, RunConfig, build_config
from negbench.settings.layers import dataset_layer, merged, plugin_layer, plugin_section, recipe_settings, set_layer
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
Fact = str | int | float | bool | None


@dataclass(frozen=True)
class AxisValue:
    """One value of an axis, or one value of each of several axes.

    Args:
        layers: configuration layers above the recipe and `--set`; later ones win.
        labels: texts that name a table or a row; they seed the intervals, so they are made once and never split.
        facts: typed columns beside the labels; a dial's is its whole key, which has a dot.
        required: False if the comparison goes on without it, naming the reason, where it cannot be planned.
    """

    layers: tuple[Layer, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    required: bool = True


def joined(choices: Iterable[AxisValue]) -> AxisValue:
    """Join the choices of several axes; the layers of the last are on top."""
    chosen = list(choices)
    layers = tuple(layer for each in chosen for layer in each.layers)
    labels = {key: text for each in chosen for key, text in each.labels.items()}
    facts = {key: fact for each in chosen for key, fact in each.facts.items()}
    return AxisValue(layers, labels, facts, all(each.required for each in chosen))


def choices_of(section: str, values: Iterable[Any]) -> list[AxisValue]:
    """Return the axis of a section of the configuration (a plug-in's, or the key `seed`)."""
    return [AxisValue(({section: value},)) for value in values] or [AxisValue()]


@dataclass(frozen=True)
class Axes:
    """What the options and the recipe say about every axis.

    Args:
        base: configuration layers below the axes.
        strategies, losses, backbones, datasets: plug-in sections {"name": ..., option: ...}.
        seeds: seeds of every combination.
        num_negatives: per query and step, for every strategy alike: draws of a corpus strategy, members that a batch
            strategy keeps; empty leaves each strategy its own number.
        epochs: training budgets; empty leaves the configured one.
    """

    base: tuple[Layer, ...]
    strategies: tuple[dict[str, Any], ...]
    losses: tuple[dict[str, Any], ...]
    backbones: tuple[dict[str, Any], ...]
    datasets: tuple[dict[str, Any], ...]
    seeds: tuple[int, ...]
    num_negatives: tuple[int, ...] = ()
    epochs: tuple[int, ...] = ()

    @classmethod
    def of(cls, asked: Compare) -> Self:
        """Read the axes from the options, above the sections of the recipe.

        Raises:
            NegbenchError: an unknown name or key, or an axis without a value.
        """
        recipe = recipe_settings(asked.recipe)
        overrides = [plugin_layer(asked.plugin), *map(set_layer, asked.sets)]  # first: flags may name a file's plug-ins
        if isinstance(asked.lr, float):
            overrides.append({"train": {"lr": asked.lr}})
        layers = (recipe, *overrides)
        systems = any("system" in layer for layer in (*layers, *map(set_layer, asked.dials)))
        losses = asked.losses if asked.losses is not None or not systems else ()  # a system brings its own
        dialled = [set_layer(f"{dial.partition('=')[0]}=0") for dial in asked.dials]
        given = dataset_layer(None, asked.data_root, asked.allow_missing).get("dataset", {})
        axes = cls(
            base=layers,
            strategies=axis_of("strategy", asked.strategies, layers, dialled),
            losses=axis_of("loss", losses, layers, dialled),
            backbones=axis_of("backbone", asked.backbones, layers, dialled),
            datasets=tuple({**each, **given} for each in axis_of("dataset", asked.datasets, layers, dialled)),
            seeds=parse_seeds(asked.seeds),
            num_negatives=tuple(int(count) for count in asked.negatives),
            epochs=tuple(int(count) for count in asked.epochs),
        )
        if not (axes.strategies and (axes.losses or not asked.losses) and axes.backbones and axes.datasets):
            raise OptionError("an axis is empty: name at least one strategy, loss, backbone and data set")
        return axes

    def choices(self) -> tuple[list[AxisValue], ...]:
        """Return the axes, the slowest first: features are loaded once, and a seed's cells are adjacent."""
        # each budget has tables, a schedule and rates of its own; `plan` adds a count to the strategy's label
        budgets = [AxisValue(({"train": {"epochs": n}},), {"epochs": str(n)}) for n in self.epochs]
        counts = [AxisValue(({"train": {"num_negatives": n}},), facts={"num_negatives": n}) for n in self.num_negatives]
        return (
            choices_of("dataset", self.datasets),
            choices_of("backbone", self.backbones),
            budgets or [AxisValue()],
            choices_of("seed", self.seeds),
            choices_of("loss", self.losses),
            choices_of("strategy", self.strategies),
            counts or [AxisValue()],
        )

    def configs(
        self, choices: Iterable[AxisValue] | None = None, cache: DataCache | None = None, note: Note = warnings.warn
    ) -> list[RunConfig]:
        """Return the configuration of each of these choices, or of all combinations of the axes.

        Args:
            choices: joined choices of all axes.
            cache: caches data sets, whose texts decide which parts of a system are supported.
            note: called once per part of a system that the backbone or data set does not support.
        """
        from negbench.data.scene import DataCache  # here, as reading a comparison needs no torch

        cache = cache or DataCache()
        remarks: dict[str, None] = {}
        configs: list[RunConfig] = []
        for choice in map(joined, product(*self.choices())) if choices is None else choices:
            whole, missing = with_system([*self.base, *choice.layers], cache)
            configs.append(build_config([whole]))
            remarks |= dict.fromkeys(missing)
        for remark in remarks:
            note(remark)
        return configs


def expand(kind: str, given: str | Mapping[str, Any] | Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Turn 'all', 'cir', 'a,b:k=1' (a flag), a table, or a list of names and tables (a recipe) into plug-in sections.

    "cir" selects the strategies of the papers on composed image retrieval (`CIR`).
    "all" leaves out strategies that read a plane of `OFFLINE`, which a run has only if it is given; "own" is an
    empty section: the strategy of the run's system.
    """
    sections: list[dict[str, Any]] = []
    for item in listed(given, kind):
        if item == "all":
            sections += [{"name": name} for name in registry.plugins(kind) if not _needs_offline_plane(kind, name)]
        elif item == "cir" and kind == "strategies":
            sections.extend({"name": name} for name in CIR)
        elif item == "own" and kind == "strategies":
            sections.append({})
        else:
            sections.append(plugin_section(kind, item if isinstance(item, Mapping) else str(item)))
    for section in filter(None, sections):
        registry.parts(kind, str(section.get("name")))
    return tuple(sections)


def _needs_offline_plane(kind: str, name: str) -> bool:
    """Whether a strategy reads a plane that a run has only if it is given."""
    if kind != "strategies":
        return False
    return bool({*OFFLINE} & {*getattr(registry.get(kind, name), "reads", ())})


def axis_of(
    section: str, given: Any, layers: Sequence[Layer], dials: Sequence[Layer] = ()
) -> tuple[dict[str, Any], ...]:
    """Return the values of an axis, each with what `--set` gives its section; a value's own options win.

    Args:
        section: of the configuration: strategy, loss, backbone or dataset.
        given: what `expand` takes; None: the one value that the layers configure.
        layers: the recipe (its options reach the values of its name by `merged`), then flags and `--set`.
        dials: a layer for each dial, whose values win over all others.

    Raises:
        OptionError: what is set beside the axis can apply to no value, or not to all.
    """
    kind = SECTIONS[section]
    if given is None:
        default = {section: RunConfig.model_fields[section].default.name}
        return expand(kind, [merged([default, *layers])[section]])
    values = expand(kind, given)
    beside = merged(layers[1:]).get(section, {})
    if not isinstance(beside, Mapping) or "name" in beside:
        raise OptionError(f"--set {section}: {kind} are an axis here; name them there, as --{kind} NAME,NAME")
    if values:
        _check_beside(section, values, beside, dials)
    return tuple({**beside, **value} if value else value for value in values)


def _check_beside(
    section: str, values: Sequence[Mapping[str, Any]], beside: Mapping[str, Any], dials: Sequence[Layer]
) -> None:
    """Refuse what is set beside an axis if it can apply to no value of it, or not to all.

    Args:
        section: of the configuration.
        values: of the axis.
        beside: option -> value, from flags and `--set`.
        dials: a layer for each dial.
    """
    kind = SECTIONS[section]
    lost = [option for option in beside if all(option in value for value in values)]
    for dial in dials:
        lost += [option for option in dial.get(section, {}) if any(option in value for value in values)]
    if lost:
        raise OptionError(f"{section}.{lost[0]} is set beside {kind} that give their own: leave one of them out")
    names = {str(value["name"]) for value in values if "name" in value}
    for option in beside:
        having = {name for name in names if option in option_defaults(registry.get(kind, name))}
        if having and having != names:
            where = f"give it where it applies, as {min(having)}:{option}=VALUE in --{kind}"
            lacking = ", ".join(sorted(names - having))
            raise OptionError(f"--set {section}.{option}: no option of {lacking}; {where}")


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


def label(section: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return a plug-in's name in tables: 'qure', or 'qure(variant=release)' if it differs from the defaults."""
    options = {k: v for k, v in section.items() if k != "name" and defaults.get(k) != v}
    inside = ", ".join(f"{k}={v}" for k, v in options.items())
    return f"{section['name']}({inside})" if inside else str(section["name"])


def short(labels: Iterable[str]) -> dict[str, str]:
    """Return label -> label with paths cut to file names; labels that would become equal get a digest of theirs."""
    cut = {label: without_folders(label) for label in labels}
    counts = Counter(cut.values())
    for label, name in cut.items():
        if counts[name] > 1 and name != label:
            cut[label] = f"{name} #{hashlib.sha256(label.encode()).hexdigest()[:4]}"
    return cut


def labels_of(config: ResolvedConfig) -> dict[str, str]:
    """Return strategy, loss and backbone as tables print them, leaving out a world that equals the data set's."""
    labels, world = {}, config.dataset.options.get("world")
    for section, kind in (("strategy", "strategies"), ("loss", "losses"), ("backbone", "backbones")):
        plugin = getattr(config, section)
        defaults = option_defaults(registry.get(kind, plugin.name))
        options = {key: value for key, value in plugin.options.items() if key != "world" or value != world}
        labels[section] = label({"name": plugin.name, **options}, defaults)
    return labels
