"""What a study ends with: tables on the terminal and in its folder, its page, its MLflow parent."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table as Grid

from negbench import files
from negbench.report.curve import label_of
from negbench.report.leader import bracket, latex, markdown
from negbench.study.book import Book, StudySpec, pruner_options, sampler_options, shown_url
from negbench.study.final import Final, Row, finished, front, table
from negbench.study.importance import importance
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


def points_frame(rows: Sequence[Row]) -> pd.DataFrame:
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


# --- the end -----------------------------------------------------------------------------------------------------


def finish(console: Console, runs: Path, book: Book, final: Final | None, tracking_uri: str | None) -> None:
    """Print what was found, write it into the study's folder, and close its MLflow parent."""
    folder = book.folder
    rows = table(book) if book.spec.space.points else []
    frames = {"trials": trials_frame(book)}
    done = finished(book)
    if rows:
        frames["points"] = points_frame(rows)
        console.print(_grid(frames["points"], f"{book.name}: on the dev part, against the default"))
    else:
        best = [trial.number for trial in (front(book) if book.spec.minimise else done[:_BEST])]
        order = {number: place for place, number in enumerate(best)}
        shown = frames["trials"][frames["trials"]["trial"].isin(best)].sort_values("trial", key=lambda c: c.map(order))
        what = "Pareto front" if book.spec.minimise else f"best {len(best)} trials"
        console.print(_grid(shown.drop(columns=["state", "why"]), f"{book.name}: {what}"))
        frames["importance"] = importance_frame(book)
        if len(frames["importance"]):
            console.print(_grid(frames["importance"], "how much each knob matters (fANOVA, finished trials)"))
    if final is not None:
        frames["final"] = final_frame(final)
        seeds = f"seed{'s' if len(final.seeds) > 1 else ''} {', '.join(map(str, final.seeds))}"
        console.print(_grid(frames["final"], f"on val, fresh {seeds}; the runs are comparison {final.comparison}"))
        files.write_json(folder / "final.json", asdict(final))
    elif done and done[0].number == 0 and not rows:
        console.print("the default is the best trial: nothing to compare it with", highlight=False)
    written = [
        _write(folder / f"{name}.{ending}", text) for name, frame in frames.items() for ending, text in _texts(frame)
    ]
    _close_parent(runs, book, rows, final, tracking_uri, written)
    console.print(f"stored {folder}", highlight=False, soft_wrap=True)
    console.print(f"look   {dashboard_command(book)}", highlight=False, soft_wrap=True)


def dashboard_command(book: Book) -> str:
    """What opens the study in optuna's own pages."""
    return f"optuna-dashboard {shlex.quote(shown_url(book.url))}"


def _texts(frame: pd.DataFrame) -> list[tuple[str, str]]:
    return [("md", markdown(frame)), ("tex", latex(frame)), ("csv", frame.to_csv(index=False))]


def _write(path: Path, text: str) -> Path:
    with files.atomic_write(path) as file:
        file.write(text)
    return path


def _grid(frame: pd.DataFrame, title: str) -> Grid:
    grid = Grid(title=title, title_justify="left")
    for column in frame.columns:
        grid.add_column(str(column), justify="right")
    for row in frame.itertuples(index=False):
        grid.add_row(*(str(value) for value in row))
    return grid


# --- MLflow ------------------------------------------------------------------------------------------------------


def _close_parent(
    runs: Path, book: Book, rows: Sequence[Row], final: Final | None, tracking_uri: str | None, written: Sequence[Path]
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


def _summary(book: Book, row: Row) -> Summary:
    name = ", ".join(f"{key.split('.')[-1]}={_number(value)}" for key, value in row.point.items())
    metrics = {"mean/recall": row.summary.mean, "seeds": float(row.summary.seeds)}
    metrics |= {"interval/low": row.summary.interval.low, "interval/high": row.summary.interval.high}
    if row.test is not None:
        metrics |= {"difference": row.test.difference, "p_adjusted": row.test.p_adjusted}
    tags = {"study": book.name, "strategy": str(book.spec.base["strategy"]["name"]), "trial": str(row.trial)}
    return Summary(f"mean: {name}", tags, dict(row.point), metrics)
