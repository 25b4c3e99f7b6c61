"""Configuration of a run: a frozen RunConfig. Unknown keys are errors; flags override recipes, recipes defaults."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from negbench.errors import NegbenchError, OptionError, UnknownNameError, short_repr
from negbench.plugins.registry import SECTIONS, make_options, option_defaults, registry
from negbench.settings.layers import merge_layers, plugin_section

MOVES_SCORES = False  # everything decided here is in the resolved configuration, which is hashed

# largest accepted counts: beyond them a machine runs out of memory before it reports what is wrong
_MANY = 100_000
_ROWS = 65_536
_SEEDS = 2**63 - 1
_DEEPEST = 4  # deepest nesting of lists in an option
LEARNED: Final = "learned"  # loss.tau: no fixed temperature, so that a dial has a word for it

# keys of earlier versions: stored runs are read without them, and whoever sets one is told why it is gone
_GONE = {"compute.encode_batch_size": "how many images are encoded at once follows from the backbone"}

Rule = Literal["multiples", "equal"]
OWN_TEMPERATURES: Final = "own"  # the loss on images and each hybrid term learn a temperature of their own
# what divides scores in a loss: the backbone's learned temperature, learned ones of the loss's terms, a fixed number
Divisor = Literal["backbone", "own", "tau", "none"]
Model = TypeVar("Model", bound=BaseModel)
Note = Callable[[str], None]


class Section(BaseModel):
    """A part of the configuration: frozen, unknown keys refused, all numbers finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PluginConfig(BaseModel):
    """A plug-in's name with its own options; `resolve` checks them against the plug-in."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @property
    def options(self) -> dict[str, Any]:
        """The plug-in's own options."""
        return dict(self.model_extra or {})


class TrainConfig(Section):
    """Optimisation. None: the backbone's recommendation, or else the default in the comment."""

    epochs: int | None = Field(None, ge=1, le=_MANY)  # 30
    batch_size: int | None = Field(None, ge=2, le=_ROWS)  # 32
    lr: float | None = Field(None, gt=0, le=1e6)  # 1e-4
    weight_decay: float | None = Field(None, ge=0, le=1e6)  # 0.05
    min_lr_ratio: float = Field(0.01, ge=0, le=1)  # the cosine ends at lr * min_lr_ratio (QuRe: 5e-6 to 5e-8)
    lr_update: Literal["step", "epoch"] = "step"  # the cosine moves after each step, or once an epoch (QuRe's code)
    lr_warmup_epochs: float = Field(0.0, ge=0, le=_MANY)  # rise of the learning rate; not the pools' warm-up
    # one-cycle: torch's OneCycleLR, which rises from lr * lr_start_ratio, and moves beta1 from 0.95 to 0.85 and back
    lr_schedule: Literal["cosine", "one-cycle"] = "cosine"
    lr_start_ratio: float = Field(0.04, gt=0, le=1)  # OneCycleLR's 1 / 25; SPRC on FashionIQ: 0.01
    # epochs of the whole schedule, of which the run takes its first; None: as many as the run has
    lr_schedule_epochs: int | None = Field(None, ge=1, le=_MANY)
    beta1: float = Field(0.9, ge=0, lt=1)  # of AdamW
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0, le=1)
    drop_last: bool = False  # leave out the queries of an epoch, other ones each time, that do not fill a batch
    # drawn per query and epoch (corpus strategies; None: 1), or kept of each query's pool (batch strategies; None: all)
    num_negatives: int | None = Field(None, ge=1, le=_MANY)
    max_grad_norm: float | None = Field(None, gt=0)  # None: gradients are not clipped
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"  # auto: bf16 on a GPU that has it, else fp32
    # of the learned temperature's own parameter (log tau; BLIP's temp): its rate relative to `lr`, and what the losses
    # divide by at least (None: the backbone's bound, 0.01; 0.001 of BLIP and BLIP-2); `backbone.temperature` starts it
    temperature_rate: float = Field(1.0, ge=0, le=1e6)
    temperature_least: float | None = Field(None, gt=0, le=10)
    # share of the train triplets that get a reference, text or target of another query, by seed; all: a third each
    wrong: float = Field(0.0, ge=0, le=0.95)
    wrong_kind: Literal["reference", "text", "target", "all"] = "all"
    # epochs before queries that look wrong are left out of the loss (`negbench.loop.clean`; TME: 6 of 30); None: never
    clean_after: int | None = Field(None, ge=1, le=_MANY)
    # in each epoch a train query's text is all of its captions in a random order, or one of them (CLIP4Cir, SPRC)
    vary_captions: bool = False

    @property
    def draws(self) -> int:
        """Negatives that a corpus strategy draws per query and epoch (`mine(draws=)`: per interval)."""
        return self.num_negatives or 1


