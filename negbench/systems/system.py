"""Read a system's file and turn it into a configuration for a backbone and a data set."""

import functools
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench.errors import UnknownNameError
from negbench.plugins.registry import make_options, option_defaults, registry
from negbench.settings.config import Note, RunConfig, build_config, flatten, resolve_dataset
from negbench.settings.layers import flag_layer, merge_layers, recipe_settings, set_layer
from negbench.settings.options import Run

if TYPE_CHECKING:
    from negbench.data.scene import DataCache

PLAIN = "plain"  # the baseline from which a system's gain is measured
FACTORS = ("negatives", "objective", "architecture")
BASE = "base"
# starting point of all systems, for options that the backbone has; a system's parts override it
HEAD: dict[str, Any] = {"fusion": "sum", "hidden": 0}

Layer = Mapping[str, Any]


@dataclass(frozen=True)
class SystemPart:
    """An addition of a system that only some backbones and data sets support.

    Attributes:
        what: description, with the paper's equation.
        factor: objective or architecture; BASE if it is always included.
        layer: configuration.
        texts: whether it reads privileged texts of references and targets.
        composes: whether it composes texts with texts.
        stored: whether it scores the whole corpus in every step, which takes stored image features.
        captions: whether it draws texts from several captions of a query.
    """

    what: str
    factor: str
    layer: Layer
    texts: bool = False
    composes: bool = False
    stored: bool = False
    captions: bool = False

    def lacking(self, config: RunConfig, cache: "DataCache") -> str | None:
        """Return what the configured backbone or data set lacks; None if it supports the part."""
        from negbench.contracts import ComposesTexts

        cls = registry.get("backbones", config.backbone.name)
        options = option_defaults(cls)
        for name in self.layer.get("backbone", {}):
            if name not in options:
                return f"backbone '{config.backbone.name}' has no option {name}"
        if self.stored and not cls.freezes(make_options(cls, config.backbone.options)):  # type: ignore[attr-defined]
            return f"backbone '{config.backbone.name}' trains its image tower, so the batch is used"
        if self.composes and not issubclass(cls, ComposesTexts):
            return f"backbone '{config.backbone.name}' does not compose texts"
        if self.texts:
            train = cache.dataset(resolve_dataset(config), "train", images=False)
            if not any(query.reference_text and query.target_text for query in train.queries):
                return f"{train.card.name} has no texts of references and targets"
        if self.captions:
            from negbench.datasets.varied_captions import has_captions  # imports torch, which lists do without

            train = cache.dataset(resolve_dataset(config), "train", images=False)
            if not has_captions(train):
                return f"{train.card.name} keeps no two captions of a query"
        return None


@dataclass(frozen=True)
class System:
    """One published method.

    Attributes:
        name: name of its file.
        title: title for tables.
        paper: where it was published.
        summary: one line.
        negatives: configuration of the strategy, its schedule and the number of negatives drawn.
        objective: configuration of the loss.
        parts: additions that only some backbones and data sets support.
        variants: what else belongs to the negatives when the strategy's option `variant` has one of these values.
    """

    name: str
    title: str
    paper: str
    summary: str
    negatives: Layer
    objective: Layer
    parts: tuple[SystemPart, ...]
    variants: Mapping[str, Layer]

    def negatives_for(self, options: Mapping[str, Any]) -> Layer:
        """Return the configuration of the negatives, for the strategy's options as a run sets them."""
        strategy = self.negatives["strategy"]
        if options.get("name", strategy["name"]) != strategy["name"]:
            return self.negatives
        variant = options.get("variant", strategy.get("variant"))
        return merge_layers([self.negatives, self.variants.get(variant, {})])

    def supported_parts(
        self, base: Sequence[Layer], cache: "DataCache", factors: Sequence[str] = FACTORS
    ) -> tuple[tuple[SystemPart, ...], tuple[str, ...]]:
        """Return the base and the parts of these factors that `base`'s backbone and data set support, and what not.

        Backbone options come with the backbone's name, so a layer above that names it too keeps them (`merge_layers`).
        """
        config = build_config([self.negatives, self.objective, *base])
        for path in config.plugins:
            registry.add_file(Path(path))
        options = option_defaults(registry.get("backbones", config.backbone.name))
        head = {"name": config.backbone.name} | {name: value for name, value in HEAD.items() if name in options}
        supported = [SystemPart("base head", BASE, {"backbone": head})]
        remarks: list[str] = []
        for part in self.parts:
            if part.factor not in factors:
                continue
            why = part.lacking(config, cache)
            if why is not None:
                remarks.append(f"{self.title} without its {part.what}: {why}")
            elif "backbone" in part.layer:
                section = {"name": config.backbone.name, **part.layer["backbone"]}
                supported.append(replace(part, layer={**part.layer, "backbone": section}))
            else:
                supported.append(part)
        return tuple(supported), tuple(remarks)


