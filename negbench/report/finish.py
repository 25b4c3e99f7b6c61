"""Finish a comparison: print and store its tables and answer, write its page and MLflow's summary runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from negbench.analysis.columns import NEGATIVES, constant, logged
from negbench.analysis.decomposition import READ_SIGNS, corners_frame, matrix_frame, parts_frame
from negbench.analysis.dial_points import points_frame
from negbench.analysis.findings import FILE, Findings, judged, stored
from negbench.analysis.leader import FOLDED, LeaderTable, leader_tables, measured, row_line
from negbench.analysis.tuned_gain import tuned_frame
from negbench.analysis.verdicts import Rules, VerdictRow
from negbench.analysis.words import label_of, markdown
from negbench.display import Grid, log
from negbench.grid.comparison import AXES, Group
from negbench.report.unchanged import inputs_of, keep, unchanged, writable
from negbench.store.runfolder import final_values
from negbench.store.tracking import SummaryRun, Tracker

_WORDS = (*AXES, "verdict", "beaten by", "best", "not beaten", "part", "from the system", "found")

# tables printed only with -v; all are written as files and on the page
_IN_DETAIL = {"behaviour", "regime", "training", "cost", "corners", "decomposition"}


def _verbose() -> bool:
    return log.isEnabledFor(logging.DEBUG)


def finish(
    console: Console,
    runs: Path,
    name: str,
    tracking_uri: str | None,
    rules: Rules | None = None,
    *,
    report: bool = True,
) -> None:
    """Judge a comparison, print its tables and answer, write them into its folder, renew its page and summary runs.

    Args:
        console: where to print.
        runs: runs folder.
        name: of the comparison.
        tracking_uri: MLflow store.
        rules: how strategies are compared; default: `Rules()`.
        report: whether to write the HTML page, which is also an artifact of the comparison's MLflow run.
    """
    folder, rules = runs / name, rules or Rules()
    inputs = inputs_of(folder, rules, report, tracking_uri)
    same = unchanged(folder, inputs)
    findings = stored(runs, name) if same else judged(runs, name, rules)
    leaders, answer = leader_tables(findings.groups, findings.rows), findings.answer()
    for title, frame, file in _axis_tables(findings):
        if file in _IN_DETAIL and not _verbose():
            continue
        console.print(Grid(frame, f"{name}: {title}", rest=str(folder / f"{file}.csv"), words=_WORDS))
    for dataset, table in leaders.items() if not (findings.dials.axes or findings.systems) else ():
        _print(console, name, table, [row for row in findings.rows if row.dataset == dataset], folder)
    for line in [f"note: {note}" for note in findings.notes()]:
        console.print(line, highlight=False, markup=False)
    page, kept = folder / "report" / "index.html", True
    if not same:
        kept = writable(folder)
        if kept:
            _renew(runs, name, tracking_uri, findings, leaders, report=report)
            keep(folder, inputs, [folder / FILE, *([page] if report else [])])
    console.print("\nanswer", style="bold", highlight=False)
    for line in answer:
        console.print(line, highlight=False, markup=False)
    where = f"stored {folder}" if kept else f"{folder} cannot be written: nothing was stored"
    console.print(f"\n{where}", highlight=False, soft_wrap=True)
    if report and page.exists():
        console.print(f"report {page}", highlight=False, soft_wrap=True)
    if tracking_uri != "none":
        console.print(f"look   negbench ui {name} --runs-dir {runs}", highlight=False, soft_wrap=True)


def _renew(
    runs: Path,
    name: str,
    tracking_uri: str | None,
    findings: Findings,
    leaders: Mapping[str, LeaderTable],
    *,
    report: bool,
) -> None:
    """Write the tables, the page, and the summary runs."""
    answer = findings.answer()
    written = _write_all(runs / name, findings, leaders, answer)
    if report:
        from negbench.report.build import write_report

        pages = write_report(runs, name)
        written += [path for path in pages if path.parent.name != "tables"]  # the same tables as ours
    differing = [axis for axis in AXES if len({group.labels.get(axis) for group in findings.groups}) > 1]
    axes = list(dict.fromkeys(("strategy", *differing)))
    summaries = [_summary(group, findings.rows, axes) for group in findings.groups]
    tracker = Tracker.open(runs, tracking_uri)
    tracker.close_parent(runs / name / "mlflow.json", name, summaries, written, "\n\n".join(answer))


def _axis_tables(findings: Findings) -> Iterator[tuple[str, pd.DataFrame, str]]:
    """Yield title, frame and file name of the tables that a comparison's own axes add."""
    if findings.dials.axes and findings.rows:
        metric = label_of(findings.main[0].metric)
        text = f"{metric} at every point; in brackets the ranks that the pairwise tests allow"
        yield text, points_frame(findings.dials, findings.main), "points"
    if findings.systems and findings.rows:
        text = f"{label_of(findings.main[0].metric)}, points against the system's own negatives; {READ_SIGNS}"
        yield text, matrix_frame(findings.main), "matrix"
        if findings.gains:
            yield "corners between the plain system and each system", corners_frame(findings.gains), "corners"
            yield "each system against the plain one, points", parts_frame(findings.gains), "decomposition"
    if findings.tuned:
        text = f"at published defaults and at equal tuning ({findings.document['tuned']['trials']} trials each)"
        yield f"{text}, percent and points", tuned_frame(findings.tuned), "tuned"


