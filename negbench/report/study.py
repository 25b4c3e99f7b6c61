"""What a study ends with: tables on the terminal and in its folder, its page, its MLflow parent."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid

from negbench import files, statistics
from negbench.errors import RunError
from negbench.report.charts import Chart, Heat, Panel, Series, Style
from negbench.report.curve import label_of
from negbench.report.leader import bracket
from negbench.report.page import Note, Page, Section, Table, write_page
from negbench.statistics import Interval
from negbench.study.book import Book
from negbench.study.final import Final, ListedPoint, finished, front, listed_points
from negbench.study.importance import importance
from negbench.study.spec import StudySpec, pruner_options, sampler_options
from negbench.study.storage import shown_url
from negbench.tracking import Summary, Tracker

_BEST = 5  # trials on the terminal


# --- lines and tables --------------------------------------------------------------------------------------------


def header(book: Book, trials: int) -> list[str]:
    """What is searched, how, and where it is stored."""
    spec = book.spec
    lines = [
        f"{book.name}: {spec.base['strategy']['name']} on {spec.base['dataset']['name']}, {trials} trials of "
        f"{len(spec.seeds)} seed{'s' if len(spec.seeds) > 1 else ''}, scored on a dev part of train "
        f"({100 * spec.base['eval']['dev_fraction']:.0f} %); val stays closed"
    ]
    lines += [f"  {knob.key} = {knob.text()}   (default {knob.default})" for knob in spec.space.knobs]
    if clipped := [knob.key for knob in spec.space.knobs if not spec.space.points and knob.start != knob.default]:
        lines.append(f"  trial 0 is not quite the default: the ranges of {', '.join(clipped)} leave it out")
    lines.append(f"  sampler {_called(spec.sampler, sampler_options(spec))}; pruner {pruner_text(spec)}")
    return lines


def pruner_text(spec: StudySpec) -> str:
    """The pruner with its options, or why nothing is pruned."""
    if spec.pruner == "none":
        return "none"
    if spec.space.points:
        return "none (every listed point is computed to its end)"
    if spec.minimise is not None:
        return "none (two objectives)"
    return _called(spec.pruner, pruner_options(spec))


def _called(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})" if arguments else name


def trials_frame(book: Book) -> pd.DataFrame:
    """Every trial: number, state, objectives in percent, knobs, costs."""
    rows = []
    for trial in book.frozen():
        values = trial.values or []
        row: dict[str, Any] = {"trial": trial.number, "state": trial.state.name.lower()}
        row["recall %"] = f"{100 * values[0]:.2f}" if values else "-"
        if book.spec.minimise is not None:
            row[book.spec.minimise] = f"{values[1]:.5g}" if len(values) > 1 else "-"
        row |= {knob.key: _number(trial.params.get(knob.key)) for knob in book.spec.space.knobs}
        row["epochs"] = len(trial.intermediate_values) or "-"
        row["seconds"] = _number(trial.user_attrs.get("seconds"))
        row["why"] = trial.user_attrs.get("error", "")
        rows.append(row)
    return pd.DataFrame(rows)


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def points_frame(rows: Sequence[ListedPoint]) -> pd.DataFrame:
    """A table of listed points: mean in percent with its interval, difference to the default in points, its test."""
    found = []
    for row in rows:
        line: dict[str, Any] = {key.split(".")[-1]: _number(value) for key, value in row.point.items()}
        line |= {"recall %": f"{100 * row.summary.mean:.2f}"}
        line["95 % interval"] = bracket(row.summary.interval.low, row.summary.interval.high)
        test = row.test
        line["difference"] = "default" if test is None else f"{100 * test.difference:+.2f}"
        line["its interval"] = "-" if test is None else bracket(test.interval.low, test.interval.high)
        line["p (Holm)"] = "-" if test is None else f"{test.p_adjusted:.4f}"
        line["verdict"] = "-" if test is None else test.verdict
        line["seeds"] = row.summary.seeds
        found.append(line)
    return pd.DataFrame(found)


def final_frame(final: Final) -> pd.DataFrame:
    """The best beside the default."""
    test = final.test
    rows: list[dict[str, Any]] = [
        {"": name, f"{label_of(final.metric)} %": f"{100 * found.mean:.2f}", "95 % interval": bracket(*_ends(found))}
        for name, found in (("default", final.default), ("best trial", final.best))
    ]
    rows[0] |= {"difference": "-", "its interval": "-", "p": "-", "verdict": "-"}
    rows[1] |= {"difference": f"{100 * test.difference:+.2f}", "its interval": bracket(*_ends(test))}
    rows[1] |= {"p": f"{test.p_value:.4f}", "verdict": test.verdict}
    return pd.DataFrame(rows)


def _ends(found: Any) -> tuple[float, float]:
    return found.interval.low, found.interval.high


def importance_frame(book: Book) -> pd.DataFrame:
    """Knobs, most important first."""
    rows = [{"knob": key, "importance %": f"{100 * share:.1f}"} for key, share in importance(book).items()]
    return pd.DataFrame(rows, columns=["knob", "importance %"])


# --- the page ----------------------------------------------------------------------------------------------------

_QUARTERS = ("best quarter", "second", "third", "last quarter")
_CELLS = 8  # of the plane, along each knob


def study_page(book: Book) -> Page:
    """The page of a study: what was found, history, importance, the plane of the band, parallel coordinates, trials.

    Raises:
        RunError: no trial is finished.
    """
    if not finished(book):
        raise RunError(f"study '{book.name}' has no finished trial yet")
    spec, counts = book.spec, book.counts()
    sections = [_found(book), _history(book), _knobs(book), _pareto(book)]
    shown = Table("trials", "All trials", trials_frame(book), "Recall on the dev part; of a pruned trial, its last.")
    sections.append(Section("trials", "Trials", "", (shown,)))
    ended = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return Page(
        title=f"negbench: study {book.name}",
        subtitle=f"What the papers set by hand, searched for {spec.base['strategy']['name']}. Trials are scored on a "
        "dev part of train; the reported split was closed to them.",
        facts=(("trials", ended), *_facts(spec), ("look", dashboard_command(book))),
        sections=tuple(section for section in sections if section is not None),
    )


def _facts(spec: StudySpec) -> list[tuple[str, str]]:
    base = spec.base
    return [
        ("strategy", str(base["strategy"]["name"])),
        ("loss, backbone, data set", ", ".join(str(base[key]["name"]) for key in ("loss", "backbone", "dataset"))),
        ("dev part", f"{100 * base['eval']['dev_fraction']:.0f} % of train"),
        ("seeds of a trial", ", ".join(map(str, spec.seeds))),
        ("sampler", _called(spec.sampler, sampler_options(spec))),
        ("pruner", pruner_text(spec)),
    ]


def _found(book: Book) -> Section:
    """The best beside the default, or the table of listed points."""
    rows, final = listed_points(book) if book.spec.space.points else [], read_final(book.folder)
    parts: list[Table | Note] = []
    if rows:
        text = "Means over queries of the dev part and seeds; p-values are corrected for the size of the table."
        parts.append(Table("points", "Listed points against the default", points_frame(rows), text))
    if final is not None:
        seeds = ", ".join(map(str, final.seeds))
        text = f"On val, trained on all of train, with seeds that no trial used ({seeds}); the runs are the comparison "
        parts.append(
            Table("final", "The best trial beside the default", final_frame(final), f"{text}`{final.comparison}`.")
        )
    elif not rows:
        default = finished(book)[0].number == 0
        told = "The default is the best trial." if default else "The best trial was not run on fresh seeds."
        parts.append(Note(told, missing=not default))
    return Section("found", "What was found", "", tuple(parts))


def _history(book: Book) -> Section:
    """Recall of each trial, the best so far, and the curves by epoch."""
    trials = [t for t in book.frozen() if t.values]
    series, best = [], list[float]()
    for index, (state, name) in enumerate((("COMPLETE", "finished"), ("PRUNED", "pruned"))):
        mine = [t for t in trials if t.state.name == state]
        if mine:
            x, y = [float(t.number) for t in mine], [100 * t.values[0] for t in mine]
            series.append(Series(name, tuple(x), tuple(y), Style(index, index), "points", texts=_told(book, mine)))
    done = [t for t in trials if t.state.name == "COMPLETE"]
    for trial in done:
        best.append(max([100 * trial.values[0], *best[-1:]]))
    numbers = tuple(float(t.number) for t in done)
    series.append(Series("best so far", numbers, tuple(best), Style(2)))
    panels = [Panel("By trial", "trial", "recall on the dev part (%)", tuple(series))]
    lines = []
    for trial in trials:
        if points := sorted(trial.intermediate_values.items()):
            x, y = [step + 1.0 for step, _ in points], [100 * value for _, value in points]
            pruned = trial.state.name == "PRUNED"
            lines.append(Series("pruned" if pruned else "finished", tuple(x), tuple(y), Style(int(pruned))))
    if lines:
        panels.append(Panel("By epoch", "epoch (of all seeds)", "recall on the dev part (%)", tuple(lines)))
    chart = Chart("history", "Recall on the dev part", "Recall of the trials", tuple(panels))
    return Section("history", "History", "", (chart,))


def _knobs(book: Book) -> Section | None:
    """Importance, the plane of two knobs, parallel coordinates; of finished trials."""
    shares, done = importance(book), finished(book)
    combinations = math.prod(len(knob.choices) for knob in book.spec.space.knobs)
    listed = bool(book.spec.space.points) and len(book.spec.space.points) < combinations  # knobs that move together
    if len(done) < len(_QUARTERS) or not shares or listed:
        return None
    quarter = {t.number: place * len(_QUARTERS) // len(done) for place, t in enumerate(done)}
    rows = tuple(shares)
    values = tuple((100 * shares[key],) for key in rows)
    heat = Heat("Share of the variance (%)", rows, ("alone",), values, tuple((f"{v:.1f}",) for (v,) in values))
    parts: list[Table | Chart] = [
        Chart("importance", "How much each knob matters", "Share of the variance of recall by knob.", (heat,), _FANOVA),
        Table("importance", "Importance", importance_frame(book)),
    ]
    if pair := plane(book, shares):
        parts.append(_plane(book, pair, quarter))
    keys = [knob.key for knob in book.spec.space.knobs]
    lines = []
    for trial in reversed(done):  # the best are drawn last, on top
        heights = [_place(book, key, trial.params[key]) for key in keys]
        heights.append((trial.values[0] - done[-1].values[0]) / ((done[0].values[0] - done[-1].values[0]) or 1.0))
        x = tuple(float(index) for index in range(len(heights)))
        texts = (*(f"{key} {_number(trial.params[key])}" for key in keys), f"{100 * trial.values[0]:.2f} %")
        index = quarter[trial.number]
        lines.append(Series(_QUARTERS[index], x, tuple(heights), Style(index), texts=texts))
    ticks = tuple([key.split(".")[-1] for key in keys] + ["recall"])
    panel = Panel("", "", "place in the knob's range", tuple(lines), x_ticks=ticks)
    alt = "One line per trial through its knobs' values to its recall."
    parts.append(Chart("parallel", "Parallel coordinates", alt, (panel,), "Lowest value 0, highest 1.", across=1))
    return Section("knobs", "Knobs", "", tuple(parts))


_FANOVA = (
    "fANOVA over the finished trials: a forest fitted to a few dozen points ranks knobs, and measures nothing exactly. "
    "What two knobs explain only together is in neither share."
)


def plane(book: Book, shares: Mapping[str, float]) -> tuple[str, str] | None:
    """The two knobs of the plane: start and width of the band, else the two numbers that matter most."""
    space = book.spec.space
    ranges = [knob.key for knob in space.knobs if not knob.choices]
    if space.band is not None and {f"strategy.{space.band.start}", space.band.key} <= set(ranges):
        return f"strategy.{space.band.start}", space.band.key
    first = [key for key in shares if key in ranges]
    return (first[0], first[1]) if len(first) > 1 else None


def _plane(book: Book, pair: tuple[str, str], quarter: Mapping[int, int]) -> Chart:
    """The trials in the plane of two knobs, and recall between them, interpolated."""
    done, (across, up) = finished(book), pair
    series = []
    for index, name in enumerate(_QUARTERS):
        mine = [t for t in done if quarter[t.number] == index]
        x, y = [float(t.params[across]) for t in mine], [float(t.params[up]) for t in mine]
        series.append(Series(name, tuple(x), tuple(y), Style(index, index), "points", texts=_told(book, mine)))
    scatter = Panel("Trials by recall", across, up, tuple(series))
    grid = interpolated(
        np.array([[_place(book, across, t.params[across]), _place(book, up, t.params[up])] for t in done]),
        np.array([100 * t.values[0] for t in done]),
    )
    values = tuple(tuple(None if np.isnan(v) else float(v) for v in row) for row in grid[::-1])
    heat = Heat(
        "Recall between them (%)",
        tuple(_at(book, up, place) for place in _middles()[::-1]),
        tuple(_at(book, across, place) for place in _middles()),
        values,
        tuple(tuple("" if v is None else f"{v:.0f}" for v in row) for row in values),
    )
    title = "Plane of the band" if book.spec.space.band else "Plane of the two knobs that matter most"
    text = (
        f"To the right {across}, upwards {up}. Second panel: linear interpolation between the finished trials, "
        "whatever their other knobs; empty outside of them."
    )
    return Chart("plane", title, f"Recall by {across} and {up}.", (scatter, heat), text)


def interpolated(places: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, 2] places in the unit square and [n] values -> [rows, columns] at the middles of its cells; NaN outside."""
    from scipy.interpolate import griddata
    from scipy.spatial import QhullError

    columns, rows = np.meshgrid(_middles(), _middles())
    try:
        found: NDArray[np.float64] = griddata(places, values, (columns, rows), method="linear")
    except QhullError:  # all trials on one line
        found = np.full(columns.shape, np.nan)
    return found


