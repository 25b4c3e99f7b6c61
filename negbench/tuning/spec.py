"""All that decides which trials a study makes: its space, its seeds, its sampler and its pruner."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import TypeAdapter

from negbench.config import RunConfig, resolved
from negbench.errors import OptionError, UnknownNameError
from negbench.identity import code_version
from negbench.tuning.space import Band, Knob, Space

SAMPLERS = ("tpe", "gp", "random", "grid", "cmaes")
PRUNERS = ("median", "hyperband", "none")
MINIMISE = ("mining-seconds", "false-negative-rate")
_STARTUP = 10  # random trials before a model of the objective is trusted
_UNPRUNED = 5  # trials that must have finished before any is pruned


@dataclass(frozen=True)
class StudySpec:
    """Settings of a study, but for how many trials it makes.

    Attributes:
        base: RunConfig as read.
        space: knobs.
        seeds: every trial is the mean over these.
        minimise: a second objective (one of MINIMISE), or None.
        sampler: one of SAMPLERS.
        pruner: one of PRUNERS.
        seed: of the sampler.
        first_refresh: earliest epoch of the space at which pools depend on scores; no trial is pruned before it.
        epochs: of a run.
        code: version of the code that moves its runs' scores.
        claims: numbers of the claims whose support is the objective (`negbench.tuning.claimed`), instead of recall.
    """

    base: dict[str, Any]
    space: Space
    seeds: tuple[int, ...]
    minimise: str | None
    sampler: str
    pruner: str
    seed: int
    first_refresh: int
    epochs: int
    code: str
    claims: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for what, value, known in (("sampler", self.sampler, SAMPLERS), ("pruner", self.pruner, PRUNERS)):
            if value not in known:
                raise UnknownNameError(what, value, known)
        if self.minimise is not None and self.minimise not in MINIMISE:
            raise UnknownNameError("objective", self.minimise, MINIMISE, where="--minimise")
        if self.minimise is not None and self.sampler == "cmaes":
            raise OptionError("--sampler cmaes knows one objective only: leave out --minimise, or take tpe")

    @classmethod
    def of(
        cls,
        base: RunConfig,
        space: Space,
        *,
        seeds: int,
        minimise: str | None,
        sampler: str,
        pruner: str,
        claims: Sequence[int] = (),
    ) -> StudySpec:
        """Settings of a study whose sampler and runs start from the configuration's seed.

        Raises:
            OptionError: an option out of its list, or a second objective that the strategy does not have.
        """
        from negbench.registry import registry

        full = resolved(base)
        strategy: Any = registry.get("strategies", base.strategy.name)
        if minimise == "mining-seconds" and strategy.scope == "batch":
            raise OptionError(f"--minimise {minimise}: '{base.strategy.name}' is a batch strategy and mines nothing")
        return cls(
            base=base.model_dump(mode="json"),
            space=space,
            seeds=tuple(range(base.seed, base.seed + seeds)),
            minimise=minimise,
            sampler=sampler,
            pruner=pruner,
            seed=base.seed,
            first_refresh=min(first_refresh(config) for config in space.corners(base)),
            epochs=full.train.epochs,
            code=code_version(full),
            claims=tuple(claims),
        )

    @property
    def config(self) -> RunConfig:
        """The configuration that the study was started with."""
        return RunConfig.model_validate(self.base)

    @property
    def prunes(self) -> bool:
        """Two objectives cannot be pruned; listed points and worlds are not: a table, and a claim, needs every cell."""
        sampled = not (self.space.points or self.claims)
        return self.pruner != "none" and self.minimise is None and sampled

    @property
    def objective(self) -> str:
        """What trials are scored by, in words."""
        return "support of the claims" if self.claims else "recall on the dev part"

    def dump(self) -> dict[str, Any]:
        """As JSON can hold it."""
        value: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return value

    @classmethod
    def load(cls, value: Mapping[str, Any]) -> StudySpec:
        """From what `dump` gave.

        Raises:
            KeyError, TypeError, ValueError: it is not what `dump` gives.
        """
        text = json.dumps(value, allow_nan=False)
        TypeAdapter(cls).validate_json(text, strict=True)  # types alone: it makes whole numbers floats
        space = value["space"]
        knobs = tuple(Knob(**{**knob, "choices": tuple(knob["choices"])}) for knob in space["knobs"])
        band = Band(**space["band"]) if space["band"] else None
        read = Space(knobs, band, tuple(space["points"]))
        seeds, claims = tuple(value["seeds"]), tuple(value.get("claims", ()))
        return cls(**{**value, "space": read, "seeds": seeds, "claims": claims})

    def shared(self) -> dict[str, Any]:
        """What all machines of a study must agree on: not where they compute, nor where their files lie."""
        value = self.dump()
        base = {key: section for key, section in value["base"].items() if key != "compute"}
        base["dataset"] = {key: option for key, option in base["dataset"].items() if key != "root"}
        base["plugins"] = [Path(path).name for path in base["plugins"]]
        return {**value, "base": base}

    @property
    def digest(self) -> str:
        """The same settings give the same name, whatever the code's version."""
        told = {key: value for key, value in self.shared().items() if key != "code"}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]


