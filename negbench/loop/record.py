"""Build the records of a run: its manifest, its MLflow tags, and result.json."""

import math
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from negbench.data.images import reads_pixels
from negbench.data.reading import StoredFeatures
from negbench.datasets.dataset import QueryRanks
from negbench.datasets.overlap import overlap
from negbench.loop.identity import code_version, plugins_of
from negbench.loop.model_cache import ModelCache
from negbench.loop.remarks import remarks_of
from negbench.loop.types import OpenRun
from negbench.machine.files import sha256_of
from negbench.machine.versions import versions
from negbench.metrics.part_name import part_name
from negbench.settings.config import ResolvedConfig

MOVES_SCORES = False  # only records

_CARD = ("text_template", "exclude_reference", "source", "licence", "citation")  # fields that are recorded
_START = ("temperature", "temperature_from")  # of the backbone's details: the first temperature, and its source


def manifest(run: OpenRun) -> dict[str, Any]:
    """Return the contents of config.json: everything that identifies the run, known before it starts."""
    train = run.scene.train.dataset
    val = run.scene.val.dataset
    identity = run.backbone.identity
    threads = run.config.compute.threads or torch.get_num_threads()
    return {
        "config": run.config.model_dump(mode="json"),
        "hash": run.hash,
        "code": code_version(run.config),
        "plugins": _plugin_hashes(run.config),
        "dataset": {
            "train": train.identity,
            "val": val.identity,
            "kind": val.kind,
            "named": part_name(val.identity, [train, val]),
            "world": val.card.world or None,
            "scored": run.scene.scored_split,
            "split": val.split,
            "gallery": {name: len(columns) for name, columns in val.groups.items()},
            "corpus": {name: len(columns) for name, columns in train.groups.items()},
            "train_queries": len(train.queries),
            "val_queries": len(val.queries),
            **{name: getattr(val.card, name) for name in _CARD},
            "partial": train.partial or val.partial,
            "remarks": [*train.remarks, *val.remarks, *overlap(train, val)],
        },
        "backbone": {**vars(identity), "details": dict(identity.details)},
        "started": {
            "device": run.precision.device.type,
            "precision": run.precision.name,
            "threads": threads,
            **vars(run.step_plan),
        },
        "divisor": run.config.divisor,
        "reads_pictures": reads_pixels(run.config),
        "versions": versions(),
    }


def _plugin_hashes(config: ResolvedConfig) -> dict[str, str]:
    """Return path -> hash of the plug-in files that a run uses."""
    paths = [plugin.path for plugin in plugins_of(config)]
    return {str(path): sha256_of(path) for path in paths if path is not None}


def tags(run: OpenRun) -> dict[str, str]:
    """Return the tags that identify a run in MLflow."""
    config = run.config
    identity = run.backbone.identity
    val = run.scene.val.dataset
    start = {f"backbone.{key}": str(identity.details[key]) for key in _START if key in identity.details}
    return {
        "backbone.weights": identity.weights,
        "backbone.sha256": identity.sha256,
        **start,
        "gallery": ", ".join(f"{name} {len(columns)}" for name, columns in val.groups.items()),
        "code": code_version(run.config),
        "strategy": config.strategy.name,
        "loss": config.loss.name,
        "backbone": config.backbone.name,
        "dataset": part_name(val.identity, [run.scene.train.dataset, val]),
        "seed": str(config.seed),
        "hash": run.hash,
    }


def details(now: ModelCache, ranks: QueryRanks, baselines: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the contents of result.json: metrics, behaviour of the strategy, cost.

    Args:
        now: the model of the reported epoch, after training.
        ranks: its ranks on the reported split.
        baselines: name -> metrics of each baseline.
    """
    run = now.run
    objective = now.objective
    state = now.state
    config = run.config
    val = run.scene.val.dataset
    queries = len(run.scene.train.dataset.queries)
    return {
        "metrics": val.summarise(ranks),
        "mistakes": val.summarise_mistakes(ranks),
        "main_metric": val.card.main,
        "baselines": {name: dict(metrics) for name, metrics in baselines.items()},
        "reported_epoch": config.train.epochs if config.eval.select == "last" else state.best_epoch,
        "selected_on": config.eval.select,
        "behaviour": mean_behaviour(state.behaviour),
        "behaviour_by_refresh": state.behaviour,
        "regime": state.regime[-1],
        "regime_by_refresh": state.regime[:-1],
        "refresh_epochs": list(config.schedule.refresh_epochs),
        "temperatures": {
            "backbone": float(run.backbone.bounded_temperature.detach()),
            **objective.scalars.temperatures(),
        },
        "draws": {
            "per_query": config.train.num_negatives,
            "replacement": config.mining.replacement if objective.strategy.scope == "corpus" else None,
            "redraw": config.mining.redraw if objective.strategy.scope == "corpus" else None,
        },
        "steps": state.step,
        "negatives_seen": state.negatives_seen,
        "negatives_per_query": state.negatives_seen / (config.train.epochs * queries),
        "seconds": {name: round(value, 3) for name, value in run.display.seconds.items()},
        "images_encoded": run.scene.encoded,
        "features": _features(run),
        "peak_memory_mib": peak_memory_mib(),
        "computed": [dict(row) for row in state.computed],
        "remarks": [*run.remarks, *remarks_of(config, objective.loss, state, queries)],
    }


def _features(run: OpenRun) -> dict[str, int] | None:
    """Return the size of the run's stored features, and how much of it was held on its device; None without any."""
    source = run.scene.source
    if not isinstance(source, StoredFeatures):
        return None
    return {"bytes": source.total_bytes, "held_bytes": source.held_bytes}


def mean_behaviour(behaviour: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average over the refreshes (batch strategies: over the epochs); NaN where nothing is known."""
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for row in behaviour for name in row):
        if name != "epoch":
            values = [row.get(name, math.nan) for row in behaviour]
            means[name] = float(torch.tensor(values, dtype=torch.float64).nanmean())
    return means


def peak_memory_mib() -> dict[str, float]:
    """Return the peak resident memory of this process, and peak GPU memory, in MiB."""
    unit = 1024 if sys.platform != "darwin" else 1024 * 1024
    peak = {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
    if torch.cuda.is_available():
        peak["gpu"] = torch.cuda.max_memory_allocated() / 2**20
    return {name: round(value, 1) for name, value in peak.items()}