class ScheduleConfig(Section):
    """When pools are defined. Epochs count from 0; pools are redefined before the epochs listed (`refresh_epochs`).

    A strategy whose pools do not depend on the scores (its published number of definitions is 1) is defined once,
    before the first epoch, whatever is set here.
    """

    rule: Rule | None = None  # None: the strategy's, see `refresh_epochs`
    n_def: int | None = Field(None, ge=1, le=_MANY)  # None: the strategy's published number
    warmup: int | None = Field(None, ge=0, le=_MANY)  # epochs before the first refresh; None: epochs // n_def
    # epochs of an interval after the warm-up, so that pools are equally old in short and long runs; None: what n_def
    # gives. Pools that shrink with the count of refreshes then shrink at the same shares of training as under n_def
    refresh_every: int | None = Field(None, ge=1, le=_MANY)
    refresh_epochs: tuple[int, ...] | None = None  # an explicit list; overrides all above
    refresh_counts: tuple[int, ...] | None = None  # of that list: `ScoreView.refresh` at each; None: 0, 1, 2, ...


SCORE_FILES = (".trec", ".run", ".txt")  # endings of TREC run files


def is_score_file(text: str) -> bool:
    """Whether a guide or a judge is a TREC run file of scores, not a backbone."""
    return Path(text).suffix in SCORE_FILES


class MiningConfig(Section):
    """Which images may be negatives, how they are drawn, and what else scores images (`negbench.mining.planes`)."""

    exclude_relevant: bool = False  # exclude known relevant images for every strategy, not only the oracles
    exclude_reference: bool = False  # never draw a query's own reference image
    replacement: bool = False  # each epoch draws anew (QuRe, CIRQRS); false: no repeats until a pool is used up
    redraw: bool = True  # false: one draw serves all epochs until the pools are next defined
    # sources of scores besides the model's own: a backbone as for --backbone, or a TREC run file
    guide: str | None = None  # scores images for the query: by its composed embedding, or as stored per (query, image)
    judge: str | None = None  # scores likeness to the target: by its image embeddings, or as stored per (query, image)
    # false-negative filters, for every strategy (`negbench.mining.filters`): drop images that are likely to satisfy the
    # query; s+ is the target's score
    exclude_subset: bool = False  # images of the query's own group of look-alikes (CIRR's image groups)
    margin: float | None = Field(None, ge=-2, le=2)  # images with s > s+ - margin
    relative_margin: float | None = Field(None, ge=0, le=1000)  # images with s > s+ - relative_margin |s+|
    guide_margin: float | None = Field(None, ge=-1e6, le=1e6)  # the same for the guide's scores: g > g+ - guide_margin
    max_judge: float | None = Field(None, ge=-1e6, le=1e6)  # images that the judge scores above it
    max_target: float | None = Field(None, ge=-1, le=1)  # images whose cosine to the target is above it
    max_reference: float | None = Field(None, ge=-1, le=1)  # the same for the reference image

    @property
    def follows_scores(self) -> bool:
        """Whether the filters' decisions change while the model trains."""
        moving = (self.margin, self.relative_margin, self.max_target, self.max_reference)
        return any(value is not None for value in moving)

    @property
    def backbones(self) -> tuple[PluginConfig, ...]:
        """Backbones among guide and judge."""
        names = [text for text in (self.guide, self.judge) if text is not None and not is_score_file(text)]
        return tuple(PluginConfig(**plugin_section("backbones", name)) for name in names)


