"""Made cells and outcomes, for tests of what is computed in which order: no run stands behind them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from negbench.grid.cells import Cell, Outcome


@dataclass(frozen=True)
class Made(Cell):
    """A cell that no run stands behind; `done` if it is finished."""

    done: bool = False

    def step(self, runs: Path) -> Any:
        return "reuse" if self.done else "anew"

    def at_seed(self, seed: int, *_: Any) -> Any:
        return replace(self, run=cell(self.hash.removesuffix(str(self.seed)), seed, self.config.train.epochs).run)


def cell(name: str, seed: int, epochs: int = 10, *, done: bool = False) -> Any:
    config = SimpleNamespace(seed=seed, train=SimpleNamespace(epochs=epochs))
    run: Any = SimpleNamespace(hash=f"{name}{seed}", config=config, card=None)
    given: Any = SimpleNamespace(model_copy=lambda update: update)
    labels = {"strategy": name, "loss": "ll", "backbone": "bb", "dataset": "dd"}
    return Made(run, given, labels, {"plugin": name}, done=done)


def cells(names: str, numbers: Sequence[int]) -> list[Any]:
    return [cell(name, seed) for name in names for seed in numbers]


def ended(each: Any, error: str | None = None) -> Outcome:
    return Outcome(each, None if error else f"run-{each.hash}", error, False)


def without(sets: list[str], *keys: str) -> tuple[str, ...]:
    """Leave out keys: those that a dial varies, or that no strategy of a test reads."""
    return tuple(text for text in sets if not text.startswith(keys))
