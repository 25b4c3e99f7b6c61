"""Made cells and outcomes, for tests of what is computed in which order, and frames of finished runs."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd

from negbench.analysis.frame import StoredRun, cell_row, folders_of, labels_of, results_frame
from negbench.analysis.verdict_record import Verdict, read_flat
from negbench.grid.axis import AXES
from negbench.grid.cells import Cell, Outcome
from negbench.metrics.query_ranks import QueryRanks
from negbench.plugins.registry import registry
from negbench.store.runfolder import RunFolder


@dataclass(frozen=True)
class Made(Cell):
    """A cell that no run stands behind; `done` if it is finished."""

    done: bool = False

    def action(self, runs: Path) -> Any:
        return "reuse" if self.done else "anew"

    def at_seed(self, seed: int, *_: Any) -> Any:
        return replace(self, run=cell(self.hash.removesuffix(str(self.seed)), seed, self.config.train.epochs).run)


def cell(name: str, seed: int, epochs: int = 10, *, done: bool = False) -> Any:
    config = SimpleNamespace(seed=seed, train=SimpleNamespace(epochs=epochs))
    run: Any = SimpleNamespace(hash=f"{name}{seed}", config=config, card=None)
    settings: Any = SimpleNamespace(model_copy=lambda update: update)
    columns = {"strategy": name, "loss": "ll", "backbone": "bb", "dataset": "dd", "plugin": name}
    return Made(run, settings, columns, done=done)


def cells(names: str, seeds: Sequence[int]) -> list[Any]:
    return [cell(name, seed) for name, seed in itertools.product(names, seeds)]


def rank_anew(folder: RunFolder, ranks: pd.DataFrame) -> None:
    """Give a finished run other ranks, and the metrics that they have."""
    folder.write_ranks(ranks)
    data: Any = registry.get("datasets", folder.config.dataset.name)
    stored = QueryRanks.from_frame(folder.ranks())
    result = folder.result
    metrics = {**result["metrics"], **data.summarise(stored)}
    mistakes = {**result.get("mistakes", {}), **data.summarise_mistakes(stored)}
    folder.write_result({**result, "metrics": metrics, "mistakes": mistakes})


def typed_columns(cell: Cell) -> dict[str, Any]:
    """Return a cell's columns besides the texts of its axes."""
    return {name: value for name, value in cell.columns.items() if name not in AXES}


def outcome_of(cell: Any, error: str | None = None) -> Outcome:
    """Return how a cell ended: with a run, or with an error."""
    run_id = None if error else f"run-{cell.hash}"
    return Outcome(cell, run_id, error, False)


def group(labels: Mapping[str, str], folders: Iterable[RunFolder], **facts: Any) -> pd.DataFrame:
    """Return the cells of one group: these runs, one for each seed, with labels and typed columns."""
    rows = []
    for folder in folders:
        cell = {**labels, **facts, "seed": folder.config.seed, "run": folder.run_id}
        rows.append(cell_row(cell, StoredRun(folder)))
    return results_frame(rows)


def settings_frame(runs: Mapping[str, Mapping[int, RunFolder]]) -> pd.DataFrame:
    """Return the cells of claims: setting -> seed -> the run's folder."""
    rows = []
    for setting, by_seed in runs.items():
        for seed, folder in by_seed.items():
            rows.append({"system": setting, "seed": seed, "stored": StoredRun(folder)})
    return pd.DataFrame(rows)


def again(cells: pd.DataFrame, **labels: str) -> pd.DataFrame:
    """Return the same group from its changed files, or with other labels."""
    return group({**labels_of(cells), **labels}, folders_of(cells))


def verdict(**columns: Any) -> Verdict:
    """Return a verdict from columns of statistics.csv, chosen by hand: a mean without an interval, `gap`, ..."""
    mean = columns["mean"]
    others = {"low": mean, "high": mean, "sd": 0.0, "main": True, "seeds": 5, "queries": 9, "baseline": "a"}
    return read_flat({"metric": "recall_at_10", "verdict": "undecided", **others, **columns})


def without(sets: list[str], *keys: str) -> tuple[str, ...]:
    """Leave out keys: those that a dial varies, or that no strategy of a test reads."""
    return tuple(text for text in sets if not text.startswith(keys))


# what runs of every version have in result.json, for runs made by hand
RESULT: dict[str, Any] = {
    "metrics": {}, "main_metric": "m", "reported_epoch": 1, "selected_on": "last", "behaviour": {},
    "behaviour_by_refresh": [], "steps": 0, "negatives_seen": 0, "seconds": {}, "peak_memory_mib": {}, "remarks": [],
}  # fmt: skip