def _middles() -> NDArray[np.float64]:
    return (np.arange(_CELLS) + 0.5) / _CELLS


def _place(book: Book, key: str, value: Any) -> float:
    """A value's place in its knob's range, 0 to 1; choices lie at equal distances."""
    knob = next(knob for knob in book.spec.space.knobs if knob.key == key)
    if knob.choices:
        return float(knob.choices.index(value) / max(1, len(knob.choices) - 1))
    low, high = float(knob.low or 0), float(knob.high or 0)
    if knob.log:
        return math.log(value / low) / math.log(high / low)
    return float((value - low) / (high - low))


def _at(book: Book, key: str, place: float) -> str:
    """The value at a place in a knob's range."""
    knob = next(knob for knob in book.spec.space.knobs if knob.key == key)
    low, high = float(knob.low or 0), float(knob.high or 0)
    return f"{low * (high / low) ** place if knob.log else low + place * (high - low):.3g}"


def _told(book: Book, trials: Sequence[Any]) -> tuple[str, ...]:
    keys = [knob.key for knob in book.spec.space.knobs]
    return tuple(
        f"trial {t.number}: {100 * t.values[0]:.2f} % ({', '.join(f'{k} {_number(t.params.get(k))}' for k in keys)})"
        for t in trials
    )


def _pareto(book: Book) -> Section | None:
    if book.spec.minimise is None:
        return None
    best = {t.number for t in front(book)}
    series = []
    for index, (name, inside) in enumerate((("front", True), ("beaten", False))):
        mine = [t for t in finished(book) if (t.number in best) == inside]
        x, y = tuple(float(t.values[1]) for t in mine), tuple(100 * t.values[0] for t in mine)
        series.append(Series(name, x, y, Style(index, index), "points", texts=_told(book, mine)))
    panel = Panel("Pareto front", book.spec.minimise, "recall on the dev part (%)", tuple(series))
    chart = Chart("pareto", "Recall and its cost", "Trials by recall and cost.", (panel,), across=1)
    return Section("pareto", "Pareto front", "Nobody on the front is beaten on both by any other trial.", (chart,))