class HybridConfig(Section):
    """HyCoLe's terms on privileged texts (`negbench.loop.hybrid`), and how negatives of several slots are combined.

    Weights of 0 leave a run as it is without the terms; for one slot both rules are the same.
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

    every: int = Field(1, ge=1, le=_MANY)  # epochs between two points of the val curve; the last epoch is always scored
    select: Literal["last", "dev", "val"] = "last"  # dev: best epoch on a part carved from train; val: for paper parity
    dev_fraction: float = Field(0.1, gt=0, lt=1)  # share of the train queries carved off for the dev part
    dev_seed: int | None = Field(None, ge=0, le=_SEEDS)  # which queries those are; None: the run's seed decides
    dev: Literal["carved", "generated"] = "carved"  # generated (vectors, synthetic): fresh queries; train stays whole
    reported: bool = True  # false (a study's trials): val is neither loaded nor scored, the dev part replaces it
    also: PluginConfig | None = None  # a data set whose val is scored for the curve too (hp-fashioniq: preference rate)

    @field_validator("also", mode="before")
    @classmethod
    def _parse_name(cls, value: object) -> object:
        return plugin_section("datasets", value) if isinstance(value, str) else value


class ComputeConfig(Section):
    """Where a run is computed. Not part of its identity."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    # queries or images that pass the trained part at a time, with the gradients of the whole batch; 0: all at once;
    # auto: on a GPU as many as its memory takes (`negbench.loop.step_plan`), else 0
    micro_batch: int | Literal["auto"] = "auto"
    # keep few activations and compute the others again in the backward pass, layer by layer; auto: on a GPU if the
    # step does not fit otherwise
    recompute: bool | Literal["auto"] = "auto"
    processes: int = Field(1, ge=1, le=1024)  # that compute the run together, each on a GPU of its own
    threads: int = Field(1, ge=0, le=1024)  # for linear algebra on the CPU; 0 keeps torch's own choice
    # threads of the run's process that read stored features and decode pictures, ahead of the steps; None or 0: one a
    # core, at least 4 (the option `--workers` is another number: of processes, each of which computes a run)
    workers: int | None = Field(None, ge=0, le=1024)
    # stored features up to this size are held in the device's memory, the others are read ahead; None: on a GPU what a
    # step leaves, at most half of its free memory; on a CPU 4 GiB
    feature_memory_gib: float | None = Field(None, gt=0, le=1e6)

    @field_validator("micro_batch", mode="before")
    @classmethod
    def _check_micro_batch(cls, value: object) -> object:
        if value == "auto":
            return value
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise PydanticCustomError("micro_batch", "expected auto, or a whole number from 0 (the whole batch) on")
        if value > _ROWS:
            raise PydanticCustomError("micro_batch", "input should be less than or equal to {most}", {"most": _ROWS})
        return value

    @field_validator("recompute", mode="before")
    @classmethod
    def _check_recompute(cls, value: object) -> object:
        if value != "auto" and not isinstance(value, bool):
            raise PydanticCustomError("recompute", "expected auto, true or false")
        return value

    @model_validator(mode="before")
    @classmethod
    def _drop_old_keys(cls, values: object) -> object:
        """Leave out what only runs of earlier versions have stored."""
        if not isinstance(values, Mapping):
            return values
        return {name: value for name, value in values.items() if f"compute.{name}" not in _GONE}


