"""No setting does nothing in silence: each key of the configuration is tried with other values on several bases.

For each value one of these holds: the resolved identity is the same, and then the bits are; weights, ranks or a stored
statistic differ from the base's; a line says that it does nothing; or it is refused. What moves nothing on one base
must move something on another. The suite tries some keys, by seed; `make fuzz` all.
"""

import json
import os
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from negbench.api import plan_of
from negbench.contracts import tunable_ranges
from negbench.errors import NegbenchError
from negbench.loop.runs import RunContext, compute_or_reuse
from negbench.plugins.registry import SECTIONS, option_defaults, options_class, registry
from negbench.settings.config import RunConfig
from negbench.settings.options import Run

# strategy, loss, further settings
BASES = {
    "qure": ("qure", "bradley-terry", ()),
    "cirqrs": ("cirqrs:n_neg=6", "margin-kl", ("train.num_negatives=2", "train.epochs=4", "mining.replacement=true")),
    "in-batch": ("in-batch", "info-nce", ("train.batch_size=12",)),
    "top-k": ("top-k:k=8:halve=true", "info-nce", ("train.num_negatives=3", "train.epochs=4", "loss.tau=0.1")),
}
# values where the type and the range do not say any; None: not tried, with the reason
VALUES: dict[str, list[str] | None] = {
    "schedule.refresh_epochs": ["[0,1]"],
    "schedule.refresh_counts": ["[3]", "[2,5]", "[3,4,5]"],
    "schedule.warmup": ["0", "2"],
    "schedule.refresh_every": ["1", "2"],
    "schedule.n_def": ["3"],
    "train.epochs": ["3"],
    "train.batch_size": ["8"],
    "train.num_negatives": ["1", "4", "100"],
    "train.lr": ["0.01"],
    "train.weight_decay": ["0.5"],
    "train.lr_warmup_epochs": ["1"],
    "train.lr_schedule": ["one-cycle"],
    "train.lr_start_ratio": None,  # of one-cycle
    "train.lr_schedule_epochs": ["9"],
    "train.beta1": ["0.5"],
    "train.beta2": ["0.9"],
    "train.eps": ["0.01"],
    "train.drop_last": None,  # the batches of these bases are full
    "train.clean_after": ["1"],
    "train.vary_captions": None,  # of data with two captions a query
    "train.max_grad_norm": ["0.01"],
    "train.precision": ["bf16"],
    "train.wrong": ["0.5"],
    "train.temperature_rate": ["0", "10"],
    "train.temperature_least": None,  # tests/loop/test_run_options.py: the temperatures of these bases rise
    "eval.also": None,  # a data set of files
    "mining.guide": None,  # a backbone or a file
    "mining.judge": None,
    "mining.guide_margin": None,
    "mining.max_judge": None,
    "mining.margin": ["-2", "0.05"],
    "mining.relative_margin": ["0.5"],
    "mining.max_target": ["1.0", "0.3"],
    "mining.max_reference": ["1.0", "0.2"],
    "hybrid.alpha": None,  # texts of references and targets, which these data lack
    "hybrid.beta": None,
    "compute.device": ["cpu"],
    "compute.processes": None,  # tests/loop/test_shared_steps.py: gradients within a bound, not their bits
    "compute.micro_batch": None,  # tests/loop/test_passes.py: gradients within a bound, not their bits
    "compute.recompute": None,
}
PATH_OPTIONS = ("root", "file", "gallery", "images", "texts", "weights", "path", "name")  # options that name files
STORED = ("metrics", "behaviour", "regime", "steps", "negatives_seen", "draws", "reported_epoch", "temperatures")


def values_of(key: str, annotation: Any, default: Any, metadata: tuple[Any, ...] = ()) -> list[str]:
    """Return other values of a setting as texts of `--set`."""
    if key in VALUES:
        return VALUES[key] or []
    choices = [part for part in get_args(annotation) if part is not type(None)] or [annotation]
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation) if choice != default]
    kind = choices[0]
    if kind is bool:
        return ["false" if default else "true"]
    if kind in (int, float) and isinstance(default, int | float):
        low = next((limit.ge for limit in metadata if getattr(limit, "ge", None) is not None), 0)
        return [str(kind(max(low, default * 2 if default else 1)))]
    return []


