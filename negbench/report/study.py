"""Finish a study: print and store its tables, compare the best with the default, close its MLflow parent.

Optuna's dashboard (`dashboard_command`) shows history, contours, parallel coordinates and slices.
"""

import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pandas as pd
from optuna.trial import FrozenTrial
from rich.console import Console

from negbench.analysis.answer import WORDS
from negbench.analysis.findings import stored
from negbench.analysis.verdicts import Rules
from negbench.analysis.words import in_points, listed, number, percent, plain, settings_text, signed
from negbench.display import Grid
from negbench.errors import RunError, without_secrets
from negbench.machine import files
from negbench.report.finish import finish as finish_comparison
from negbench.store.tracking import Tracker
from negbench.tuning.book import Book
from negbench.tuning.final import FEWEST, band_of, epochs_of, final_name, finished, importance, is_default

_BEST = 5  # most trials printed on the terminal
_POINT = 0.01


def trials_frame(book: Book) -> pd.DataFrame:
    """Build one row per trial: number, state, recall in percent, knobs, epochs, seconds, error."""
    rows = []
    for trial in book.frozen():
        row: dict[str, Any] = {"trial": trial.number, "state": trial.state.name.lower()}
        row["recall %"] = "-" if trial.value is None else f"{100 * trial.value:.2f}"
        row |= {knob.key: plain(trial.params.get(knob.key)) for knob in book.spec.space.knobs}
        row |= {"epochs": plain(epochs_of(book, trial)), "seconds": plain(trial.user_attrs.get("seconds"))}
        rows.append(row | {"why": trial.user_attrs.get("error", "")})
    return pd.DataFrame(rows)


def importance_frame(book: Book) -> pd.DataFrame:
    """Build one row per knob, most important first."""
    rows = [{"knob": key, "importance %": f"{100 * share:.0f}"} for key, share in importance(book).items()]
    return pd.DataFrame(rows, columns=["knob", "importance %"])


def finish(console: Console, book: Book, rules: Rules | None, tracking_uri: str | None) -> None:
    """Print and store the study's tables, finish the comparison of the best with the default, close the MLflow parent.

    Args:
        console: where to print.
        book: of the study.
        rules: how the best and the default are compared; None where they are not.
        tracking_uri: MLflow store.

    Raises:
        RunError: no trial is finished.
    """
    done = finished(book)
    if not done:
        raise RunError(f"study '{book.name}' has no finished trial yet")
    trials, shares = trials_frame(book), importance_frame(book)
    best = [trial.number for trial in done[:_BEST]]
    shown = trials.drop(columns=["state", "why"]).set_index("trial", drop=False).loc[best]
    console.print(Grid(shown, f"{book.name}: best {len(best)} trials"))
    if len(shares):
        console.print(Grid(shares, f"each knob's share of the variance of recall (fANOVA of {len(done)} trials)"))
        other = "optuna-dashboard shows PED-ANOVA instead: what sets the best tenth of the trials apart"
        console.print(other, highlight=False, soft_wrap=True)
    else:
        why = "their order depends on which trials there are" if len(done) >= FEWEST else f"{FEWEST} needed"
        few = f"{len(done)} of {len(trials)} trials finished: too few to say which knob matters ({why})"
        console.print(few, highlight=False, soft_wrap=True)
    if rules is not None:
        finish_comparison(console, book.folder.parent, final_name(book.name), tracking_uri, rules)
    answer = study_answer(book, rules)
    console.print("\nwhat the study found", style="bold", highlight=False)
    for line in answer:
        console.print(line, highlight=False, markup=False)
    written = [book.folder / name for name in ("trials.csv", "importance.csv", "answer.md")]
    texts = (trials.to_csv(index=False), shares.to_csv(index=False), "\n\n".join(answer) + "\n")
    for path, text in zip(written, texts, strict=True):
        with files.atomic_write(path) as file:
            file.write(text)
    Tracker.open(book.folder.parent, tracking_uri).close_parent(
        book.folder / "mlflow.json", book.name, [], written, "\n\n".join(answer)
    )
    install = "" if find_spec("optuna_dashboard") else "  (after: pip install optuna-dashboard)"
    for line in (f"stored {book.folder}", f"look   {dashboard_command(book)}{install}"):
        console.print(line, highlight=False, soft_wrap=True)


