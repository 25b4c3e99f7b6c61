"""The results of a comparison: one data frame, with a row for each finished cell.

Statistics, claims, studies, tables, figures and the page read this frame. Its numbers are those of result.json: shares
in [0, 1]. `negbench.load(name).results` shows the same cells in points.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from negbench.analysis.cell_check import is_finished, stored_cells
from negbench.grid.axis import AXES, GroupKey
from negbench.machine import files
from negbench.settings.config import RunConfig
from negbench.store.runfolder import RunFolder

_OF_RUN = ("seed", "hash", "run", "error")  # keys of a cell in comparison.json besides its axes and typed columns
_TABLES = ("metrics", "mistakes", "behaviour", "seconds", "peak_memory_mib")  # of result.json: NAME/KEY in the frame
NUMBERS = ("steps", "negatives_seen", "negatives_per_query", "images_encoded", "reported_epoch")  # of result.json


@dataclass(frozen=True)
class StoredRun:
    """A finished run's folder, each of whose files is read once."""

    folder: RunFolder

    @cached_property
    def result(self) -> dict[str, Any]:
        """result.json."""
        return self.folder.result

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """config.json."""
        return self.folder.manifest

    @cached_property
    def config(self) -> RunConfig:
        """The configuration in config.json."""
        return self.folder.config

    @cached_property
    def points(self) -> list[dict[str, float]]:
        """metrics.jsonl."""
        return self.folder.metrics()


def results_of(runs: Path, name: str) -> pd.DataFrame:
    """Read the finished cells of a comparison.

    Raises:
        RunError: no comparison of that name, or one without any finished cell.
    """
    cells = stored_cells(runs, name)
    with files.intact(runs / name / "comparison.json"):
        return read_results(runs, cells)