def with_system(layers: Sequence[Layer], cache: "DataCache") -> tuple[dict[str, Any], tuple[str, ...]]:
    """Merge the layers on top of the system that their key `system` names, if any.

    `system` is a name, or a table of factors: `system.negatives = "hycole"` takes HyCoLe's negatives alone. A factor
    that is not given is that of the system named as a whole, else the plain one's. The parts go below all layers
    together, because the last layer decides which backbone has to support them.

    Returns:
        The merged layer, and a line per part of the system that its backbone or data set does not support.

    Raises:
        UnknownNameError: a system or a factor that does not exist.
    """
    settings = []
    choices = []
    for layer in layers:
        settings.append({key: value for key, value in layer.items() if key != "system"})
        if "system" in layer:
            choices.append(layer["system"])
    if not choices:
        return merge_layers(settings), ()
    by_factor = _systems_by_factor(choices)
    parts: list[SystemPart] = []
    remarks: list[str] = []
    for name in dict.fromkeys(system.name for system in by_factor.values()):
        factors = [factor for factor in FACTORS if by_factor[factor].name == name]
        supported, missing = systems()[name].supported_parts(settings, cache, factors)
        parts.extend(supported)
        remarks.extend(missing)
    parts.sort(key=lambda part: part.factor != BASE)  # the base is below the parts of any system
    negatives = by_factor["negatives"].negatives_for(merge_layers(settings).get("strategy", {}))
    whole = merge_layers([negatives, by_factor["objective"].objective, *settings])
    return merge_layers([*(part.layer for part in parts), whole]), tuple(remarks)


def _systems_by_factor(choices: Sequence[Any]) -> dict[str, System]:
    """Return the system of each factor; of the choices, names or tables of factors, the last one counts.

    Raises:
        UnknownNameError: a system or a factor that does not exist.
    """
    names: dict[str, Any] = dict.fromkeys(FACTORS, PLAIN)
    for choice in choices:
        names |= choice if isinstance(choice, Mapping) else dict.fromkeys(FACTORS, choice)
    for factor in names:
        if factor not in FACTORS:
            raise UnknownNameError("factor of a system", factor, FACTORS)
    return {factor: system(str(name)) for factor, name in names.items()}


def load_config(
    *,
    recipe: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    note: Note = warnings.warn,
) -> RunConfig:
    """Build a RunConfig from defaults, then the named system, then the recipe, then flags, then `--set`.

    Args:
        recipe: TOML file whose tables are RunConfig's sections; its key `system` names one of `list systems`.
        flags: nested dict of command-line flags.
        sets: 'section.key=value' texts, in order.
        note: called with a line per part of the system that the backbone or data set does not support.

    Raises:
        NegbenchError: one line that names the key and how to fix it.
    """
    layers = [recipe_settings(recipe), flags or {}, *(set_layer(text) for text in sets)]
    if not any("system" in layer for layer in layers):
        config = build_config(layers)
        for remark in variant_remarks(config):
            note(remark)
        return config
    from negbench.data.scene import DataCache

    whole, remarks = with_system(layers, DataCache())
    for remark in remarks:
        note(remark)
    return build_config([whole])


def config_of(options: Run, note: Note) -> RunConfig:
    """Return the configuration that the options of a run name; `note` and errors as of `load_config`."""
    flags = flag_layer(options)
    if options.system:
        flags["system"] = options.system
    if options.epochs is not None:
        flags["train"] = {"epochs": options.epochs}
    return load_config(recipe=options.recipe, flags=flags, sets=options.sets, note=note)


def variant_remarks(config: RunConfig) -> list[str]:
    """Return a line per setting of a published variant that a run of the strategy alone sets otherwise."""
    variant = config.strategy.options.get("variant", "")
    settings = config.flat()
    remarks = []
    for name, published in systems().items():
        if published.negatives["strategy"]["name"] != config.strategy.name:
            continue
        for key, value in flatten(published.variants.get(variant, {})):
            if settings[key] != value:
                remarks.append(
                    f"{config.strategy.name}:variant={variant} with {key}={str(settings[key]).lower()}: that variant "
                    f"goes with --set {key}={str(value).lower()}, as --system {name} sets it"
                )
    return remarks


def system_files() -> dict[str, Path]:
    """Return the files of all systems by name, the plain one first."""
    files = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
    return {PLAIN: files[PLAIN], **files}


@functools.cache
def systems() -> dict[str, System]:
    """Return all systems by name, the plain one first."""
    return {name: _read(path) for name, path in system_files().items()}


def system(name: str, flag: str = "--system") -> System:
    """Return a system by name. Raises UnknownNameError, which names the flag."""
    if name not in systems():
        raise UnknownNameError("system", name, systems(), where=flag)
    return systems()[name]


def _read(path: Path) -> System:
    value = tomllib.loads(path.read_text(encoding="utf-8"))
    parts = tuple(SystemPart(**part) for part in value.get("part", ()))
    return System(
        name=path.stem,
        **value["system"],
        negatives=value["negatives"],
        objective=value["objective"],
        parts=parts,
        variants=value.get("variant", {}),
    )
