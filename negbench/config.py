"""What a run is: a frozen RunConfig. Unknown keys are errors; a flag beats the recipe, the recipe beats the default."""

from __future__ import annotations

import hashlib
import inspect
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from negbench.errors import NegbenchError, OptionError, UnknownNameError


class Section(BaseModel):
    """A part of the configuration: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PluginConfig(BaseModel):
    """A plug-in by name, with its own options beside it; `resolved` checks them against the plug-in."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @property
    def options(self) -> dict[str, Any]:
        """The plug-in's own options."""
        return dict(self.model_extra or {})


class TrainConfig(Section):
    """Optimisation. None takes what the backbone recommends, or else the number in the comment."""

    epochs: int | None = Field(None, ge=1)  # 30
    batch_size: int | None = Field(None, ge=2)  # 32
    lr: float | None = Field(None, gt=0)  # 1e-4
    weight_decay: float | None = Field(None, ge=0)  # 0.05
    min_lr_ratio: float = Field(0.01, ge=0, le=1)  # the cosine ends at lr * min_lr_ratio (QuRe: 5e-6 to 5e-8)
    lr_warmup_epochs: float = Field(0.0, ge=0)  # linear rise of the learning rate; not the pools' warm-up
    # drawn per query and epoch (corpus strategies; None: 1), or kept of each query's pool (batch strategies; None: all)
    num_negatives: int | None = Field(None, ge=1)
    max_grad_norm: float | None = Field(None, gt=0)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"  # auto: bf16 on a GPU that has it, else fp32


class ScheduleConfig(Section):
    """When pools are defined. Epochs count from 0; pools are redefined before the epochs listed.

    A strategy whose pools do not depend on the scores (its published number of definitions is 1) is defined once,
    before the first epoch, whatever stands here.
    """

    n_def: int | None = Field(None, ge=1)  # None: the strategy's published number
    warmup: int | None = Field(None, ge=0)  # epochs before the first refresh; None: one interval
    refresh_epochs: tuple[int, ...] | None = None  # the explicit list; beats n_def and warmup


class MiningConfig(Section):
    """What may be a negative at all, and how negatives are drawn."""

    exclude_relevant: bool = False  # take known relevant images out for every strategy, not only the oracles
    exclude_reference: bool = False  # never draw a query's own reference image
    replacement: bool = False  # each epoch draws anew (QuRe, CIRQRS); false: no repeats until a pool is used up


class HybridConfig(Section):
    """HyCoLe's terms on privileged texts (`negbench.loop.hybrid`), and how negatives of several slots are put together.

    Weights of 0 leave a run as it is without the terms; one slot is the same under either rule.
    """

    slots: Literal["sum", "joint"] = "sum"  # the loss once per corrupted slot, added (HyCoLe), or of all slots at once
    alpha: float = Field(0.0, ge=0)  # text composition; HyCoLe: 0.4
    beta: float = Field(0.0, ge=0)  # matching of images and their texts; HyCoLe: 0.1
    # whose temperature divides the scores: the backbone's, or one of its own for the loss on images and for each term
    # (HyCoLe); auto: own where alpha or beta is above 0 and the loss fixes no tau
    temperature: Literal["auto", "own", "backbone"] = "auto"

    @property
    def active(self) -> bool:
        """Whether a run needs privileged texts."""
        return self.alpha > 0 or self.beta > 0


class EvalConfig(Section):
    """When the model is scored, and which epoch is reported."""

    every: int = Field(1, ge=1)  # epochs between two points of the val curve; the last epoch is always scored
    select: Literal["last", "dev", "val"] = "last"  # dev: best epoch on a part carved from train; val: for paper parity
    dev_fraction: float = Field(0.1, gt=0, lt=1)  # share of the train queries carved off for the dev part
    dev_seed: int | None = Field(None, ge=0)  # which queries those are; None: the run's seed decides
    reported: bool = True  # false (a study's trials): val is neither loaded nor scored, the dev part stands in for it


