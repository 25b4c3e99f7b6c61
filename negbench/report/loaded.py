"""What a command left in the runs folder, for Python: data frames, and a text."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from negbench.analysis.findings import Findings, stored
from negbench.errors import RunError
from negbench.grid.comparison import ComparisonFolder, groups_of
from negbench.loop.types import RunResult
from negbench.machine import files
from negbench.store.runfolder import find_run

if TYPE_CHECKING:
    from negbench.tuning.book import Book


@dataclass(frozen=True)
class Comparison:
    """A finished comparison: its folder, and what stands in it.

    Args:
        path: the comparison's folder in the runs folder.
    """

    path: Path

    @property
    def name(self) -> str:
        """Of the folder and the MLflow experiment."""
        return self.path.name

    @property
    def answer(self) -> list[str]:
        """The answer in words, a sentence or two a line."""
        return [line for line in (self.path / "answer.md").read_text(encoding="utf-8").splitlines() if line]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a strategy, as the command prints it: texts, percent, mean and deviation over seeds."""
        return pd.read_csv(self.path / "table.csv", dtype=str, keep_default_na=False)

    @cached_property
    def findings(self) -> Findings:
        """The finished cells, and all that the statistics say of them."""
        return stored(self.path.parent, self.name)

    @cached_property
    def statistics(self) -> pd.DataFrame:
        """A row for each strategy and metric, numbers in its unit: `negbench.analysis.verdicts.VerdictRow`."""
        return pd.DataFrame([row.plain() for row in self.findings.rows])

    @cached_property
    def behaviour(self) -> pd.DataFrame:
        """What the strategies did, means over refreshes and seeds."""
        return pd.read_csv(self.path / "behaviour.csv")

    @cached_property
    def cost(self) -> pd.DataFrame:
        """Seconds, negatives and memory, means over seeds."""
        return pd.read_csv(self.path / "cost.csv")

    @cached_property
    def cells(self) -> pd.DataFrame:
        """A row a cell: its labels, seed and run, and every metric of the run (NaN where the cell failed)."""
        rows = []
        for cell in ComparisonFolder(self.path).cells():
            folder = None if cell["run"] is None else self.path.parent / cell["run"]
            found = {} if folder is None else files.read_json(folder / "result.json")["metrics"]
            rows.append({key: value for key, value in cell.items() if key != "hash"} | found)
        return pd.DataFrame(rows)

    @property
    def report(self) -> Path:
        """The page, where one was written."""
        return self.path / "report" / "index.html"

    def plain(self) -> dict[str, Any]:
        """For JSON: the answer, the statistics, behaviour and cost, and which run holds which cell."""
        return {
            "comparison": self.name,
            "path": self.path,
            "answer": self.answer,
            "statistics": [row.plain() for row in self.findings.rows],
            "behaviour": self.behaviour.to_dict("records"),
            "cost": self.cost.to_dict("records"),
            "cells": ComparisonFolder(self.path).cells(),
        }

    def __repr__(self) -> str:
        """The answer and the table."""
        return "\n".join([f"comparison {self.name}", *self.answer, "", self.table.to_string(index=False)])


@dataclass(frozen=True)
class StudyResult:
    """A study: its folder, and what its trials found.

    Args:
        path: the study's folder in the runs folder.
        storage: Optuna's URL, which study.json has without its password; None takes it from there.
    """

    path: Path
    storage: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Of the folder and the MLflow experiment."""
        return self.path.name

    @cached_property
    def _book(self) -> Book:
        from negbench.tuning.book import open_book

        return open_book(self.path.parent, self.path.name, self.storage)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """A row a trial: number, state, `recall` on the dev part in [0, 1], knobs, seconds."""
        rows = []
        for trial in self._book.frozen():
            row: dict[str, Any] = {"trial": trial.number, "state": trial.state.name.lower(), "recall": trial.value}
            rows.append({**row, **trial.params, "seconds": trial.user_attrs.get("seconds")})
        return pd.DataFrame(rows)

    @property
    def best(self) -> dict[str, Any]:
        """Knobs of the best trial on the dev part.

        Raises:
            RunError: no trial is finished.
        """
        from negbench.tuning.final import finished

        if not (done := finished(self._book)):
            raise RunError(f"study '{self.name}' has no finished trial yet")
        return dict(done[0].params)

    @property
    def final(self) -> Comparison | None:
        """The best beside the default on fresh seeds; None where they were not compared."""
        from negbench.tuning.final import final_name

        found = Comparison(self.path.with_name(final_name(self.name)))
        return found if (found.path / "answer.md").exists() else None

    def plain(self) -> dict[str, Any]:
        """For JSON: the best knobs, how much each one matters, every trial, and the best beside the default."""
        from negbench.tuning.final import importance

        final = self.final
        return {
            "study": self.name,
            "path": self.path,
            "best": self.best,
            "importance": importance(self._book),
            "trials": self.trials.to_dict("records"),
            "final": None if final is None else final.plain(),
        }

    def __repr__(self) -> str:
        """The best knobs, and every trial."""
        best = ", ".join(f"{key} = {value}" for key, value in self.best.items())
        answer = self.final.answer if self.final is not None else ()
        first = f"study {self.name}: best {best or 'is the only point'}"
        return "\n".join([first, *answer, "", self.trials.to_string(index=False)])


def load(runs: Path, name: str) -> Comparison | StudyResult | RunResult:
    """A comparison, a study, or a finished run by its id or a part of it that only one has.

    Raises:
        RunError: there is none of this name, or it is not finished.
    """
    if (runs / name / "study.json").exists():
        return StudyResult(runs / name)
    if (runs / name / "comparison.json").exists():
        groups_of(runs, name)  # raises where no cell is finished
        if not (runs / name / "answer.md").exists():
            raise RunError(f"'{name}' was interrupted before its end: rerun its command to resume")
        return Comparison(runs / name)
    folder = find_run(runs, name)
    if folder.status != "finished":
        raise RunError(f"run {folder.run_id} is {folder.status}: there is no result yet")
    return RunResult(folder, folder.result, reused=True)
