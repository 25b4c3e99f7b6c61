"""Finish a study: print and store its tables, compare the best with the default, close its MLflow parent.

Optuna's dashboard (`dashboard_command`) shows history, contours, parallel coordinates and slices.
"""

import shlex
from importlib.util import find_spec
from typing import Any

import pandas as pd
from rich.console import Console

from negbench.analysis.verdicts import Rules
from negbench.analysis.words import csv_text, label_of, plain
from negbench.display import Grid
from negbench.errors import RunError, without_secrets
from negbench.machine import files
from negbench.report.finish import finish as finish_comparison
from negbench.store.parents import Parent
from negbench.store.tracking import Tracker
from negbench.tuning.book import StudyStore
from negbench.tuning.final import FEWEST, completed_trials, epochs_of, final_name, importance
from negbench.tuning.study_answer import failures, study_answer

_BEST = 5  # most trials printed on the terminal


def trials_frame(book: StudyStore) -> pd.DataFrame:
    """Build one row per trial: number, state, score in percent, searched options, epochs, seconds, error."""
    rows = []
    score = label_of(book.spec.metric) if book.spec.metric else "recall"
    for trial in book.frozen():
        row: dict[str, Any] = {"trial": trial.number, "state": trial.state.name.lower()}
        row[f"{score} %"] = "-" if trial.value is None else f"{100 * trial.value:.2f}"
        row |= {searched.key: plain(trial.params.get(searched.key)) for searched in book.spec.space.ranges}
        row |= {"epochs": plain(epochs_of(book, trial)), "seconds": plain(trial.user_attrs.get("seconds"))}
        rows.append(row | {"why": trial.user_attrs.get("error", "")})
    return pd.DataFrame(rows)


def importance_frame(book: StudyStore) -> pd.DataFrame:
    """Build one row per searched option, most important first."""
    rows = [{"knob": key, "importance %": f"{100 * share:.0f}"} for key, share in importance(book).items()]
    return pd.DataFrame(rows, columns=["knob", "importance %"])


def finish(console: Console, book: StudyStore, rules: Rules | None, tracking_uri: str | None) -> None:
    """Print and store the study's tables, finish the comparison of the best with the default, close the MLflow parent.

    Args:
        console: where to print.
        book: of the study.
        rules: how the best and the default are compared; None where they are not.
        tracking_uri: MLflow store.

    Raises:
        RunError: no trial is finished.
    """
    completed = completed_trials(book)
    if not completed:
        raise RunError(f"study '{book.name}' has no finished trial yet")
    trials = trials_frame(book)
    shares = importance_frame(book)
    best = [trial.number for trial in completed[:_BEST]]
    best_trials = trials.drop(columns=["state", "why"]).set_index("trial", drop=False).loc[best]
    console.print(Grid(best_trials, f"{book.name}: best {len(best)} trials"))
    if len(shares):
        score = label_of(book.spec.metric) if book.spec.metric else "recall"
        title = f"each searched option's share of the variance of {score} (fANOVA of {len(completed)} trials)"
        console.print(Grid(shares, title))
        remark = "optuna-dashboard shows PED-ANOVA instead: what sets the best tenth of the trials apart"
    else:
        why = "their order depends on which trials there are" if len(completed) >= FEWEST else f"{FEWEST} needed"
        remark = (
            f"{len(completed)} of {len(trials)} trials finished: too few to say which searched option matters ({why})"
        )
    console.print(remark, highlight=False, soft_wrap=True)
    if rules is not None:
        finish_comparison(console, book.folder.parent, final_name(book.name), tracking_uri, rules)
    answer = study_answer(book, rules)
    console.print("\nwhat the study found", style="bold", highlight=False)
    for line in [*answer, *failures(book)]:
        console.print(line, highlight=False, markup=False)
    written = [
        files.write_text(book.folder / "trials.csv", csv_text(trials)),
        files.write_text(book.folder / "importance.csv", csv_text(shares)),
        files.write_text(book.folder / "answer.md", "\n\n".join(answer) + "\n"),
    ]
    Parent(Tracker.open(book.folder.parent, tracking_uri), book.folder).close([], written, "\n\n".join(answer))
    install = "" if find_spec("optuna_dashboard") else "  (after: pip install optuna-dashboard)"
    console.print(f"stored {book.folder}", highlight=False, soft_wrap=True)
    console.print(f"look   {dashboard_command(book)}{install}", highlight=False, soft_wrap=True)


def dashboard_command(book: StudyStore) -> str:
    """Return the command that opens the study in Optuna's dashboard."""
    return f"optuna-dashboard --host 127.0.0.1 {shlex.quote(without_secrets(book.url))}"