class RunConfig(Section):
    """One run: (strategy, backbone, dataset, loss, seed) and all that determines its outcome."""

    strategy: PluginConfig
    backbone: PluginConfig = PluginConfig(name="tiny")
    dataset: PluginConfig = PluginConfig(name="synthetic")
    loss: PluginConfig = PluginConfig(name="bradley-terry")
    seed: int = Field(0, ge=0, le=_SEEDS)
    train: TrainConfig = TrainConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    mining: MiningConfig = MiningConfig()
    hybrid: HybridConfig = HybridConfig()
    eval: EvalConfig = EvalConfig()
    compute: ComputeConfig = ComputeConfig()
    plugins: tuple[str, ...] = ()  # files given by --plugin

    @model_validator(mode="before")
    @classmethod
    def _move_old_keys(cls, values: object) -> object:
        """Move the options of earlier versions, in recipes and in stored runs, to where they are now."""
        return move_keys(values) if isinstance(values, Mapping) else values

    @field_validator("loss")
    @classmethod
    def _reset_learned_tau(cls, loss: PluginConfig) -> PluginConfig:
        """Turn loss.tau = "learned" into its default, None; a loss without a temperature refuses it later."""
        if loss.options.get("tau") != LEARNED:
            return loss
        plugin: Any = registry.get("losses", loss.name)
        if not plugin.uses_temperature:
            return loss
        return PluginConfig(name=loss.name, **{**loss.options, "tau": None})

    @property
    def divisor(self) -> Divisor:
        """What divides the scores in the loss on images.

        Raises:
            UnknownNameError: there is no such loss.
        """
        loss: Any = registry.get("losses", self.loss.name)
        if not loss.uses_temperature:
            return "none"
        if self.loss.options.get("tau") is not None:
            return "tau"
        hybrid = self.hybrid
        if hybrid.temperature == OWN_TEMPERATURES or (hybrid.temperature == "auto" and hybrid.active):
            return OWN_TEMPERATURES
        return "backbone"

    def flat(self) -> dict[str, Any]:
        """Dotted key -> scalar, for tables and MLflow parameters."""
        return dict(flatten(self.model_dump(mode="json")))


class ResolvedTrain(TrainConfig):
    """Optimisation with every number set."""

    epochs: int = Field(ge=1, le=_MANY)
    batch_size: int = Field(ge=2, le=_ROWS)
    lr: float = Field(gt=0)
    weight_decay: float = Field(ge=0)

    def steps(self, queries: int) -> int:
        """Return the number of optimiser steps of an epoch."""
        if self.drop_last:
            return queries // self.batch_size
        return math.ceil(queries / self.batch_size)


class ResolvedSchedule(ScheduleConfig):
    """The resolved schedule: a run reads only `refresh_epochs`; the other fields say how it was derived."""

    rule: Rule
    n_def: int = Field(ge=1, le=_MANY)
    warmup: int = Field(ge=0, le=_MANY)
    refresh_epochs: tuple[int, ...]
    refresh_counts: tuple[int, ...]


class ResolvedEval(EvalConfig):
    """Evaluation with the seed of the dev part set."""

    dev_seed: int = Field(ge=0, le=_SEEDS)


class ResolvedConfig(RunConfig):
    """A configuration as `resolve` returns it: plug-ins found, all options and defaults filled in."""

    train: ResolvedTrain
    schedule: ResolvedSchedule
    eval: ResolvedEval

    def other_backbone(self, plugin: PluginConfig) -> PluginConfig:
        """Resolve another backbone that the run reads (`mining.guide`), in the run's world."""
        return PluginConfig(**_resolve_plugin("backbone", plugin, self.dataset.options.get("world")))

    def identity(self) -> dict[str, Any]:
        """Return what determines the outcome: not where it is computed, nor how the schedule's epochs were derived.

        A key at its default is left out, so that a run keeps its identity when a section or a plug-in gains a key.
        A default must therefore never change: `tests/test_identity.py` lists those of the sections, and a plug-in's
        are part of its code.
        The content of plug-in files is part of the code (`negbench.loop.identity.code_version`), their path is not.
        """
        settings = self.model_dump(mode="json", exclude={"compute", "plugins", "schedule"})
        for name, field in RunConfig.model_fields.items():
            if name in SECTIONS:
                defaults = option_defaults(registry.get(SECTIONS[name], settings[name]["name"]))
            elif name in settings and isinstance(field.default, Section):
                defaults = field.default.model_dump(mode="json")
            else:
                continue
            for key, default in defaults.items():
                if key in settings[name] and settings[name][key] == default:
                    del settings[name][key]
        settings["hybrid"].pop("temperature", None)  # "auto" is one of the other two
        if self.divisor == OWN_TEMPERATURES:
            settings["hybrid"]["temperature"] = OWN_TEMPERATURES
        for name in ("guide", "judge"):  # the content of a file of scores counts (`plan_run`), its path does not
            if is_score_file(settings["mining"].get(name, "")):
                del settings["mining"][name]
        schedule = {"refresh_epochs": list(self.schedule.refresh_epochs)}
        counts = list(self.schedule.refresh_counts)
        if counts != list(range(len(counts))):
            schedule["refresh_counts"] = counts
        return {**settings, **schedule}


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and scalar of every leaf of nested dicts."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value