def keys() -> Iterator[tuple[str, list[str]]]:
    """Yield each key of the configuration's own sections, with other values."""
    for section, field in RunConfig.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel) and section not in SECTIONS:
            for name, inner in field.annotation.model_fields.items():
                key = f"{section}.{name}"
                yield key, values_of(key, inner.annotation, inner.default, tuple(inner.metadata))


def plugin_keys() -> Iterator[tuple[str, list[str]]]:
    """Yield each option of the plug-ins of the bases, with other values."""
    used = {("strategies", text.partition(":")[0]) for text, _, _ in BASES.values()}
    used |= {("losses", loss) for _, loss, _ in BASES.values()} | {("backbones", "precomputed")}
    for kind, name in sorted(used):
        section = next(name for name, kind_of_section in SECTIONS.items() if kind_of_section == kind)
        cls = options_class(registry.get(kind, name))
        ranges = tunable_ranges(cls)
        for option, default in option_defaults(registry.get(kind, name)).items():
            if option in PATH_OPTIONS:
                continue
            span = ranges.get(option)
            if span is None:
                values = values_of(f"{section}.{option}", cls.__annotations__.get(option, Any), default)
            else:
                values = [str(choice) for choice in span.choices if choice != default]
                if not values:
                    values = [str(span.low), str(span.high)]
            yield f"{section}.{option} of {name}", values


CASES = dict([*keys(), *plugin_keys()])
TRIED = [key for key, values in CASES.items() if values]
SOME = TRIED if "NEGBENCH_FUZZ" in os.environ else sorted(random.Random(5).sample(TRIED, 14))


def without_times(value: Any) -> Any:
    """Return stored values without those that are seconds."""
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if "seconds" not in key}
    if isinstance(value, list):
        return [without_times(inner) for inner in value]
    return value


@pytest.fixture(scope="module")
def outcome(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[str, Any]]:
    """Return a function that runs a base with a setting: its identity, what it stored, the lines that it printed."""

    @cache
    def compute(base: str, setting: str) -> dict[str, Any]:
        strategy, loss, more = BASES[base]
        sets = [*vector_sets, *more]
        if strategy == "in-batch":
            sets = [text for text in sets if not text.startswith("schedule.")]
        if setting:
            sets.append(setting)
        runs = tmp_path_factory.mktemp("settings")  # of its own: no run is read again for another setting
        options = Run(strategy=strategy, loss=loss, sets=tuple(sets), tracking_uri="none", runs_dir=runs)
        lines = list[str]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("negbench.api.notes", lines.extend)
            plan = plan_of(options)
        result = compute_or_reuse(plan, RunContext.open(runs, "none"))
        stored = without_times([result.folder.result[name] for name in STORED])
        curve = without_times(result.folder.metrics())
        weights = result.folder.weights()
        return {
            "identity": json.dumps(plan.config.identity(), sort_keys=True),
            "stored": json.dumps([stored, curve, result.folder.ranks().to_csv()], sort_keys=True, default=str),
            "weights": {name: tensor.numpy().tobytes() for name, tensor in weights.items()},
            "lines": lines,
        }

    return compute


@pytest.mark.parametrize("key", SOME)
def test_a_setting_moves_something_or_says_that_it_does_not(key, outcome):
    name = key.partition(" of ")[0]
    silent = []
    for value in CASES[key]:
        fates = [fate(base, name, value, outcome) for base in BASES]
        if ("silent" in fates and "moved" not in fates) or "one identity, other bits" in fates:
            silent.append((value, dict(zip(BASES, fates, strict=True))))
    assert silent == []


def fate(base: str, name: str, value: str, outcome: Callable[[str, str], dict[str, Any]]) -> str:
    """Return what a setting does to a base: "refused", "same", "told", "moved", "silent", or worse."""
    plain = outcome(base, "")
    try:
        changed = outcome(base, f"{name}={value}")
    except NegbenchError:
        return "refused"
    equal = (changed["stored"], changed["weights"]) == (plain["stored"], plain["weights"])
    if changed["identity"] == plain["identity"]:
        return "same" if equal else "one identity, other bits"
    if any(name in line and "does nothing" in line for line in changed["lines"]):
        return "told"
    return "silent" if equal else "moved"
