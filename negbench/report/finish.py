"""What a comparison ends with: tables on the terminal and in its folder, and the summary runs in MLflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from negbench.analysis.answer import answers
from negbench.analysis.leader import FOLDED, NEGATIVES, LeaderTable, leader_tables, measured, ordered
from negbench.analysis.regime import measured_regime, regime_frame
from negbench.analysis.verdicts import Calibrated, Rules, VerdictRow, VerdictTable, calibrated, rows_of, tables_of
from negbench.analysis.words import label_of, latex, markdown
from negbench.display import Grid
from negbench.files import write_json
from negbench.grid.comparison import KEY, Group, groups_of
from negbench.report.build import write_report
from negbench.report.page import write_text
from negbench.report.views import shown
from negbench.runfolder import final_values
from negbench.tracking import SummaryRun, Tracker


def finish(
    console: Console,
    runs: Path,
    name: str,
    tracking_uri: str | None,
    rules: Rules | None = None,
    *,
    report: bool = True,
) -> None:
    """Print the tables of a comparison, write them into its folder, and renew its report and its summary runs.

    Args:
        console: where to print.
        runs: runs folder.
        name: of the comparison.
        tracking_uri: MLflow store.
        rules: how strategies are compared; default: the defaults.
        report: whether to write the HTML page, which is also an artifact of the comparison's MLflow run.
    """
    rules = rules or Rules()
    groups, folder = groups_of(runs, name), runs / name
    tables = tables_of(groups, rules)
    rows = [
        VerdictRow.read(row.plain()) for table in tables for row in rows_of(table, rules)
    ]  # as the page will read them
    calibrations = list(_calibrations(tables, rules))
    leaders, told = leader_tables(groups, rows), answers(groups, rows)
    for dataset, table in leaders.items():
        mine = [group for group in ordered(groups, rows) if group.labels["dataset"] == dataset]
        _print(console, name, table, [row for row in rows if row.dataset == dataset], regime_frame(mine), folder)
        for found in calibrations:
            if found.dataset == dataset:
                console.print(found.line(), highlight=False)
    written = _write_all(folder, groups, leaders, rows, calibrations, told)
    pages = write_report(runs, name) if report else []
    written += [path for path in pages if path.parent.name != "tables"]  # the same tables as ours
    summaries = [_summary(group, rows) for group in groups]
    seen = shown(groups, rows, (folder / "answer.md").read_text(encoding="utf-8"))
    Tracker.open(runs, tracking_uri).close_parent(folder / "mlflow.json", name, summaries, written, seen)
    for dataset, lines in told.items():
        console.print(f"\nanswer{f', {dataset}' * (len(told) > 1)}", style="bold", highlight=False)
        for line in lines:
            console.print(line, highlight=False, markup=False)
    console.print(f"\nstored {folder}", highlight=False, soft_wrap=True)
    if pages:
        console.print(f"report {pages[0]}", highlight=False, soft_wrap=True)
    if tracking_uri != "none":
        console.print(f"look   negbench ui {name} --runs-dir {runs}", highlight=False, soft_wrap=True)


def _calibrations(tables: Sequence[VerdictTable], rules: Rules) -> Iterator[Calibrated]:
    """Of one table of each data set: the others have the same design."""
    for dataset in dict.fromkeys(table.dataset for table in tables):
        found = calibrated(next(table for table in tables if table.dataset == dataset), rules)
        if found is not None:
            yield found


def _write_all(
    folder: Path,
    groups: Sequence[Group],
    leaders: Mapping[str, LeaderTable],
    rows: Sequence[VerdictRow],
    calibrations: Sequence[Calibrated],
    told: Mapping[str, Sequence[str]],
) -> list[Path]:
    """One table for each data set in table.md and table.tex; CSV and JSON hold all rows, with the data set's name."""
    behaviour, cost = measured(groups)
    statistics = pd.DataFrame([row.plain() for row in rows])
    quality = pd.concat([table.quality for table in leaders.values()])
    write_json(folder / "statistics.json", [row.plain() for row in rows])
    write_json(folder / "calibration.json", [asdict(found) for found in calibrations])
    return [
        write_text(folder / "answer.md", "\n\n".join(line for lines in told.values() for line in lines) + "\n"),
        write_text(folder / "table.md", _by_dataset(leaders, lambda table: markdown(table.quality), "### {}\n\n")),
        write_text(folder / "table.tex", _by_dataset(leaders, lambda table: latex(table.quality), "% {}\n")),
        write_text(folder / "table.csv", quality.to_csv(index=False)),
        write_text(folder / "statistics.csv", statistics.to_csv(index=False)),
        write_text(
            folder / "behaviour.md", _by_dataset(leaders, lambda table: markdown(table.behaviour), "### {}\n\n")
        ),
        write_text(folder / "behaviour.csv", behaviour.to_csv(index=False)),
        write_text(folder / "regime.csv", measured_regime(ordered(groups)).to_csv(index=False)),
        write_text(folder / "cost.csv", cost.to_csv(index=False)),
        folder / "statistics.json",
        folder / "calibration.json",
        *(path for path in (folder / "audit.csv", folder / "audit.json") if path.exists()),
    ]