# option of earlier versions -> where it is now
_MOVED = {
    ("backbone", "grad_checkpointing"): ("compute", "recompute"),
    ("backbone", "precision"): ("train", "precision"),  # of BLIP's and BLIP-2's towers
}


def move_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's values with options of earlier versions where they are now; new names win.

    An option that was off is left out: off was its default.
    """
    tables = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    for (old_section, old_name), (section, name) in _MOVED.items():
        old_table = tables.get(old_section)
        table = tables.get(section, {})
        if isinstance(old_table, dict) and isinstance(table, dict) and old_name in old_table:
            value = old_table.pop(old_name)
            if value is not False:
                tables[section] = {name: value, **table}
    return tables


_OWN: dict[str, Any] = {  # sections that do not name a plug-in
    name: field.annotation for name, field in RunConfig.model_fields.items() if isinstance(field.default, Section)
}


# --- reading -----------------------------------------------------------------------------------------------------


def build_config(layers: Sequence[Mapping[str, Any]]) -> RunConfig:
    """Build a RunConfig from nested dicts; later ones win."""
    values = merge_layers(layers)
    _check_keys(values)
    for key, value in values.items():
        _check_value(key, value)
    if "strategy" not in values or "name" not in dict(values["strategy"]):
        raise NegbenchError("no strategy is named: give --strategy NAME (see `negbench list strategies`) or a recipe")
    return _validate(RunConfig, {key: with_default_name(key, value) for key, value in values.items()})


def _validate(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Validate the values as a configuration; raise OptionError for the first that does not fit."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        problem = first["msg"][0].lower() + first["msg"][1:]
        raise OptionError(f"{key} = {short_repr(first['input'])}: {problem}") from error


def _check_value(key: str, value: Any, depth: int = 0) -> None:
    """Refuse values that no option can have, before anything uses them: inf, 5,000 digits, dates, deep lists."""
    if isinstance(value, Mapping | list | tuple):
        if depth > _DEEPEST:
            raise OptionError(f"{key}: lists are nested too deeply for any option")
        for name, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            if isinstance(name, str) and not name.isprintable():
                raise OptionError(f"{key}: {short_repr(name)} is not a valid option name")
            _check_value(f"{key}.{name}" if isinstance(value, Mapping) else key, item, depth + 1)
        return
    if isinstance(value, float):
        valid = math.isfinite(value)
        expected = "a finite number"
    elif isinstance(value, int):
        valid = -(2**63) <= value < 2**63
        expected = "a number of at most 18 digits"
    elif isinstance(value, str):
        valid = re.search("[\0\ud800-\udfff]", value) is None
        expected = "valid text without null bytes"
    else:
        valid = value is None or isinstance(value, Path)
        expected = "text, a number, true or false, or a list of them"
    if not valid:
        raise OptionError(f"{key} = {short_repr(value)}: expected {expected}")


def with_default_name(key: str, value: Any) -> Any:
    """Add the default plug-in's name to a plug-in section that gives only options."""
    if key in SECTIONS and key != "strategy" and isinstance(value, dict) and "name" not in value:
        return {"name": RunConfig.model_fields[key].default.name, **value}
    return value


def _check_keys(values: Mapping[str, Any]) -> None:
    """Refuse keys that a configuration does not have, before it is validated."""
    for key, value in values.items():
        if key not in RunConfig.model_fields:
            raise UnknownNameError("section", key, RunConfig.model_fields)
        if key in _OWN:
            if not isinstance(value, Mapping):
                raise OptionError(f"{key} = {short_repr(value)}: {key} is a section: --set {key}.KEY=VALUE")
            _check_names(key, value)
        if key in SECTIONS and not isinstance(value, Mapping):
            raise OptionError(f"{key} = {short_repr(value)}: expected a name")


