"""What a comparison ends with: tables on the terminal and in its folder, and the summary runs in MLflow."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from negbench.compare import KEY, Group, groups_of
from negbench.files import atomic_write
from negbench.report.leader import latex, leader_table, markdown
from negbench.tracking import Summary, Tracker, final_values


def finish(console: Console, runs: Path, name: str, tracking_uri: str | None) -> None:
    """Print the tables of a comparison, write them into its folder, and renew its summary runs."""
    groups = groups_of(runs, name)
    table = leader_table(groups)
    console.print(_shown(table.quality, f"{name}: percent, mean ± standard deviation over seeds"))
    console.print(
        _shown(table.behaviour, "what the strategies did: means over refreshes (batch strategies: epochs) and seeds")
    )
    console.print(_shown(table.cost, "cost: means over seeds"))
    folder = runs / name
    written = [
        _write(folder / "table.md", markdown(table.quality)),
        _write(folder / "table.tex", latex(table.quality)),
        _write(folder / "table.csv", table.quality.to_csv(index=False)),
        _write(folder / "behaviour.md", markdown(table.behaviour)),
        _write(folder / "behaviour.csv", table.behaviour.to_csv(index=False)),
        _write(folder / "cost.csv", table.cost.to_csv(index=False)),
    ]
    Tracker.open(runs, tracking_uri).close_parent(folder / "mlflow.json", name, [_summary(g) for g in groups], written)
    console.print(f"stored {folder}", highlight=False, soft_wrap=True)
    if tracking_uri != "none":
        console.print(f"look   negbench ui --runs-dir {runs}   (experiment {name})", highlight=False, soft_wrap=True)


def _write(path: Path, text: str) -> Path:
    with atomic_write(path) as file:
        file.write(text)
    return path


def _shown(frame: pd.DataFrame, title: str) -> Table:
    """Terminal table; columns that say the same in every row are folded into the caption."""
    constant = [c for c in (*KEY, "seeds") if c in frame and frame[c].nunique() == 1 and c != "strategy"]
    shown = frame.drop(columns=constant)
    caption = ", ".join(f"{column} {frame[column].iloc[0]}" for column in constant)
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for column in shown.columns:
        table.add_column(str(column), justify="left" if column in KEY else "right", no_wrap=column == "strategy")
    for row in shown.itertuples(index=False):
        table.add_row(*(str(value) for value in row))
    return table


def _summary(group: Group) -> Summary:
    """Means and deviations of everything the cells logged at their end, and the parameters that they share."""
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
    return Summary(f"mean: {name}", group.labels, shared, metrics)