def first_refresh(config: RunConfig) -> int:
    """Epoch (from 0) at which pools first depend on scores; 0 where they never wait."""
    return next(iter(resolved(config).schedule.refresh_epochs), 0)


# --- in optuna's words -------------------------------------------------------------------------------------------


def distributions(spec: StudySpec) -> dict[str, BaseDistribution]:
    """The range of every knob; the same in every trial."""
    return {knob.key: _distribution(knob) for knob in spec.space.knobs}


def _distribution(knob: Knob) -> BaseDistribution:
    if knob.choices:
        return CategoricalDistribution(knob.choices)
    assert knob.low is not None
    assert knob.high is not None
    if knob.whole:
        return IntDistribution(int(knob.low), int(knob.high), log=knob.log)
    return FloatDistribution(knob.low, knob.high, log=knob.log)


def sampler_options(spec: StudySpec) -> dict[str, Any]:
    """What the sampler is called with, beside its seed; written out, so that no other version's defaults take over."""
    return {
        "tpe": {"multivariate": True, "constant_liar": True, "n_startup_trials": _STARTUP, "n_ei_candidates": 24},
        "gp": {"n_startup_trials": _STARTUP, "deterministic_objective": False},
        "cmaes": {"n_startup_trials": _STARTUP, "consider_pruned_trials": False},
    }.get(spec.sampler, {})


def sampler_of(spec: StudySpec, trial: int) -> Any:
    """A sampler for one trial, seeded by the study's seed and the trial's number.

    A worker's number is no part of it: a study that was stopped goes on with the numbers it would have drawn, and two
    workers never draw the same ones.
    """
    seed = int.from_bytes(hashlib.sha256(f"{spec.seed}/{trial}".encode()).digest()[:4], "big")
    known = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler, "cmaes": optuna.samplers.CmaEsSampler}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return known.get(spec.sampler, optuna.samplers.RandomSampler)(seed=seed, **sampler_options(spec))


def pruner_options(spec: StudySpec) -> dict[str, Any]:
    """What the pruner is called with; nothing where nothing is pruned."""
    steps, first = spec.epochs * len(spec.seeds), spec.first_refresh
    known: dict[str, dict[str, Any]] = {
        "median": {"n_startup_trials": _UNPRUNED, "n_warmup_steps": first, "interval_steps": 1},
        "hyperband": {"min_resource": min(first + 1, steps), "max_resource": steps, "reduction_factor": 3},
    }
    return known[spec.pruner] if spec.prunes else {}


def pruner_of(spec: StudySpec) -> Any:
    """The pruner."""
    known: dict[str, Any] = {"median": optuna.pruners.MedianPruner, "hyperband": optuna.pruners.HyperbandPruner}
    return known[spec.pruner](**pruner_options(spec)) if spec.prunes else optuna.pruners.NopPruner()