def _check_names(section: str, names: Iterable[str]) -> None:
    """Refuse names that a section does not have; says what there is in their place."""
    for name in names:
        key = f"{section}.{name}"
        if "accum" in name and section in ("train", "compute"):
            raise OptionError(
                f"{key}: a large batch passes in parts, with the gradients of the whole batch and all "
                "of its negatives, by --set compute.micro_batch=8; train.batch_size stays the whole batch"
            )
        if key in _GONE:
            raise OptionError(f"{key} is no longer a setting: {_GONE[key]}; leave it out")
        fields = _OWN[section].model_fields
        if name not in fields:
            raise UnknownNameError("key", key, [f"{section}.{field}" for field in fields])


# --- resolving ---------------------------------------------------------------------------------------------------

_FILTERED_N_DEF = 6  # a strategy's default (`negbench.contracts.Strategy`)
_FALLBACKS: dict[str, float | int] = {"epochs": 30, "batch_size": 32, "lr": 1e-4, "weight_decay": 0.05}


def resolve_dataset(config: RunConfig) -> PluginConfig:
    """Fill in the data set's defaults alone, whatever the other sections hold."""
    return PluginConfig.model_validate(_resolve_plugin("dataset", config.dataset, config.seed))


def resolve(config: RunConfig) -> ResolvedConfig:
    """Fill in every default: plug-in options, the backbone's recommendations, the schedule.

    Configurations that resolve to the same one are the same run. Raises NegbenchError for unknown names and options.
    """
    for path in config.plugins:
        registry.add_file(Path(path))
    sections = {"dataset": _resolve_plugin("dataset", config.dataset, config.seed)}
    world = sections["dataset"].get("world")
    for name in SECTIONS:
        if name != "dataset":
            sections[name] = _resolve_plugin(name, getattr(config, name), world)
    for other in config.mining.backbones:
        if _sets_start(other.name, _resolve_plugin("backbone", other)):
            raise OptionError(
                f"backbone {short_repr(other.name)} of a guide or judge: leave out temperature: nothing reads it"
            )
    _check_temperature(config, sections["backbone"])
    if not config.eval.reported and config.eval.select == "val":
        raise OptionError("eval.select = 'val' selects on the reported split, which eval.reported = false forbids")
    sections["train"] = _resolve_train(config)
    epochs = int(sections["train"]["epochs"])
    _check_optimiser(config.train, epochs)
    sections["schedule"] = _resolve_schedule(config, epochs)
    if not config.mining.redraw:  # with one draw an interval, no later draw could repeat an image
        sections["mining"] = {**config.mining.model_dump(), "replacement": False}
    dev_seed = config.seed if config.eval.dev_seed is None else config.eval.dev_seed
    sections["eval"] = {**config.eval.model_dump(), "dev_seed": dev_seed, "also": _resolve_also(config, sections)}
    return _validate(ResolvedConfig, {**config.model_dump(), **sections})


def _resolve_plugin(section: str, plugin: PluginConfig, world: int | None = None) -> dict[str, Any]:
    """Check a plug-in's section and complete its options; its option `world`, if unset, becomes `world`."""
    cls = registry.get(SECTIONS[section], plugin.name)
    options = make_options(cls, plugin.options, plugin.name)
    values = {name: getattr(options, name) for name in option_defaults(cls)}
    table = {"name": plugin.name, **json.loads(json.dumps(values, default=_plain))}
    if "world" in table and table["world"] is None and table.get("root") is None:  # a folder holds its own world
        table["world"] = world
    return table


def _sets_start(name: str, options: Mapping[str, Any]) -> bool:
    """Whether a backbone's options set the temperature at the start."""
    default = option_defaults(registry.get("backbones", name)).get("temperature")
    return options.get("temperature") != default