class ComputeConfig(Section):
    """Where a run is computed. Not part of its identity."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(1, ge=0)  # of linear algebra on the CPU; 0 leaves torch's own choice
    encode_batch_size: int = Field(128, ge=1)
    workers: int | None = Field(None, ge=0)  # processes that decode images; None: up to 4 where there are many images
    feature_memory_gib: float = Field(4.0, gt=0)  # features up to this size are held in memory, larger ones are mapped


class RunConfig(Section):
    """One run: (strategy, backbone, dataset, loss, seed) and all that determines its outcome."""

    strategy: PluginConfig
    backbone: PluginConfig = PluginConfig(name="tiny")
    dataset: PluginConfig = PluginConfig(name="synthetic")
    loss: PluginConfig = PluginConfig(name="bradley-terry")
    seed: int = Field(0, ge=0)
    train: TrainConfig = TrainConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    mining: MiningConfig = MiningConfig()
    hybrid: HybridConfig = HybridConfig()
    eval: EvalConfig = EvalConfig()
    compute: ComputeConfig = ComputeConfig()
    plugins: tuple[str, ...] = ()  # files given by --plugin

    def flat(self) -> dict[str, Any]:
        """Dotted key -> scalar, for tables and MLflow parameters."""
        return dict(_flat(self.model_dump(mode="json")))

    def identity(self) -> dict[str, Any]:
        """What determines the outcome: everything but where it is computed."""
        return self.model_dump(mode="json", exclude={"compute"})


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value


PLUGIN_SECTIONS = ("strategy", "backbone", "dataset", "loss")
_SECTIONS: dict[str, type[BaseModel]] = {
    "train": TrainConfig,
    "schedule": ScheduleConfig,
    "mining": MiningConfig,
    "hybrid": HybridConfig,
    "eval": EvalConfig,
    "compute": ComputeConfig,
}


# --- reading -----------------------------------------------------------------------------------------------------


def read_recipe(path: Path) -> dict[str, Any]:
    """A recipe file as nested dict. Raises NegbenchError where it is missing or not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NegbenchError(f"--recipe {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise NegbenchError(f"--recipe {path}: not a TOML file: {error}") from error


def parse_set(text: str) -> tuple[list[str], Any]:
    """'section.key=value' -> (['section', 'key'], value), read as TOML, else taken as a string; `none` is None."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise OptionError(f"--set {text!r}: want section.key=value, e.g. --set train.epochs=12")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = None if value == "none" else value
    return key.strip().split("."), parsed


def merged(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Later layers win, key by key; a later layer that names another plug-in drops the earlier one's options."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if key in PLUGIN_SECTIONS and isinstance(value, str):
                value = {"name": value}
            before = result.get(key)
            if isinstance(value, Mapping) and isinstance(before, dict):
                renamed = key in PLUGIN_SECTIONS and "name" in value and value["name"] != before.get("name")
                result[key] = dict(value) if renamed else {**before, **value}
            else:
                result[key] = dict(value) if isinstance(value, Mapping) else value
    return result


def load_config(
    *, recipe: Path | None = None, flags: Mapping[str, Any] | None = None, sets: Sequence[str] = ()
) -> RunConfig:
    """Build a RunConfig: defaults, then the recipe, then flags, then `--set`.

    Args:
        recipe: TOML file whose tables are RunConfig's sections.
        flags: nested dict of what the command line gave; keys with value None are left out.
        sets: 'section.key=value' texts, in order.

    Raises:
        NegbenchError: one line that names the key and the mend.
    """
    return build_config([read_recipe(recipe) if recipe else {}, _without_none(flags or {}), *map(set_layer, sets)])


def build_config(layers: Sequence[Mapping[str, Any]]) -> RunConfig:
    """RunConfig from nested dicts, later ones winning."""
    values = merged(layers)
    _check_keys(values)
    if "strategy" not in values or "name" not in dict(values["strategy"]):
        raise NegbenchError("no strategy is named: give --strategy NAME (see `negbench list strategies`) or a recipe")
    values = {key: _named(key, value) for key, value in values.items()}
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        problem = first["msg"][0].lower() + first["msg"][1:]
        raise OptionError(f"{where} = {first['input']!r}: {problem}") from error


def dataset_section(name: str) -> dict[str, Any]:
    """A data set by name, or a file of triplets by its path, as plug-in section."""
    from negbench.datasets._triplet_files import EXTENSIONS

    if Path(name).suffix.lower() in EXTENSIONS:
        return {"name": "triplets", "file": str(Path(name).expanduser().resolve())}
    return {"name": name}


def _named(key: str, value: Any) -> Any:
    """A plug-in section that gives options only keeps the default plug-in's name."""
    if key in PLUGIN_SECTIONS and key != "strategy" and isinstance(value, dict) and "name" not in value:
        default = RunConfig.model_fields[key].default
        return {"name": default.name, **value}
    return value


def set_layer(text: str) -> dict[str, Any]:
    """'section.key=value' as a configuration layer."""
    path, value = parse_set(text)
    if len(path) > 2:
        raise OptionError(f"--set {text!r}: want section.key=value, e.g. --set train.epochs=12")
    return {path[0]: value} if len(path) == 1 else {path[0]: {path[1]: value}}


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            if inner := _without_none(value):
                result[key] = inner
        elif value is not None:
            result[key] = value
    return result


def _check_keys(values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if key not in RunConfig.model_fields:
            raise UnknownNameError("section", key, RunConfig.model_fields)
        if key in _SECTIONS:
            if not isinstance(value, Mapping):
                raise OptionError(f"{key} = {value!r}: is a section; set one of its keys, e.g. {key}.KEY=value")
            for name in value:
                if name not in _SECTIONS[key].model_fields:
                    raise UnknownNameError("key", f"{key}.{name}", [f"{key}.{n}" for n in _SECTIONS[key].model_fields])
        if key in PLUGIN_SECTIONS and not isinstance(value, Mapping):
            raise OptionError(f"{key} = {value!r}: want a name")


# --- resolving ---------------------------------------------------------------------------------------------------

_FALLBACKS: dict[str, float | int] = {"epochs": 30, "batch_size": 32, "lr": 1e-4, "weight_decay": 0.05}


def resolved(config: RunConfig) -> RunConfig:
    """The same run with every default written out: plug-in options, the backbone's recommendations, the schedule.

    Two configurations that resolve to the same are the same run. Raises NegbenchError for unknown names and options.
    """
    from negbench.registry import checked_options, constructor_of, option_defaults, registry

    for path in config.plugins:
        registry.add_file(Path(path))
    sections: dict[str, Any] = {}
    for section, kind in (
        ("strategy", "strategies"),
        ("loss", "losses"),
        ("backbone", "backbones"),
        ("dataset", "datasets"),
    ):
        plugin: PluginConfig = getattr(config, section)
        constructor = constructor_of(kind, registry.get(kind, plugin.name))
        options = checked_options(kind, plugin.name, constructor, plugin.options)
        known = {k: v for k, v in option_defaults(constructor).items() if k not in _ENGINE_OPTIONS[section]}
        for name in options:
            if name not in known:
                raise OptionError(f"{section}.{name} is set by the run itself: leave it out")
        missing = [k for k, v in {**known, **options}.items() if v is inspect.Parameter.empty]
        if missing:
            raise OptionError(
                f"{section} '{plugin.name}' needs {section}.{missing[0]}: --set {section}.{missing[0]}=..."
            )
        if kind in ("strategies", "losses"):
            constructor(**options)  # its own validation, now rather than after encoding
        sections[section] = {"name": plugin.name, **json.loads(json.dumps({**known, **options}, default=_plain))}
    if not config.eval.reported and config.eval.select == "val":
        raise OptionError("eval.select = 'val' chooses on the reported split, which eval.reported = false keeps closed")
    train = config.train.model_dump()
    recommended = {**_FALLBACKS, **registry.get("backbones", config.backbone.name).recommended}  # type: ignore[attr-defined]
    if registry.get("strategies", config.strategy.name).scope == "corpus":  # type: ignore[attr-defined]
        recommended = {"num_negatives": 1, **recommended}
    sections["train"] = {k: recommended.get(k) if v is None else v for k, v in train.items()}
    sections["schedule"] = _resolved_schedule(config, int(sections["train"]["epochs"]))
    full = {**config.model_dump(), **sections}
    return RunConfig.model_validate(full)


def _resolved_schedule(config: RunConfig, epochs: int) -> dict[str, Any]:
    from negbench.registry import registry

    strategy: Any = registry.get("strategies", config.strategy.name)
    if strategy.n_def == 1:  # defined once, before the first epoch; a batch strategy has no pools to define
        return {"n_def": 1, "warmup": None, "refresh_epochs": (0,) if strategy.scope == "corpus" else ()}
    n_def = config.schedule.n_def or strategy.n_def
    listed = refresh_epochs(epochs, n_def, config.schedule)
    return {"n_def": n_def, "warmup": config.schedule.warmup, "refresh_epochs": listed}


# options of `load` that the run decides: the split, whether images are needed, the seed of the initial weights
_ENGINE_OPTIONS: dict[str, frozenset[str]] = {
    "strategy": frozenset(),
    "loss": frozenset(),
    "backbone": frozenset({"seed"}),
    "dataset": frozenset({"split", "images"}),
}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise OptionError(f"an option's value cannot be written to a file: {value!r}")


def refresh_epochs(epochs: int, n_def: int, schedule: ScheduleConfig) -> list[int]:
    """Epochs before which pools are redefined.

    The interval is ``epochs // n_def`` (at least 1). Without `warmup` pools are redefined at every later multiple of
    the interval (QuRe: 30 epochs, n_def 6: 5, 10, 15, 20, 25; 50 epochs: 8, 16, ..., 48); with it, at `warmup` and at
    every interval after. n_def = 1 never redefines. An explicit list is taken as it is.

    Raises:
        OptionError: an explicit epoch outside 0..epochs-1, or not in rising order.
    """
    if schedule.refresh_epochs is not None:
        listed = list(schedule.refresh_epochs)
        if listed != sorted(set(listed)) or any(not 0 <= e < epochs for e in listed):
            raise OptionError(f"schedule.refresh_epochs must rise within 0..{epochs - 1}, got {listed}")
        return listed
    interval = max(1, epochs // n_def)
    if n_def == 1:
        return []
    start = interval if schedule.warmup is None else schedule.warmup
    return list(range(start, epochs, interval))


# --- identity ----------------------------------------------------------------------------------------------------


@cache
def code_version() -> str:
    """Hash of the source files that can move a number; reports, tables and the command line are left out."""
    import negbench
    import negbench.backbones
    import negbench.strategies

    after = {"audit.py", "compare.py", "encode.py", "estimate.py", "exports.py", "scoring.py", "statistics.py"}
    outside = after | {"cli", "report", "testing", "study", "tracking.py", "display.py", "workers.py"}
    digest = hashlib.sha256()
    for package in (negbench, negbench.strategies, negbench.backbones):
        root = Path(next(iter(package.__path__)))
        for file in sorted(root.rglob("*.py")):
            relative = file.relative_to(root)
            if relative.parts[0] not in outside:
                digest.update(f"{root.name}/{relative.as_posix()}".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def config_hash(config: RunConfig, *, data: str) -> str:
    """Hash of a resolved configuration, the code version, the data's identity and the plug-in files' content."""
    plugins = {Path(p).name: hashlib.sha256(Path(p).read_bytes()).hexdigest() for p in config.plugins}
    identity = {**config.identity(), "plugins": plugins, "code": code_version(), "data": data}
    # the data's identity stands for the places it was read from
    identity["dataset"] = {k: v for k, v in identity["dataset"].items() if k not in ("root", "file", "gallery")}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