# --- the end -----------------------------------------------------------------------------------------------------


def finish(console: Console, runs: Path, book: Book, final: Final | None, tracking_uri: str | None) -> None:
    """Print what was found, write the study's page, and close its MLflow parent."""
    rows = listed_points(book) if book.spec.space.points else []
    done = finished(book)
    if final is not None:
        files.write_json(book.folder / "final.json", asdict(final))
    if rows:
        console.print(_grid(points_frame(rows), f"{book.name}: on the dev part, against the default"))
    else:
        _print_trials(console, book)
    if final is not None:
        seeds = f"seed{'s' if len(final.seeds) > 1 else ''} {', '.join(map(str, final.seeds))}"
        title = f"on val, fresh {seeds}; the runs are comparison {final.comparison}"
        console.print(_grid(final_frame(final), title))
    elif done and done[0].number == 0 and not rows:
        console.print("the default is the best trial: nothing to compare it with", highlight=False)
    page, *written = write_page(book.folder / "report", study_page(book))
    _close_parent(runs, book, rows, final, tracking_uri, written)
    console.print(f"stored {book.folder}", highlight=False, soft_wrap=True)
    console.print(f"page   {page}", highlight=False, soft_wrap=True)
    console.print(f"look   {dashboard_command(book)}", highlight=False, soft_wrap=True)