def _check_temperature(config: RunConfig, backbone: Mapping[str, Any]) -> None:
    """Raise OptionError if an option of the backbone's temperature is set, and the loss divides by another."""
    reasons = {
        "none": f"loss {short_repr(config.loss.name)} has no temperature",
        "tau": f"loss.tau = {config.loss.options.get('tau')} fixes the temperature",
        OWN_TEMPERATURES: "the loss and the hybrid terms learn temperatures of their own (hybrid.temperature)",
    }
    reason = reasons.get(config.divisor)
    if reason is None:
        return
    options = dict[str, float]()
    if _sets_start(config.backbone.name, backbone):
        options["backbone.temperature"] = backbone["temperature"]
    if config.train.temperature_rate != 1:
        options["train.temperature_rate"] = config.train.temperature_rate
    if config.train.temperature_least is not None:
        options["train.temperature_least"] = config.train.temperature_least
    if options:
        named = " and ".join(f"{option} = {value}" for option, value in options.items())
        raise OptionError(f"{named} would do nothing: {reason}; leave one out")


def _check_optimiser(train: TrainConfig, epochs: int) -> None:
    """Raise OptionError for settings of the schedule that contradict each other."""
    if train.lr_schedule == "one-cycle":
        if train.lr_update == "epoch":
            raise OptionError("train.lr_update = 'epoch': one-cycle moves after each step: --set train.lr_update=step")
        if train.beta1 != type(train).model_fields["beta1"].default:
            raise OptionError(f"train.beta1 = {train.beta1}: one-cycle moves beta1 itself: leave it out")
    total = train.lr_schedule_epochs
    if total is not None and total < epochs:
        raise OptionError(f"train.lr_schedule_epochs = {total}: the run has {epochs} epochs, so give at least as many")


def _resolve_train(config: RunConfig) -> dict[str, Any]:
    """Complete the options of training: by the backbone's recommendations, then by defaults for all."""
    backbone: Any = registry.get("backbones", config.backbone.name)
    strategy: Any = registry.get("strategies", config.strategy.name)
    defaults: dict[str, Any] = dict(_FALLBACKS)
    if strategy.scope == "corpus":
        defaults["num_negatives"] = 1
    defaults |= backbone.recommended
    values = config.train.model_dump()
    for name, value in values.items():
        if value is None:
            values[name] = defaults.get(name)
    return values


def _resolve_also(config: RunConfig, sections: Mapping[str, Any]) -> dict[str, Any] | None:
    """Complete `eval.also`, in the data set's root unless it has its own; None for a trial, whose curve nobody sees."""
    also = config.eval.also
    root = sections["dataset"].get("root")
    if also is None or not config.eval.reported:
        return None
    if "world" in option_defaults(registry.get("datasets", also.name)):
        raise OptionError(f"eval.also: {also.name} is generated for one backbone; name a data set of files")
    section = also.model_dump()
    if root:
        section = {"root": root, **section}
    return _resolve_plugin("dataset", PluginConfig(**section))


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise OptionError(f"option value {short_repr(value)} cannot be stored as JSON")


