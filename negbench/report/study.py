"""What a study ends with: tables on the terminal and in its folder, its page, its MLflow parent.

Curves by epoch, contours, parallel coordinates and Pareto fronts are Optuna's: `dashboard_command` opens them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.console import Console

from negbench import files
from negbench.analysis.statistics import Difference, Interval, Summary
from negbench.analysis.words import bracket, label_of, p_text, percent, plain, signed
from negbench.display import Grid
from negbench.errors import RunError, without_secrets
from negbench.report.charts import MARKERS, PALETTE, Chart, Panel
from negbench.report.page import Note, Page, PageSection, Table, chapters, write_page
from negbench.report.views import trials_shown
from negbench.tracking import Tracker
from negbench.tuning.book import Book
from negbench.tuning.final import Final, finished, front, importance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BEST = 5  # trials on the terminal
_RECALL = "recall on the dev part"

# --- tables --------------------------------------------------------------------------------------------


def trials_frame(book: Book) -> pd.DataFrame:
    """Every trial: number, state, objectives in percent, knobs, costs."""
    rows = []
    for trial in book.frozen():
        values = trial.values or []
        row: dict[str, Any] = {"trial": trial.number, "state": trial.state.name.lower()}
        row["recall %"] = f"{100 * values[0]:.2f}" if values else "-"
        if book.spec.minimise is not None:
            row[book.spec.minimise] = f"{values[1]:.5g}" if len(values) > 1 else "-"
        row |= {knob.key: plain(trial.params.get(knob.key)) for knob in book.spec.space.knobs}
        row |= {"epochs": len(trial.intermediate_values) or "-", "seconds": plain(trial.user_attrs.get("seconds"))}
        rows.append(row | {"why": trial.user_attrs.get("error", "")})
    return pd.DataFrame(rows)


def final_frame(final: Final) -> pd.DataFrame:
    """The best beside the default."""
    rows = []
    for name, found, test in (("default", final.default, None), ("best trial", final.best, final.test)):
        means = {f"{label_of(final.metric)} %": percent(found.mean, 2), "95 % interval": bracket(*_ends(found))}
        rows.append({"": name} | _tested(test, "-") | means)
    return pd.DataFrame(rows)


def _tested(test: Difference | None, none: str) -> dict[str, str]:
    if test is None:
        return {"verdict": none, "difference": "-", "p": "-"}
    difference = signed(test.value, *_ends(test))
    return {"verdict": test.verdict, "difference": difference, "p": p_text(test.p_adjusted)}


def _ends(found: Any) -> tuple[float, float]:
    return found.interval.low, found.interval.high


def importance_frame(book: Book) -> pd.DataFrame:
    """Knobs, most important first."""
    rows = [{"knob": key, "importance %": f"{100 * share:.1f}"} for key, share in importance(book).items()]
    return pd.DataFrame(rows, columns=["knob", "importance %"])


def _point_text(point: Mapping[str, Any], equals: str = " = ") -> str:
    return ", ".join(f"{key.split('.')[-1]}{equals}{plain(value)}" for key, value in point.items())


# --- the page ----------------------------------------------------------------------------------------------------


def study_page(book: Book) -> Page:
    """The page of a study: what was found, history, importance, trials.

    Raises:
        RunError: no trial is finished.
    """
    if not finished(book):
        raise RunError(f"study '{book.name}' has no finished trial yet")
    spec, base = book.spec, book.spec.base
    text = (
        f"{_RECALL.capitalize()}; of a pruned trial, its last."
        if spec.active_pruner != "none"
        else f"{_RECALL.capitalize()}."
    )
    trials = PageSection("trials", "Trials", "", (Table("trials", "All trials", trials_frame(book), text),))
    knobs = list[PageSection]()
    if len(shares := importance_frame(book)):
        text = "fANOVA over the finished trials: it ranks knobs, and measures nothing exactly. What two knobs explain "
        text += f"only together is in neither share. n = {len(finished(book))} trials."
        knobs.append(PageSection("knobs", "Knobs", "", (Table("importance", "Importance", shares, text),)))
    return Page(
        title=f"negbench: study {book.name}",
        subtitle=f"Knobs of {base['strategy']['name']} that papers set by hand, searched. Trials are scored on a dev "
        "part of train; the reported split was closed to them.",
        header=(str(base["dataset"]["name"]), f"{len(finished(book))} finished trials", f"{spec.epochs} epochs"),
        answer=_answer(book),
        facts=(
            ("trials", ", ".join(f"{count} {state}" for state, count in book.counts().items() if count)),
            ("strategy", str(base["strategy"]["name"])),
            ("loss, backbone, data set", ", ".join(str(base[key]["name"]) for key in ("loss", "backbone", "dataset"))),
            ("dev part", f"{100 * base['eval']['dev_fraction']:.0f} % of train"),
            ("seeds of a trial", ", ".join(map(str, spec.seeds))),
            ("sampler", spec.sampler),
            ("pruner", spec.active_pruner),
            ("look", dashboard_command(book)),
        ),
        chapters=chapters(result=[_found(book), _history(book)], why=knobs, details=[trials]),
    )


def _answer(book: Book) -> tuple[str, ...]:
    """What tuning is worth: the best trial, and its difference to the default where that was measured."""
    done, final = finished(book), read_final(book.folder)
    best = (
        f"The best of {len(done)} finished trials: {_point_text(done[0].params)} "
        f"(recall {percent(done[0].values[0])} % on the dev part)."
    )
    if final is None:
        return (best,)
    test = final.test
    return best, (
        f"On val with fresh seeds it has {label_of(final.metric)} {percent(final.best.mean)} %, "
        f"{signed(test.value, *_ends(test))} points against the default: {test.verdict}."
    )


def _found(book: Book) -> PageSection:
    """The best beside the default."""
    final = read_final(book.folder)
    part: Table | Note
    if final is not None:
        seeds = ", ".join(map(str, final.seeds))
        text = f"On val, trained on all of train, with seeds that no trial used ({seeds}); the runs are the comparison "
        title = "The best trial beside the default"
        part = Table("final", title, final_frame(final), f"{text}`{final.comparison}`.")
    else:
        default = finished(book)[0].number == 0
        text = "The default is the best trial." if default else "The best trial was not run on fresh seeds."
        part = Note(text, missing=not default)
    return PageSection("found", "What was found", "", (part,))


def _history(book: Book) -> PageSection:
    """Recall of each trial, and the best so far."""
    trials = [trial for trial in book.frozen() if trial.values]
    done = [trial for trial in trials if trial.state.name == "COMPLETE"]
    pruned = [trial for trial in trials if trial.state.name == "PRUNED"]

    def draw(axes: Axes) -> None:
        for index, (name, group) in enumerate((("finished", done), ("pruned", pruned))):
            recall = [100 * trial.values[0] for trial in group]
            if group:
                axes.plot([t.number for t in group], recall, MARKERS[index], color=PALETTE[index], label=name)
        best = np.maximum.accumulate([100 * trial.values[0] for trial in done])
        axes.plot([trial.number for trial in done], best, color=PALETTE[2], label="best so far")
        axes.set(xlabel="trial", ylabel=f"{_RECALL} (%)")

    text = f"{_RECALL.capitalize()}, n = {len(trials)} trials of {len(book.spec.seeds)} seeds."
    return PageSection(
        "history", "History", "", (Chart("history", _RECALL.capitalize(), text, (Panel("", draw),), across=1),)
    )


# --- the end -----------------------------------------------------------------------------------------------------


def finish(console: Console, book: Book, final: Final | None, tracking_uri: str | None) -> None:
    """Print what was found, write the study's page, and close its MLflow parent."""
    _print_trials(console, book)
    if final is not None:
        files.write_json(book.folder / "final.json", asdict(final))
        seeds = f"seed{'s' if len(final.seeds) > 1 else ''} {', '.join(map(str, final.seeds))}"
        console.print(Grid(final_frame(final), f"on val, fresh {seeds}; the runs are comparison {final.comparison}"))
    elif finished(book)[0].number == 0:
        console.print("the default is the best trial: nothing to compare it with", highlight=False)
    page, *written = write_page(book.folder / "report", study_page(book))
    _close_parent(book, tracking_uri, written)
    for line in (f"stored {book.folder}", f"page   {page}", f"look   {dashboard_command(book)}"):
        console.print(line, highlight=False, soft_wrap=True)