def _print_trials(console: Console, book: Book) -> None:
    best = [trial.number for trial in (front(book) if book.spec.minimise else finished(book)[:_BEST])]
    frame = trials_frame(book).drop(columns=["state", "why"]).set_index("trial", drop=False).loc[best]
    what = "Pareto front" if book.spec.minimise else f"best {len(best)} trials"
    console.print(_grid(frame, f"{book.name}: {what}"))
    if len(shares := importance_frame(book)):
        console.print(_grid(shares, "how much each knob matters (fANOVA)"))


def read_final(folder: Path) -> Final | None:
    """final.json; None where there is none."""
    path = folder / "final.json"
    if not path.exists():
        return None
    value = files.read_json(path)

    def with_interval(kind: Any, told: dict[str, Any]) -> Any:
        return kind(**{**told, "interval": Interval(**told["interval"])})

    means = {name: with_interval(statistics.Summary, value[name]) for name in ("default", "best")}
    test = with_interval(statistics.Comparison, value["test"])
    return Final(**{**value, **means, "test": test, "seeds": tuple(value["seeds"])})


def dashboard_command(book: Book) -> str:
    """What opens the study in optuna's own pages."""
    return f"optuna-dashboard {shlex.quote(shown_url(book.url))}"


def _grid(frame: pd.DataFrame, title: str) -> Grid:
    grid = Grid(title=title, title_justify="left")
    for column in frame.columns:
        grid.add_column(str(column), justify="right")
    for row in frame.itertuples(index=False):
        grid.add_row(*(str(value) for value in row))
    return grid


