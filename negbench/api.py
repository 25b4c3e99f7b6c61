"""The public functions, for people who bring their own training loop: thin names for the registry and the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench.contracts import Backbone, Loss, Strategy
from negbench.registry import registry

if TYPE_CHECKING:
    from negbench.datasets.dataset import Dataset
    from negbench.loop.runs import RunResult


def make_strategy(name: str, **options: Any) -> Strategy:
    """Strategy by registry key, e.g. ``make_strategy("qure", variant="paper").pool(view)``."""
    strategy: Strategy = registry.make("strategies", name, **options)
    return strategy


def make_loss(name: str, **options: Any) -> Loss:
    """Loss by registry key, e.g. ``make_loss("bradley-terry")(positive, negatives)``."""
    loss: Loss = registry.make("losses", name, **options)
    return loss


def make_backbone(name: str, **options: Any) -> Backbone:
    """Backbone by registry key, e.g. ``make_backbone("clip", weights="...")``."""
    backbone: Backbone = registry.make("backbones", name, **options)
    return backbone


def load_dataset(name: str, **options: Any) -> Dataset:
    """Data set by registry key, e.g. ``load_dataset("fashioniq", root="...", split="val")``.

    The result has `.images` (ids, the columns of scores), `.queries` and `.evaluate(scores) -> dict`; annotations alone
    are enough with ``images=False``.
    """
    dataset: Dataset = registry.make("datasets", name, **options)
    return dataset


def list_plugins(kind: str) -> list[str]:
    """Registry keys of one kind: strategies, losses, backbones or datasets."""
    return list(registry.plugins(kind))


def run(
    *,
    strategy: str | None = None,
    backbone: str | None = None,
    dataset: str | None = None,
    loss: str | None = None,
    seed: int | None = None,
    recipe: Path | None = None,
    sets: Sequence[str] = (),
    runs_dir: Path | None = None,
    tracking_uri: str | None = None,
) -> RunResult:
    """Train and score one run, as `negbench run` does; returns `.metrics`, `.run_id` and `.path`.

    Args:
        strategy, backbone, dataset, loss: registry keys; left out, the recipe's or the default.
        seed: of initial weights, batches and draws.
        recipe: TOML file, as `--recipe`.
        sets: 'section.key=value' texts, as `--set`.
        runs_dir: where the run's folder and the MLflow store lie; default NEGBENCH_RUNS or ./runs.
        tracking_uri: MLflow store; default the sqlite file in `runs_dir`.
    """
    from negbench.loop.runs import Bench, run_config
    from negbench.systems.system import load_config

    names = {"strategy": strategy, "backbone": backbone, "dataset": dataset, "loss": loss}
    flags: dict[str, Any] = {key: None if name is None else {"name": name} for key, name in names.items()}
    config = load_config(recipe=recipe, flags={**flags, "seed": seed}, sets=sets)
    return run_config(config, Bench.open(runs_dir, tracking_uri))
