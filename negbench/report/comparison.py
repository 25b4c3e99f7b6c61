"""What a comparison ends with: tables on the terminal and in its folder, and the summary runs in MLflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich import table as rich_table
from rich.console import Console

from negbench.files import atomic_write, write_json
from negbench.grid.comparison import KEY, Group, groups_of
from negbench.report.build import write_report
from negbench.report.curve import label_of
from negbench.report.leader import (
    STATISTICS,
    LeaderTable,
    bracket,
    latex,
    leader_tables,
    markdown,
    measured,
    p_text,
)
from negbench.report.verdicts import Calibrated, Row, Rules, Table, calibrated, rows_of, tables_of
from negbench.tracking import Summary, Tracker, final_values

_WIDE = tuple(name for name in STATISTICS if name not in ("interval", "verdict"))  # on paper, not on the terminal


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
    tables = tables_of(groups)
    rows = [row for table in tables for row in rows_of(table, rules)]
    calibrations = list(_calibrations(tables, rules))
    leaders = leader_tables(groups, rows)
    for dataset, table in leaders.items():
        _print(console, name, table, [row for row in rows if row.dataset == dataset])
        for found in calibrations:
            if found.dataset == dataset:
                console.print(found.line(), highlight=False)
    written = _write_all(folder, groups, leaders, rows, calibrations)
    page = write_report(runs, name)[0] if report else None
    written += [] if page is None else [page]
    summaries = [_summary(group, rows) for group in groups]
    Tracker.open(runs, tracking_uri).close_parent(folder / "mlflow.json", name, summaries, written)
    console.print(f"stored {folder}", highlight=False, soft_wrap=True)
    if page is not None:
        console.print(f"report {page}", highlight=False, soft_wrap=True)
    if tracking_uri != "none":
        console.print(f"look   negbench ui --runs-dir {runs}   (experiment {name})", highlight=False, soft_wrap=True)


def _calibrations(tables: Sequence[Table], rules: Rules) -> Iterator[Calibrated]:
    """Of one table of each data set: the others have the same design."""
    for dataset in dict.fromkeys(table.dataset for table in tables):
        found = calibrated(next(table for table in tables if table.dataset == dataset), rules)
        if found is not None:
            yield found


def _write_all(
    folder: Path,
    groups: Sequence[Group],
    leaders: Mapping[str, LeaderTable],
    rows: Sequence[Row],
    calibrations: Sequence[Calibrated],
) -> list[Path]:
    """One table for each data set in table.md and table.tex; CSV and JSON hold all rows, with the data set's name."""
    behaviour, cost = measured(groups)
    statistics = pd.DataFrame([row.plain() for row in rows])
    quality = pd.concat([table.quality for table in leaders.values()])
    write_json(folder / "statistics.json", [row.plain() for row in rows])
    write_json(folder / "calibration.json", [asdict(found) for found in calibrations])
    return [
        _write(folder / "table.md", _by_dataset(leaders, lambda table: markdown(table.quality), "### {}\n\n")),
        _write(folder / "table.tex", _by_dataset(leaders, lambda table: latex(table.quality), "% {}\n")),
        _write(folder / "table.csv", quality.to_csv(index=False)),
        _write(folder / "statistics.csv", statistics.to_csv(index=False)),
        _write(folder / "behaviour.md", _by_dataset(leaders, lambda table: markdown(table.behaviour), "### {}\n\n")),
        _write(folder / "behaviour.csv", behaviour.to_csv(index=False)),
        _write(folder / "cost.csv", cost.to_csv(index=False)),
        folder / "statistics.json",
        folder / "calibration.json",
        *(path for path in (folder / "audit.csv", folder / "audit.json") if path.exists()),
    ]


def _by_dataset(leaders: Mapping[str, LeaderTable], text: Callable[[LeaderTable], str], heading: str) -> str:
    several = len(leaders) > 1
    return "\n".join(heading.format(name) * several + text(table) for name, table in leaders.items())


def _print(console: Console, name: str, table: LeaderTable, rows: Sequence[Row]) -> None:
    """The tables of one data set."""
    quality = table.quality.drop(columns=[column for column in _WIDE if column in table.quality])
    console.print(_shown(quality, f"{name}: percent, mean ± standard deviation over seeds"))
    main = [row for row in rows if row.main]
    if len(main) > 1:
        console.print(_shown(_tests(main), _title(main[0])))
    console.print(
        _shown(table.behaviour, "what the strategies did: means over refreshes (batch strategies: epochs) and seeds")
    )
    console.print(_shown(table.cost, "cost: means over seeds"))


def _title(row: Row) -> str:
    against = f"against {row.baseline}" if row.baseline else "without a baseline"
    return (
        f"{label_of(row.metric)} {against}: points with {100 * (1 - row.alpha):g} % intervals, p by Holm, "
        f"margin {100 * row.margin:g} points; detectable: with a power of 80 %"
    )


def _tests(rows: Sequence[Row]) -> pd.DataFrame:
    """What the statistics say of the main metric, best strategy first."""
    shown = []
    for row in sorted(rows, key=lambda r: (-r.mean, r.strategy, r.loss, r.backbone)):
        line: dict[str, object] = {key: getattr(row, key) for key in KEY}
        compared = row.compared
        line["mean"] = f"{100 * row.mean:.2f} {bracket(row.low, row.high)}"
        line["difference"] = f"{100 * row.difference:+.2f}" if compared else "-"
        line["interval"] = bracket(row.diff_low, row.diff_high) if compared else "-"
        line["p (Holm)"] = p_text(row.p_adjusted) if compared else "-"
        line["effect"] = f"{row.effect_size:+.2f}" if compared else "-"
        line["detectable"] = f"{100 * row.minimum_detectable:.2f}" if compared else "-"
        models = " (one seed: these models only)" if compared and row.paired_seeds == 1 else ""
        line["verdict"] = row.verdict + models
        line["beats"] = row.letters
        shown.append(line)
    return pd.DataFrame(shown)


def _write(path: Path, text: str) -> Path:
    with atomic_write(path) as file:
        file.write(text)
    return path


def _shown(frame: pd.DataFrame, title: str) -> rich_table.Table:
    """Terminal table; columns that say the same in every row are folded into the caption."""
    constant = [c for c in (*KEY, "seeds") if c in frame and frame[c].nunique() == 1 and c != "strategy"]
    shown = frame.drop(columns=constant)
    caption = ", ".join(f"{column} {frame[column].iloc[0]}" for column in constant)
    table = rich_table.Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for column in shown.columns:
        table.add_column(str(column), justify="left" if column in KEY else "right", no_wrap=column == "strategy")
    for row in shown.itertuples(index=False):
        table.add_row(*(str(value) for value in row))
    return table


def _summary(group: Group, rows: Sequence[Row]) -> Summary:
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
        tags |= {"verdict": row.verdict, "baseline": row.baseline, "tested": row.metric, "letters": row.letters}
        metrics |= {"interval_low": row.low, "interval_high": row.high}
        tested = {"p_adjusted": row.p_adjusted, "difference": row.difference, "low": row.diff_low}
        tested |= {"high": row.diff_high, "effect_size": row.effect_size}
        tested |= {"minimum_detectable": row.minimum_detectable}
        metrics |= {key: value for key, value in tested.items() if math.isfinite(value)}
    return Summary(f"mean: {name}", tags, shared, metrics)