# --- MLflow ------------------------------------------------------------------------------------------------------


def _close_parent(
    runs: Path,
    book: Book,
    rows: Sequence[ListedPoint],
    final: Final | None,
    tracking_uri: str | None,
    written: Sequence[Path],
) -> None:
    tracker, note, spec = Tracker.open(runs, tracking_uri), book.folder / "mlflow.json", book.spec
    params: dict[str, Any] = {"sampler": _called(spec.sampler, sampler_options(spec)), "pruner": pruner_text(spec)}
    params |= {"seeds": ",".join(map(str, spec.seeds)), "minimise": spec.minimise or "", "sampler_seed": spec.seed}
    params |= {f"space/{knob.key}": knob.text() for knob in spec.space.knobs}
    metrics = {f"trials/{state}": float(count) for state, count in book.counts().items()}
    if done := finished(book):
        metrics |= {"best/recall": done[0].values[0], "best/trial": float(done[0].number)}
    metrics |= {f"importance/{key}": share for key, share in importance(book).items()}
    if final is not None:
        metrics |= {"final/default": final.default.mean, "final/best": final.best.mean}
        metrics |= {"final/difference": final.test.difference, "final/p_value": final.test.p_value}
    tracker.describe(note, params, metrics)
    tracker.close_parent(note, book.name, [_summary(book, row) for row in rows], written)


def _summary(book: Book, row: ListedPoint) -> Summary:
    name = ", ".join(f"{key.split('.')[-1]}={_number(value)}" for key, value in row.point.items())
    metrics = {"mean/recall": row.summary.mean, "seeds": float(row.summary.seeds)}
    metrics |= {"interval/low": row.summary.interval.low, "interval/high": row.summary.interval.high}
    if row.test is not None:
        metrics |= {"difference": row.test.difference, "p_adjusted": row.test.p_adjusted}
    tags = {"study": book.name, "strategy": str(book.spec.base["strategy"]["name"]), "trial": str(row.trial)}
    return Summary(f"mean: {name}", tags, dict(row.point), metrics)
