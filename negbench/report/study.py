"""What a study ends with: tables on the terminal and in its folder, its page, its MLflow parent.

Curves by epoch, contours and parallel coordinates are Optuna's: `dashboard_command` opens them.
"""

from __future__ import annotations

import math
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
from negbench.report.page import Note, Page, PageSection, Table, write_page
from negbench.report.views import trials_shown
from negbench.tracking import SummaryRun, Tracker
from negbench.tuning.book import Book
from negbench.tuning.final import Final, ListedPoint, finished, front, importance, listed_points

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


def points_frame(rows: Sequence[ListedPoint]) -> pd.DataFrame:
    """A table of listed points: verdict and difference to the default in points, mean in percent with its interval."""
    found = []
    for row in rows:
        line: dict[str, Any] = {key.split(".")[-1]: plain(value) for key, value in row.point.items()}
        line |= _tested(row.test, "default") | {"recall %": percent(row.summary.mean, 2)}
        line |= {"95 % interval": bracket(*_ends(row.summary)), "seeds": row.summary.seeds}
        found.append(line)
    return pd.DataFrame(found)


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
    """The page of a study: what was found, history, importance, the plane of the band, the Pareto front, trials.

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
    trials = PageSection(
        "trials", "Trials", "", (Table("trials", "All trials", trials_frame(book), text),), folded=True
    )
    sections = (_found(book), _history(book), _knobs(book), _pareto(book), trials)
    return Page(
        title=f"negbench: study {book.name}",
        subtitle=f"Knobs of {base['strategy']['name']} that papers set by hand, searched. Trials are scored on a dev "
        "part of train; the reported split was closed to them.",
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
        sections=tuple(section for section in sections if section is not None),
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
    """The best beside the default, or the table of listed points."""
    rows, final = listed_points(book), read_final(book.folder)
    parts: list[Table | Note] = []
    if rows:
        text = "Means over queries of the dev part and seeds; p-values are corrected for the size of the table."
        parts.append(Table("points", "Listed points against the default", points_frame(rows), text))
    if final is not None:
        seeds = ", ".join(map(str, final.seeds))
        text = f"On val, trained on all of train, with seeds that no trial used ({seeds}); the runs are the comparison "
        title = "The best trial beside the default"
        parts.append(Table("final", title, final_frame(final), f"{text}`{final.comparison}`."))
    elif not rows:
        default = finished(book)[0].number == 0
        text = "The default is the best trial." if default else "The best trial was not run on fresh seeds."
        parts.append(Note(text, missing=not default))
    return PageSection("found", "What was found", "", tuple(parts))


def _history(book: Book) -> PageSection:
    """Recall of each trial, and the best so far."""
    trials = [trial for trial in book.frozen() if trial.values]
    done = [trial for trial in trials if trial.state.name == "COMPLETE"]
    pruned = [trial for trial in trials if trial.state.name == "PRUNED"]

    def draw(axes: Axes) -> None:
        for index, (name, group) in enumerate((("finished", done), ("pruned", pruned))):
            _dots(axes, index, name, [t.number for t in group], [100 * t.values[0] for t in group])
        best = np.maximum.accumulate([100 * trial.values[0] for trial in done])
        axes.plot([trial.number for trial in done], best, color=PALETTE[2], label="best so far")
        axes.set(xlabel="trial", ylabel=f"{_RECALL} (%)")

    text = f"{_RECALL.capitalize()}, n = {len(trials)} trials of {len(book.spec.seeds)} seeds."
    return PageSection(
        "history", "History", "", (Chart("history", _RECALL.capitalize(), text, (Panel("", draw),), across=1),)
    )


def _dots(axes: Axes, index: int, name: str, x: Sequence[float], y: Sequence[float]) -> None:
    """One group of trials."""
    if x:
        axes.plot(x, y, MARKERS[index], color=PALETTE[index], label=name)


def _knobs(book: Book) -> PageSection | None:
    """Importance, and the plane of two knobs; None where knobs move together, or where there are too few trials."""
    space, shares = book.spec.space, importance(book)
    if not shares or len(space.points) not in (0, math.prod(len(knob.choices) for knob in space.knobs)):
        return None

    def bars(axes: Axes) -> None:
        names = list(shares)[::-1]
        axes.barh(names, [100 * shares[name] for name in names], color=PALETTE[0], height=0.6)
        axes.set(xlabel="share of the variance (%)")

    text = (
        "fANOVA over the finished trials: a forest fitted to a few dozen points ranks knobs, and measures nothing "
        f"exactly. What two knobs explain only together is in neither share. n = {len(finished(book))} trials."
    )
    bar = Panel("", bars, 0.3 * len(shares) + 0.2)
    parts: list[Table | Chart] = [
        Chart("importance", "How much each knob matters", text, (bar,), across=1),
        Table("importance", "Importance", importance_frame(book)),
    ]
    if pair := plane(book, shares):
        parts.append(_plane(book, pair))
    return PageSection("knobs", "Knobs", "", tuple(parts))


def plane(book: Book, shares: Mapping[str, float]) -> tuple[str, str] | None:
    """The two knobs of the plane: start and width of the band, else the two numbers that matter most."""
    space = book.spec.space
    ranges = [knob.key for knob in space.knobs if not knob.choices]
    if space.band is not None and {f"strategy.{space.band.start}", space.band.key} <= set(ranges):
        return f"strategy.{space.band.start}", space.band.key
    first = [key for key in shares if key in ranges]
    return (first[0], first[1]) if len(first) > 1 else None


def _plane(book: Book, pair: tuple[str, str]) -> Chart:
    """The finished trials in the plane of two knobs, by quarter of their recall."""
    done, (across, up) = finished(book), pair
    logs = {knob.key: knob.log for knob in book.spec.space.knobs}

    def draw(axes: Axes) -> None:
        for index, name in enumerate(("best quarter", "second", "third", "last quarter")):
            quarter = [t for place, t in enumerate(done) if place * 4 // len(done) == index]
            _dots(axes, index, name, *([float(t.params[key]) for t in quarter] for key in pair))
        axes.set(xlabel=across, ylabel=up)
        axes.set_xscale("log" if logs[across] else "linear")
        axes.set_yscale("log" if logs[up] else "linear")

    title = "Plane of the band" if book.spec.space.band else "Plane of the two knobs that matter most"
    text = f"Trials by {across} and {up}, n = {len(done)}; colours by {_RECALL}."
    return Chart("plane", title, text, (Panel("", draw, 2.6),), across=1)


def _pareto(book: Book) -> PageSection | None:
    """Recall and its cost, with two objectives."""
    if book.spec.minimise is None:
        return None
    done, best = finished(book), {trial.number for trial in front(book)}

    def draw(axes: Axes) -> None:
        for index, (name, inside) in enumerate((("front", True), ("beaten", False))):
            group = [trial for trial in done if (trial.number in best) == inside]
            _dots(axes, index, name, [t.values[1] for t in group], [100 * t.values[0] for t in group])
        axes.set(xlabel=str(book.spec.minimise), ylabel=f"{_RECALL} (%)")

    text = f"Recall and {book.spec.minimise} of n = {len(done)} finished trials: up and to the left is better."
    chart = Chart("pareto", "Recall and its cost", text, (Panel("", draw),), across=1)
    return PageSection("pareto", "Pareto front", "No trial beats one on the front on both objectives.", (chart,))


# --- the end -----------------------------------------------------------------------------------------------------


def finish(console: Console, book: Book, final: Final | None, tracking_uri: str | None) -> None:
    """Print what was found, write the study's page, and close its MLflow parent."""
    rows, done = listed_points(book), finished(book)
    if rows:
        console.print(Grid(points_frame(rows), f"{book.name}: on the dev part, against the default"))
    else:
        _print_trials(console, book)
    if final is not None:
        files.write_json(book.folder / "final.json", asdict(final))
        seeds = f"seed{'s' if len(final.seeds) > 1 else ''} {', '.join(map(str, final.seeds))}"
        console.print(Grid(final_frame(final), f"on val, fresh {seeds}; the runs are comparison {final.comparison}"))
    elif done and done[0].number == 0 and not rows:
        console.print("the default is the best trial: nothing to compare it with", highlight=False)
    page, *written = write_page(book.folder / "report", study_page(book))
    _close_parent(book, rows, tracking_uri, written)
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


def _close_parent(book: Book, rows: Sequence[ListedPoint], tracking_uri: str | None, written: Sequence[Path]) -> None:
    tracker, knobs = Tracker.open(book.folder.parent, tracking_uri), [knob.key for knob in book.spec.space.knobs]
    seen = trials_shown("objective/recall", knobs, "\n\n".join(_answer(book)))
    tracker.close_parent(book.folder / "mlflow.json", book.name, [_summary(book, row) for row in rows], written, seen)


def _summary(book: Book, row: ListedPoint) -> SummaryRun:
    metrics = {"mean/recall": row.summary.mean, "seeds": float(row.summary.seeds)}
    metrics |= {"interval/low": row.summary.interval.low, "interval/high": row.summary.interval.high}
    if row.test is not None:
        metrics |= {"difference": row.test.value, "p_adjusted": row.test.p_adjusted}
    tags = {"study": book.name, "strategy": str(book.spec.base["strategy"]["name"]), "trial": str(row.trial)}
    return SummaryRun(f"mean: {_point_text(row.point, '=')}", tags, dict(row.point), metrics)