def _write_all(
    folder: Path, findings: Findings, leaders: Mapping[str, LeaderTable], answer: Sequence[str]
) -> list[Path]:
    """Write one table per data set to table.md and table.tex; CSV and JSON get all rows, with the data set's name."""
    from negbench.report.page import write_text  # imports charts, which an unchanged page does not need

    texts = {
        "answer.md": "\n\n".join(answer) + "\n",
        "table.md": _by_dataset(leaders, lambda table: markdown(table.quality), "### {}\n\n"),
        "table.tex": _by_dataset(leaders, lambda table: table.quality.to_latex(index=False, escape=True), "% {}\n"),
        "table.csv": pd.concat([table.quality for table in leaders.values()]).to_csv(index=False),
        "behaviour.md": _by_dataset(leaders, lambda table: markdown(table.behaviour), "### {}\n\n"),
        "statistics.csv": pd.DataFrame([row.plain() for row in findings.rows]).to_csv(index=False),
    }
    texts |= {f"{key}.csv": frame.to_csv(index=False) for key, frame in measured(findings.groups).items()}
    texts |= {f"{file}.csv": frame.to_csv(index=False) for _, frame, file in _axis_tables(findings)}
    return [findings.write(folder), *(write_text(folder / name, text) for name, text in texts.items())]


def _by_dataset(leaders: Mapping[str, LeaderTable], text: Callable[[LeaderTable], str], heading: str) -> str:
    several = len(leaders) > 1
    return "\n".join(heading.format(name) * several + text(table) for name, table in leaders.items())


def _print(console: Console, name: str, table: LeaderTable, rows: Sequence[VerdictRow], folder: Path) -> None:
    """Print the tables of one data set."""
    main = next((row for row in rows if row.main), None)
    title = f"{name}: percent, mean ± standard deviation over seeds"
    if main is not None and main.baseline:
        level = f"simultaneous {100 * (1 - main.alpha):g} % intervals"
        title += f"; difference of {label_of(main.metric)} from {main.baseline} in points, {level}, margin "
        title += f"{100 * main.margin:g}"
    did = "behaviour: means over refreshes (batch strategies: epochs) and seeds"
    where = "regime at the last refresh: means over seeds; how to read it: docs/regimes.md"
    how = "training: last value of the mean curve, its rise in the last third of the epochs, steps to a share of it"
    named = {"table": (table.quality, title), "behaviour": (table.behaviour, did), "regime": (table.regime, where)}
    named |= {"training": (table.training, how), "cost": (table.cost, "cost: means over seeds")}
    for file, (frame, text) in named.items():
        if len(frame) and (file not in _IN_DETAIL or _verbose()):
            console.print(_grid(frame, text, folder / f"{file}.csv"))


def _grid(frame: pd.DataFrame, title: str, rest: Path) -> Grid:
    """Build a grid; columns with the same value in every row are folded into the caption."""
    same = constant(frame, FOLDED)
    caption = ", ".join(f"{column} {value}" for column, value in same.items())
    caption += f"{', ' * bool(caption)}negatives: per query and step" * (NEGATIVES.title in frame)
    return Grid(frame.drop(columns=list(same)), title, caption, rest=str(rest), words=_WORDS)


def _summary(group: Group, rows: Sequence[VerdictRow], axes: Sequence[str]) -> SummaryRun:
    """Build a summary run: means of final values, deviations of final metrics, shared parameters, the verdict.

    Its name joins the labels on these axes. MLflow draws a section of charts for each prefix of metric names, in
    alphabetical order: final, mined, regime_end, sd, used, verdict.
    """
    finals = [final_values(result) for result in group.results]
    metrics: dict[str, float] = {"verdict/seeds": float(len(finals))}
    for key in dict.fromkeys(name for values in finals for name in values):
        values = [v[key] for v in finals if key in v]
        metrics[key] = float(np.mean(values))
        if len(values) > 1 and key.startswith("final/"):
            metrics[key.replace("final/", "sd/")] = float(np.std(values, ddof=1))
    flats = [run.config.flat() for run in group.runs]
    shared: dict[str, Any] = {k: v for k, v in flats[0].items() if all(f.get(k) == v for f in flats)}
    tags = dict(group.labels)
    labels = [group.labels.get(axis, "") for axis in AXES]
    row = next((r for r in rows if r.main and [getattr(r, axis) for axis in AXES] == labels), None)
    if row is not None:
        tags |= {"verdict": row.verdict, "baseline": row.baseline, "tested": row.metric}
        tags |= {"beaten by": ", ".join(row.beaten_by)}
        metrics |= {f"verdict/{key}": value for key, value in logged(row_line(row)).items()}
    return SummaryRun(" ".join(group.labels[axis] for axis in axes if axis in group.labels), tags, shared, metrics)