def _by_dataset(leaders: Mapping[str, LeaderTable], text: Callable[[LeaderTable], str], heading: str) -> str:
    several = len(leaders) > 1
    return "\n".join(heading.format(name) * several + text(table) for name, table in leaders.items())


def _print(
    console: Console,
    name: str,
    table: LeaderTable,
    rows: Sequence[VerdictRow],
    regime: pd.DataFrame,
    folder: Path,
) -> None:
    """The tables of one data set."""
    main = next((row for row in rows if row.main), None)
    title = f"{name}: percent, mean ± standard deviation over seeds"
    if main is not None and main.baseline:
        level = f"{100 * (1 - main.alpha):g} % intervals for the whole table"
        title += f"; difference of {label_of(main.metric)} to {main.baseline} in points, {level}, margin "
        title += f"{100 * main.margin:g}"
    console.print(_shown(table.quality, title, folder / "table.csv"))
    did = "what the strategies did: means over refreshes (batch strategies: epochs) and seeds"
    console.print(_shown(table.behaviour, did, folder / "behaviour.csv"))
    if len(regime):
        where = "regime at the last refresh: means over seeds; docs/regimes.md says how to read it"
        console.print(_shown(regime, where, folder / "regime.csv"))
    console.print(_shown(table.cost, "cost: means over seeds", folder / "cost.csv"))


def _shown(frame: pd.DataFrame, title: str, rest: Path) -> Grid:
    """Columns that say the same in every row are folded into the caption."""
    constant = [c for c in FOLDED if c in frame and frame[c].nunique() == 1]
    caption = ", ".join(f"{column} {frame[column].iloc[0]}" for column in constant)
    caption += f"{', ' * bool(caption)}negatives: per query and step" * (NEGATIVES in frame)
    return Grid(frame.drop(columns=constant), title, caption, rest=str(rest), words=(*KEY, "verdict", "beaten by"))


def _summary(group: Group, rows: Sequence[VerdictRow]) -> SummaryRun:
    """Means and deviations of all that the cells logged at their end, the parameters that they share, the verdict."""
    logged = [final_values(result) for result in group.results]
    metrics: dict[str, float] = {"seeds": float(len(logged))}
    for key in dict.fromkeys(name for values in logged for name in values):
        values = [v[key] for v in logged if key in v and math.isfinite(v[key])]
        if values:
            metrics[f"mean/{key}"] = float(np.mean(values))
            if len(values) > 1:
                metrics[f"sd/{key}"] = float(np.std(values, ddof=1))
    flats = [run.config.flat() for run in group.runs]
    shared: dict[str, Any] = {k: v for k, v in flats[0].items() if all(f.get(k) == v for f in flats)}
    name = " ".join(str(group.labels[k]) for k in ("strategy", "loss", "backbone"))
    tags = dict(group.labels)
    row = next((r for r in rows if r.main and all(getattr(r, k) == group.labels[k] for k in KEY)), None)
    if row is not None:
        tags |= {"verdict": row.verdict, "baseline": row.baseline, "tested": row.metric}
        tags |= {"beaten by": ", ".join(row.beaten_by)}
        metrics |= {"interval_low": row.low, "interval_high": row.high}
        tested = {"p_adjusted": row.p_adjusted, "difference": row.difference, "low": row.diff_low}
        tested |= {"high": row.diff_high, "effect_size": row.effect_size}
        tested |= {"minimum_detectable": row.minimum_detectable}
        metrics |= {key: value for key, value in tested.items() if math.isfinite(value)}
    return SummaryRun(f"mean: {name}", tags, shared, metrics)
