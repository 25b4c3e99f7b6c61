"""Settings that determine a study's trials: its space, its seeds, its sampler and its pruner."""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial
from pydantic import TypeAdapter

from negbench.contracts.card import DatasetCard
from negbench.errors import UnknownNameError
from negbench.loop.identity import code_version
from negbench.metrics.names import find_metric
from negbench.settings.config import RunConfig, resolve
from negbench.settings.options import Pruner, Sampler
from negbench.tuning.search_space import SearchSpace

STARTUP = 10  # random trials before a model of the objective is trusted
LEAST = 3  # trials that must have finished before it draws
_UNPRUNED = 5  # trials that must have finished before any is pruned


@dataclass(frozen=True)
class StudySpec:
    """Settings of a study, except its number of trials.

    Attributes:
        base: RunConfig as read.
        space: the searched options.
        seeds: every trial is the mean over these.
        sampler, pruner: their names.
        seed: seed of the sampler.
        code: version of the code that affects its runs' scores.
        metric: name of the one that trials are scored by; "": the data set's main metric.
    """

    base: dict[str, Any]
    space: SearchSpace
    seeds: tuple[int, ...]
    sampler: Sampler
    pruner: Pruner
    seed: int
    code: str
    metric: str = ""

    @classmethod
    def of(
        cls,
        base: RunConfig,
        space: SearchSpace,
        *,
        seeds: int = 1,
        sampler: Sampler = "tpe",
        pruner: Pruner = "median",
        metric: str = "",
    ) -> Self:
        """Return settings whose sampler and runs start from the configuration's seed; a grid prunes nothing."""
        pruner = "none" if sampler == "grid" else pruner  # a table needs every cell
        numbers = tuple(range(base.seed, base.seed + seeds))
        code = code_version(resolve(base))
        return cls(base.model_dump(mode="json"), space, numbers, sampler, pruner, base.seed, code, metric)

    @property
    def config(self) -> RunConfig:
        """The configuration that the study was started with."""
        return RunConfig.model_validate(self.base)

    @property
    def queued_points(self) -> list[dict[str, Any]]:
        """Points that are queued, not sampled: the default as trial 0, and the other points of a grid."""
        return self.space.grid() if self.sampler == "grid" else [self.space.default]

    def dump(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        values["space"] = {"knobs": values["space"]["ranges"]}  # the name that stored studies have
        return values

    @classmethod
    def load(cls, value: Mapping[str, Any]) -> Self:
        """Read settings that `dump` returned.

        Raises:
            TypeError, ValueError: `value` is not what `dump` returns.
        """
        return TypeAdapter(cls).validate_json(json.dumps(value, allow_nan=False), strict=True)

    def shared_settings(self) -> dict[str, Any]:
        """Return the settings that all machines of a study must share: all but compute options and file locations."""
        value = self.dump()
        base = {key: section for key, section in value["base"].items() if key != "compute"}
        base["dataset"] = {key: option for key, option in base["dataset"].items() if key != "root"}
        base["plugins"] = [Path(path).name for path in base["plugins"]]
        return {**value, "base": base}

    @property
    def digest(self) -> str:
        """Short hash of the shared settings for the study's name, the same in every version of the code."""
        settings = {key: value for key, value in self.shared_settings().items() if key != "code"}
        if not self.metric:
            del settings["metric"]  # earlier versions had none
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def resolve_metric(metric: str | None, card: DatasetCard) -> str:
    """Return the name of the metric that trials are scored by; "" for None: the data set's main metric.

    Raises:
        UnknownNameError: the data set has no such metric, and its ranks do not give it.
    """
    if metric is None:
        return ""
    named = find_metric(metric, list(card.metrics))
    if named is None:
        raise UnknownNameError("--metric", metric, [*card.metrics, "R@K", "MRR", "nDCG@K"])
    return "" if named == card.main else named


def first_refresh(config: RunConfig) -> int:
    """Return the epoch (from 0) when pools first depend on scores, before which no trial is pruned; 0 if none do."""
    return next(iter(resolve(config).schedule.refresh_epochs), 0)


# --- sampler and pruner ------------------------------------------------------------------------------------------

MODELS: dict[str, Callable[..., BaseSampler]] = {
    "tpe": optuna.samplers.TPESampler,
    "gp": optuna.samplers.GPSampler,
    "cmaes": optuna.samplers.CmaEsSampler,
}


class SeededSampler(BaseSampler):
    """Optuna sampler, created for each trial and seeded by the study's seed and the trial's number.

    A study that was stopped, even while sampling a trial, therefore resumes with the points that it would have tried,
    and two workers never draw the same one. Optuna's GP and CMA-ES count finished trials alone as their startup, TPE
    also pruned ones: with a pruner, the former might never draw. Here the trial's number decides.
    """

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec

    def _of(self, trial: FrozenTrial) -> BaseSampler:
        digest = hashlib.sha256(f"{self._spec.seed}/{trial.number}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        model = MODELS.get(self._spec.sampler)
        if model is None or trial.number < STARTUP:
            return optuna.samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            return model(seed=seed, n_startup_trials=LEAST)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the options that are sampled together."""
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Sample the options that are sampled together."""
        return self._of(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Sample any other option, by the draw that follows those of the options that the trial already has."""
        sampler = self._of(trial)
        for name, distribution in trial.distributions.items():
            sampler.sample_independent(study, trial, name, distribution)
        return sampler.sample_independent(study, trial, param_name, param_distribution)


def pruner_of(spec: StudySpec) -> optuna.pruners.BasePruner:
    """Return the pruner; a trial's steps are the epochs of its seeds, one after another."""
    steps = resolve(spec.config).train.epochs * len(spec.seeds)
    if spec.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=_UNPRUNED, n_warmup_steps=0, interval_steps=1)
    if spec.pruner == "hyperband":
        first = min(first_refresh(spec.config) + 1, steps)
        return optuna.pruners.HyperbandPruner(min_resource=first, max_resource=steps, reduction_factor=3)
    return optuna.pruners.NopPruner()