def read_results(runs: Path, cells: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Read the finished ones of these cells.

    Args:
        runs: runs folder.
        cells: rows of comparison.json.

    Returns:
        A row per finished cell. Cells that differ in their seed alone are adjacent, and sorted by seed. Columns:

        - the axes (`AXES`), as texts; "" where the comparison has no such axis
        - typed columns: `plugin` (of the strategy), and the values of dials and numbers of negatives
        - `seed`, `run` (its id), `hash`
        - `metrics/NAME`, `behaviour/NAME`, `seconds/NAME` and so on: numbers of result.json, NaN where it has none
        - `main_metric`: name of the metric that the data set calls its main one
        - `stored`: the run's files, a `StoredRun`
    """
    rows = []
    for cell in cells:
        if is_finished(runs, cell):
            rows.append(cell_row(cell, StoredRun(RunFolder(runs / cell["run"]))))
    return results_frame(rows)


def cell_row(cell: Mapping[str, Any], run: StoredRun) -> dict[str, Any]:
    """Return a cell's row of the frame."""
    row: dict[str, Any] = {axis: cell.get(axis, "") for axis in AXES}
    row |= {key: value for key, value in cell.items() if key not in (*AXES, "error")}
    result = run.result
    for table in _TABLES:
        for key, value in result.get(table, {}).items():
            row[f"{table}/{key}"] = value
    for key in NUMBERS:
        if key in result:
            row[key] = result[key]
    row["main_metric"] = result.get("main_metric")
    row["stored"] = run
    return row


def results_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Build the frame from its rows; cells of one group become adjacent, sorted by seed."""
    all_rows = list(rows)
    if not all_rows:
        return pd.DataFrame(columns=[*AXES, "seed", "run", "hash", "stored"])
    columns: dict[str, None] = {}
    for row in all_rows:
        columns |= dict.fromkeys(row)
    data = {}
    for column in columns:
        values = [row.get(column) for row in all_rows]
        if "/" in column or column in NUMBERS:
            data[column] = pd.Series(values, dtype=np.float64)
        else:  # as JSON has them: a dial's 0 and 0.5 stay a whole number and a fraction
            data[column] = pd.Series(values, dtype=object)
    frame = pd.DataFrame(data)
    group = frame.groupby(list(AXES), sort=False).ngroup()
    ordered = frame.assign(group=group).sort_values(["group", "seed"], kind="stable", ignore_index=True)
    return ordered.drop(columns="group")


def groups_of(results: pd.DataFrame) -> list[pd.DataFrame]:
    """Split results into the cells of each combination of the axes, which differ in their seed alone."""
    return [cells for _, cells in results.groupby(list(AXES), sort=False)]


# --- one group ---------------------------------------------------------------------------------------------------


def shared_value(cells: pd.DataFrame, column: str) -> Any:
    """Return the value that these cells share; None if the comparison has no such column."""
    return cells[column].iloc[0] if column in cells else None


def labels_of(cells: pd.DataFrame) -> dict[str, str]:
    """Return axis -> the value that these cells share, of the axes that the comparison has."""
    labels = {axis: shared_value(cells, axis) for axis in AXES}
    return {axis: value for axis, value in labels.items() if value}


def facts_of(cells: pd.DataFrame) -> dict[str, Any]:
    """Return the typed columns that these cells share, as comparison.json has them."""
    others = {*AXES, *NUMBERS, *_OF_RUN, "main_metric", "stored"}
    names = [name for name in cells.columns if "/" not in name and name not in others]
    facts = {"plugin": config_of(cells).strategy.name}  # instead of one that comparison.json of schema 1 lacks
    facts |= {name: shared_value(cells, name) for name in names}
    return {name: value for name, value in facts.items() if value is not None}


def key_of(cells: pd.DataFrame) -> GroupKey:
    """Return the group's key: its value on every axis."""
    return tuple(shared_value(cells, axis) for axis in AXES)


def first_run(cells: pd.DataFrame) -> StoredRun:
    """Return the run of the first seed."""
    run: StoredRun = cells["stored"].iloc[0]
    return run


def config_of(cells: pd.DataFrame) -> RunConfig:
    """Return the configuration of the first seed's run; the others differ from it in the seed."""
    return first_run(cells).config


def folders_of(cells: pd.DataFrame) -> list[RunFolder]:
    """Return the folders of these cells' runs."""
    return [run.folder for run in cells["stored"]]


def known_numbers(cells: pd.DataFrame, column: str) -> list[float]:
    """Return the numbers of a column, of the cells that have one."""
    return cells[column].dropna().tolist() if column in cells else []


def seconds_of(run: StoredRun) -> float:
    """Return the computing time of a run, all stages together."""
    return float(sum(run.result["seconds"].values()))


def seconds_per_seed(groups: Iterable[pd.DataFrame]) -> dict[GroupKey, float]:
    """Return group -> the computing time of one of its seeds."""
    return {key_of(cells): mean_seconds(cells) for cells in groups}


def mean_seconds(cells: pd.DataFrame) -> float:
    """Return the computing time of a run, averaged over these cells."""
    return sum(seconds_of(run) for run in cells["stored"]) / len(cells)


def mean_of(cells: pd.DataFrame, column: str) -> float:
    """Return the mean of a column over the cells that have a number; NaN if none has."""
    numbers = known_numbers(cells, column)
    return float(np.mean(numbers)) if numbers else math.nan


def curve_of(cells: pd.DataFrame, metric: str) -> tuple[list[int], list[float], NDArray[np.float64]]:
    """Return a metric of the scored split over training: epochs trained [E], steps [E], values [seeds, E].

    E counts the points that all seeds have, the untrained model's (0 epochs) first; E = 0 if a seed has none.
    """
    reported = config_of(cells).eval.reported
    key = f"val/{metric}" if reported else f"dev/{metric}"
    curves = []  # of each seed: epochs trained -> the point
    for run in cells["stored"]:
        curves.append({int(point["epoch"]) + 1: point for point in run.points if key in point})
    epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
    steps = [curves[0][epoch]["step"] for epoch in epochs]
    values = []
    for curve in curves:
        values.append([curve[epoch][key] for epoch in epochs])
    return epochs, steps, np.array(values)