def _print_trials(console: Console, book: Book) -> None:
    best = [trial.number for trial in (front(book) if book.spec.minimise else finished(book)[:_BEST])]
    frame = trials_frame(book).drop(columns=["state", "why"]).set_index("trial", drop=False).loc[best]
    what = "Pareto front" if book.spec.minimise else f"best {len(best)} trials"
    console.print(Grid(frame, f"{book.name}: {what}"))
    if len(shares := importance_frame(book)):
        console.print(Grid(shares, "how much each knob matters (fANOVA)"))


def read_final(folder: Path) -> Final | None:
    """final.json; None where there is none."""
    path = folder / "final.json"
    if not path.exists():
        return None
    value = files.read_json(path)

    def with_intervals(kind: Any, read: dict[str, Any]) -> Any:
        return kind(**{**read, **{key: Interval(**read[key]) for key in ("interval", "models")}})

    means = {name: with_intervals(Summary, value[name]) for name in ("default", "best")}
    test = with_intervals(Difference, value["test"])
    return Final(**{**value, **means, "test": test, "seeds": tuple(value["seeds"])})


def dashboard_command(book: Book) -> str:
    """What opens the study in Optuna's own pages."""
    return f"optuna-dashboard --host 127.0.0.1 {shlex.quote(without_secrets(book.url))}"


# --- MLflow ------------------------------------------------------------------------------------------------------


def _close_parent(book: Book, tracking_uri: str | None, written: Sequence[Path]) -> None:
    tracker, knobs = Tracker.open(book.folder.parent, tracking_uri), [knob.key for knob in book.spec.space.knobs]
    seen = trials_shown("objective/recall", knobs, "\n\n".join(_answer(book)))
    tracker.close_parent(book.folder / "mlflow.json", book.name, [], written, seen)
