"""Load a command's results from the runs folder into Python, as data frames and text.

Only what returns a frame imports pandas: an answer is read without.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench.analysis.cell_check import stored_cells
from negbench.analysis.unchanged import files_made_here
from negbench.errors import RunError
from negbench.grid.comparison import ComparisonFolder
from negbench.machine import files
from negbench.machine.received import read_text
from negbench.scoring.values import check_metrics
from negbench.store.run_result import RunResult
from negbench.store.runfolder import find_run

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from negbench.analysis.findings import Findings
    from negbench.tuning.book import StudyStore

_RERUN = "rerun the command that made the comparison, which writes it anew"


@dataclass(frozen=True)
class Comparison:
    """A finished comparison, read from its folder.

    Args:
        path: the comparison's folder in the runs folder.
    """

    path: Path

    @property
    def name(self) -> str:
        """Name of the folder and of the MLflow experiment."""
        return self.path.name

    @property
    def answer(self) -> list[str]:
        """The answer in words, a sentence or two per line."""
        return [line for line in self._text("answer.md").splitlines() if line]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per strategy, as the command prints it: text, in percent, mean and deviation over seeds."""
        import pandas as pd

        return pd.read_csv(io.StringIO(self._text("table.csv")), dtype=str, keep_default_na=False)

    @cached_property
    def findings(self) -> Findings:
        """The finished cells and their test results."""
        from negbench.analysis.findings import read_findings

        return read_findings(self.path.parent, self.name)

    @cached_property
    def results(self) -> pd.DataFrame:
        """One row per finished cell: axes, seed, run, metrics, behaviour and cost; shares in points."""
        from negbench.analysis.shown import shown_results

        return shown_results(self.findings.results)

    def per_query(self, metric: str, cells: pd.DataFrame | None = None) -> NDArray[np.float64]:
        """[cells, queries] values of a metric in points: one row for each row of `results`, in its order.

        Args:
            metric: a column of `results`, or the name that tables print: `average/recall_at_10`, `R@10`.
            cells: rows of `results`, in any order [default: all].

        Raises:
            UnknownNameError: there is no such metric, or it is no mean over queries.
            OptionError: there are no cells, they are not of this comparison, or they have different numbers of queries.
        """
        from negbench.analysis.shown import cells_of, per_query

        results = self.findings.results
        if cells is not None:
            results = cells_of(results, cells)
        return per_query(results, metric)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """One row per strategy and metric, in points: `negbench.analysis.verdict_record.Verdict`."""
        from negbench.analysis.shown import shown_verdicts

        return shown_verdicts(self.findings.verdicts)

    @property
    def statistics(self) -> pd.DataFrame:
        """One row per strategy and metric, in the unit of the metric; `verdicts` replaces it."""
        import pandas as pd

        text = "Comparison.statistics goes with the next version: use .verdicts, in points, or .results"
        warnings.warn(text, FutureWarning, stacklevel=2)
        return pd.DataFrame([verdict.flat() for verdict in self.findings.verdicts])

    @cached_property
    def behaviour(self) -> pd.DataFrame:
        """Behaviour of the strategies, means over refreshes and seeds."""
        return self._numbers("behaviour.csv")

    @cached_property
    def cost(self) -> pd.DataFrame:
        """Seconds, negatives and memory, means over seeds."""
        return self._numbers("cost.csv")

    def _numbers(self, name: str) -> pd.DataFrame:
        """Read a CSV file of the comparison."""
        import pandas as pd

        return pd.read_csv(io.StringIO(self._text(name)))

    def _text(self, name: str) -> str:
        """Return a file of the comparison; where another machine made it, what the runs' ranks give."""
        if not self._made_here:
            return self._texts_from_ranks[name]
        with files.intact(self.path / name, _RERUN) as file:
            return read_text(file)

    @cached_property
    def _made_here(self) -> bool:
        return bool(files_made_here(self.path.parent, self.name))

    @cached_property
    def _texts_from_ranks(self) -> dict[str, str]:
        """File name -> the text that the runs' ranks give."""
        from negbench.analysis.answer import answer_of
        from negbench.report.tables import files_of, tables

        return {"answer.md": "\n\n".join(answer_of(self.findings).lines) + "\n", **files_of(tables(self.findings))}

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell: its labels, seed and run, and every metric of the run (NaN where it is not finished).

        Metrics are shares; `results` has finished cells alone, in points.
        """
        import pandas as pd

        rows = []
        for cell in ComparisonFolder(self.path).cells():
            result = self.path.parent / (cell["run"] or "") / "result.json"
            row = {key: value for key, value in cell.items() if key != "hash"}
            if result.exists():
                row |= files.read_json(result)["metrics"]
            rows.append(row)
        return pd.DataFrame(rows)

    @property
    def report(self) -> Path:
        """Path of the page; it exists if one was written."""
        return self.path / "report" / "index.html"

    def plain(self) -> dict[str, Any]:
        """Return the answer, statistics, behaviour, cost, and the run of each cell, for JSON."""
        return {
            "comparison": self.name,
            "path": self.path,
            "answer": self.answer,
            "statistics": [verdict.flat() for verdict in self.findings.verdicts],
            "behaviour": self.behaviour.to_dict("records"),
            "cost": self.cost.to_dict("records"),
            "cells": ComparisonFolder(self.path).cells(),
        }

    def _repr_html_(self) -> str:
        """The answer, the tables and the forest plot, in a notebook."""
        from negbench.report.build import comparison_page
        from negbench.report.page import fragment
        from negbench.report.tables import tables

        return fragment(comparison_page(self.path, self.findings, tables(self.findings), galleries=0))

    def __repr__(self) -> str:
        """The answer and the table."""
        return "\n".join([f"comparison {self.name}", *self.answer, "", self.table.to_string(index=False)])


@dataclass(frozen=True)
class StudyResult:
    """A study and its trials, read from its folder.

    Args:
        path: the study's folder in the runs folder.
        storage: Optuna's URL with its password; None: the journal in the folder, and no other storage.
    """

    path: Path
    storage: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Name of the folder and of the MLflow experiment."""
        return self.path.name

    @cached_property
    def _book(self) -> StudyStore:
        from negbench.tuning.book import open_book

        return open_book(self.path.parent, self.path.name, self.storage)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial: number, state, `recall` on the dev part in [0, 1], searched options, seconds."""
        import pandas as pd

        rows = []
        for trial in self._book.frozen():
            row: dict[str, Any] = {"trial": trial.number, "state": trial.state.name.lower(), "recall": trial.value}
            rows.append({**row, **trial.params, "seconds": trial.user_attrs.get("seconds")})
        return pd.DataFrame(rows)

    @property
    def best(self) -> dict[str, Any]:
        """Values of the searched options in the best trial on the dev part.

        Raises:
            RunError: no trial is finished.
        """
        from negbench.tuning.final import completed_trials

        trials = completed_trials(self._book)
        if not trials:
            raise RunError(f"study '{self.name}' has no finished trial yet")
        return dict(trials[0].params)

    @property
    def answer(self) -> list[str]:
        """The answer in words, a sentence per line; none before the command ended."""
        path = self.path / "answer.md"
        return [line for line in read_text(path).splitlines() if line] if path.exists() else []

    @property
    def final(self) -> Comparison | None:
        """Comparison of the best with the default on fresh seeds; None if they were not compared."""
        from negbench.tuning.final import final_name

        comparison = Comparison(self.path.with_name(final_name(self.name)))
        return comparison if (comparison.path / "answer.md").exists() else None

    def plain(self) -> dict[str, Any]:
        """Return the best values, their importance, every trial, and the best compared with the default, for JSON."""
        from negbench.tuning.final import importance

        final = self.final
        return {
            "study": self.name,
            "path": self.path,
            "answer": self.answer,
            "best": self.best,
            "importance": importance(self._book),
            "trials": self.trials.to_dict("records"),
            "final": None if final is None else final.plain(),
        }

    def _repr_html_(self) -> str:
        """The best values compared with the default, and every trial, in a notebook."""
        final = "" if self.final is None else self.final._repr_html_()
        return final + self.trials.to_html(index=False, border=0)

    def __repr__(self) -> str:
        """The best values, and every trial."""
        best = ", ".join(f"{key} = {value}" for key, value in self.best.items())
        answer = self.final.answer if self.final is not None else ()
        first = f"study {self.name}: best {best or 'is the only point'}"
        return "\n".join([first, *answer, "", self.trials.to_string(index=False)])


def stored_latex(runs: Path, name: str) -> str | None:
    """Return the stored leader table of a comparison; None if this machine did not make it from the runs as they are.

    Raises:
        RunError: no such comparison, or no finished cell.
        NegbenchError: a file of another negbench version.
    """
    stored_cells(runs, name)
    if "table.tex" not in files_made_here(runs, name):
        return None
    with files.intact(runs / name / "table.tex", _RERUN) as file:
        return read_text(file)


def load(runs: Path, name: str, storage: str | None = None) -> Comparison | StudyResult | RunResult:
    """Load a comparison or a study by its name, or a finished run by its id or a unique part of it.

    Raises:
        RunError: there is none of this name, it is not finished, or its metrics are not those of its ranks.
    """
    if (runs / name / "study.json").exists():
        return StudyResult(runs / name, storage)
    if (runs / name / "comparison.json").exists():
        stored_cells(runs, name)  # raises where no cell is finished
        if not (runs / name / "answer.md").exists():
            raise RunError(f"'{name}' was interrupted before its end: rerun its command to resume")
        return Comparison(runs / name)
    folder = find_run(runs, name)
    if folder.status != "finished":
        raise RunError(f"run {folder.run_id} is {folder.status}: there is no result yet")
    check_metrics(folder)
    return RunResult(folder, folder.result, reused=True)