# --- the answer --------------------------------------------------------------------------------------------------


def study_answer(book: Book, rules: Rules | None) -> list[str]:
    """Say what was found and where its negatives come from, whether it is better, and how flat the optimum is.

    Args:
        book: a study with a finished trial.
        rules: of the comparison of the best with the default; None where they were not compared.
    """
    done, clipped = finished(book), book.spec.space.clipped
    best, zero = done[0], next((trial for trial in done if trial.number == 0), None)
    default = f"trial 0, the default moved into the range of {listed(clipped)}" if clipped else "the default"
    name = default if best is zero else settings_text(book.spec.space.plain(book.spec.config, best.params))
    lines = [f"The best of {len(done)} finished trials is {name}: {_scored(book, best)}."]
    if best is not zero and zero is not None:
        lines.append(f"{default[0].upper()}{default[1:]}: {_scored(book, zero)}.")
    return [*lines, _better(book, best, rules), _flatness(book, done)]


def _scored(book: Book, trial: FrozenTrial) -> str:
    """'45.2 % on the dev part, negatives from ranks 28 to 169 (0.3 to 1.7 % of the gallery)'."""
    text = f"{percent(trial.value)} % on the dev part"
    if (band := band_of(book, trial)) is None:
        return text
    first, last, ranks = band
    share = f"{percent(first / ranks)} to {percent(last / ranks)} % of the gallery"
    return f"{text}, negatives from ranks {number(first)} to {number(last)} ({share})"


def _better(book: Book, best: FrozenTrial, rules: Rules | None) -> str:
    """Say what the comparison on other seeds and queries decided."""
    if is_default(book, best):
        return "The default is the best trial, so there is nothing to compare it with."
    if rules is None:
        return "Not compared with the default on other seeds and queries: --final-seeds 0."
    row = next(row for row in stored(book.folder.parent, final_name(book.name)).main if row.verdict != "baseline")
    words = WORDS.get(row.verdict, f"{row.verdict} with {{}}").format("the default", in_points(row.margin))
    points = signed(row.difference, row.diff_low, row.diff_high)
    return f"On {row.seeds} seeds and {row.queries:,} queries that no trial saw it is {words}: {points} points."


def _flatness(book: Book, done: Sequence[FrozenTrial]) -> str:
    """Say how far apart the trials within a point of the best are."""
    near = [trial for trial in done if trial.values[0] >= done[0].values[0] - _POINT]
    if len(near) == 1:
        return "No other finished trial is within a point of it."
    plain_values = [book.spec.space.plain(book.spec.config, trial.params) for trial in near]
    parts = [_spread(key.split(".")[-1], [each[key] for each in plain_values]) for key in plain_values[0]]
    bands = [band for trial in near if (band := band_of(book, trial))]
    if bands:
        ends = (_spread("", [round(band[side]) for band in bands]).strip() for side in (0, 1))
        parts.append("negatives from ranks {} up to ranks {}".format(*ends))
    return f"{len(near)} of {len(done)} finished trials are within a point of the best: {', '.join(parts)}."


def _spread(name: str, values: Sequence[Any]) -> str:
    """'alpha 0.02 to 0.2', or the listed values in order of their trials."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    ends = (min(values), max(values)) if numbers else values
    return f"{name} {(' to ' if numbers else ' or ').join(dict.fromkeys(map(plain, ends)))}"


def dashboard_command(book: Book) -> str:
    """Return the command that opens the study in Optuna's dashboard."""
    return f"optuna-dashboard --host 127.0.0.1 {shlex.quote(without_secrets(book.url))}"