def _resolve_schedule(config: RunConfig, epochs: int) -> dict[str, Any]:
    """Complete the schedule of a run's pools: the epochs that define them, and how far each definition counts."""
    strategy: Any = registry.get("strategies", config.strategy.name)
    start = _start_of_last_part(config, strategy, epochs)
    n_def = _definitions(config, strategy)
    if n_def == 1:  # pools are defined once, before their first epoch; a batch strategy has none to define
        once = (start,) if strategy.scope == "corpus" else ()
        return {
            "rule": strategy.schedule,
            "n_def": 1,
            "warmup": start,
            "refresh_epochs": once,
            "refresh_counts": tuple(range(len(once))),
        }
    schedule = config.schedule
    rule = schedule.rule or strategy.schedule
    n_def = schedule.n_def or n_def
    warmup = start or schedule.warmup
    if warmup is None:
        warmup = max(1, epochs // n_def)
    planned = refresh_epochs(epochs, n_def, rule=rule, warmup=warmup)
    counts = schedule.refresh_counts
    if schedule.refresh_epochs is not None:
        refreshes = schedule.refresh_epochs
        _check_refresh_epochs(refreshes, epochs)
    elif schedule.refresh_every is not None:
        refreshes = tuple(range(warmup, epochs, schedule.refresh_every))
        counts = _counts_under(planned, refreshes)
    elif start and not planned:
        refreshes = (start,)
    else:
        refreshes = planned
    if start and start not in refreshes[:1]:
        raise OptionError(
            f"schedule.refresh_epochs must begin with {start}, where the last part of strategy "
            f"{short_repr(config.strategy.name)} starts, got {short_repr(list(refreshes))}"
        )
    if counts is None:
        counts = tuple(range(len(refreshes)))
    if len(counts) != len(refreshes):
        raise OptionError(f"schedule.refresh_counts must have {len(refreshes)} numbers, got {short_repr(list(counts))}")
    return {"rule": rule, "n_def": n_def, "warmup": warmup, "refresh_epochs": refreshes, "refresh_counts": counts}


def _check_refresh_epochs(refreshes: Sequence[int], epochs: int) -> None:
    """Refuse epochs of refreshes that do not increase, or lie outside of the run."""
    increase = list(refreshes) == sorted(set(refreshes))
    if not increase or any(not 0 <= epoch < epochs for epoch in refreshes):
        expected = f"must increase within 0..{epochs - 1}"
        raise OptionError(f"schedule.refresh_epochs {expected}, got {short_repr(list(refreshes))}")


def _start_of_last_part(config: RunConfig, strategy: Any, epochs: int) -> int:
    """Return the epoch at which a switch's last part starts, for which earlier parts are the warm-up; else 0.

    Raises:
        OptionError: the run ends before, or the schedule names another warm-up.
    """
    start = int(getattr(strategy, "starts", (0,))[-1])
    if not start:
        return 0
    conflict = ""
    if start >= epochs:
        conflict = f"the run has {epochs} epochs"
    elif config.schedule.warmup not in (None, start):
        conflict = f"schedule.warmup is {config.schedule.warmup}: leave it out"
    if conflict:
        strategy_name = short_repr(config.strategy.name)
        raise OptionError(f"strategy {strategy_name}: its last part starts at epoch {start}; {conflict}")
    return start


def _definitions(config: RunConfig, strategy: Any) -> int:
    """Return how often the strategy defines its pools; where a filter follows the scores, more than once."""
    n_def = int(strategy.n_def)
    if n_def == 1 and strategy.scope == "corpus" and config.mining.follows_scores:
        return _FILTERED_N_DEF
    return n_def


def _counts_under(planned: Sequence[int], refreshes: Sequence[int]) -> tuple[int, ...]:
    """Return for each refresh how many of the planned definitions came before the one in force."""
    counts = []
    for epoch in refreshes:
        passed = sum(definition <= epoch for definition in planned)
        counts.append(max(0, passed - 1))
    return tuple(counts)


def refresh_epochs(epochs: int, n_def: int, *, rule: Rule = "multiples", warmup: int | None = None) -> tuple[int, ...]:
    """Return the epochs before which pools are redefined; the warm-up's whole corpus is the first of `n_def` pools.

    The interval is ``epochs // n_def`` (at least 1), and the warm-up lasts one interval unless it is given.

    - "multiples" (QuRe, CIRQRS): after the warm-up pools are redefined at every interval until the run ends. If n_def
      does not divide the epochs, that is at least as often as n_def says: QuRe's 50 epochs with
      n_def 6 give 8, 16, ..., 48, six redefinitions, as published; 12 epochs with CIRQRS' 5 give 2, 4, 6, 8, 10.
    - "equal" (DQE-CIR sec. 4.1): the epochs after the warm-up are cut into n_def - 1 intervals, equal if possible
      and else to within one epoch: 50 epochs, n_def 6 and a warm-up of 10 give 10, 18, 26, 34, 42.

    n_def = 1 never redefines.
    """
    interval = max(1, epochs // n_def)
    start = interval if warmup is None else warmup
    if n_def == 1:
        return ()
    if rule == "multiples":
        return tuple(range(start, epochs, interval))
    parts = n_def - 1
    rest = max(0, epochs - start)
    if not rest:
        return ()
    return tuple(dict.fromkeys(start + part * rest // parts for part in range(parts)))
