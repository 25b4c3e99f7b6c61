"""All table columns (`columns.toml`), used by the terminal, CSV, Markdown, LaTeX, the page and MLflow.

A table is a list of columns over lines; a line maps keys to values, which `negbench.analysis.leader` reads from runs
and verdicts.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from negbench.analysis.words import label_of, number, p_text, percent, spread, with_interval

Unit = Literal["", "%", "points", "p", "word", "words"]
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        key: name of the value in a line, and of the column in CSV files of numbers and in MLflow.
        title: heading that people read.
        unit: "%" for a share in [0, 1] that is printed times 100, "points" for a difference of such shares, "p" for a
            p-value, "word" and "words" for texts, "" for a plain number.
        digits: after the decimal point.
        ends: keys of the ends of an interval that is printed after the value.
        optional: whether to leave it out of tables in which no line has a value.
        logged: whether MLflow's summary runs log it as a metric.
    """

    key: str
    title: str
    unit: Unit = ""
    digits: int = 0
    ends: Sequence[str] = ()
    optional: bool = False
    logged: bool = False

    def text(self, line: Line) -> str:
        """Format the value for people; '-' for a gap."""
        value = line.get(self.key)
        if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
            return "-"
        if isinstance(value, list):
            return spread(value)
        if self.unit == "word" or isinstance(value, str):
            return str(value)
        if self.unit == "words":
            return ", ".join(value) or "-"
        if self.unit == "p":
            return p_text(value)
        if self.ends:
            low, high = (line[end] for end in self.ends)
            return with_interval(value, low, high, sign=self.unit == "points")
        if self.unit in ("%", "points"):
            return percent(value, self.digits)
        return number(value, self.digits)


def metric_column(name: str) -> Column:
    """Return the column of a metric: mean and standard deviation over seeds."""
    return Column(f"metrics/{name}", label_of(name).removeprefix("average "), "%", 2)


_FILE = tomllib.loads(Path(__file__).with_name("columns.toml").read_text(encoding="utf-8"))
COLUMNS = {key: Column(key, **fields) for key, fields in _FILE["columns"].items()}
TABLES: dict[str, list[Column]] = {}
for _table, _keys in _FILE["tables"].items():
    TABLES[_table] = [COLUMNS[_key] for _key in _keys]
ABOUT: dict[str, dict[str, str]] = _FILE["about"]  # title and text of each table beside the leader table
READ_LEADER: dict[str, str] = _FILE["leader"]  # parts of the leader table's text
READ: dict[str, str] = _FILE["read"]  # texts of sections and charts of the page
WORDS: dict[str, str] = _FILE["words"]  # of a verdict; {} is the strategy that others are compared with
BASELINES: dict[str, str] = _FILE["baselines"]  # name in result.json -> column
NEGATIVES = COLUMNS["negatives"]
GAP = COLUMNS["gap"]


def texts(columns: Sequence[Column], lines: Sequence[Line], axes: Sequence[str]) -> pd.DataFrame:
    """Build a table for people: each line's axes, then its formatted columns."""
    columns = [column for column in columns if not column.optional or _has_value(column, lines)]
    rows = []
    for line in lines:
        row = {axis: line[axis] for axis in axes}
        row |= {column.title: column.text(line) for column in columns}
        rows.append(row)
    return pd.DataFrame(rows)


def _has_value(column: Column, lines: Sequence[Line]) -> bool:
    return any(column.text(line) != "-" for line in lines)


def numbers(columns: Sequence[Column], lines: Sequence[Line], axes: Sequence[str]) -> pd.DataFrame:
    """Build a table for programs: unrounded values under their keys."""
    rows = []
    for line in lines:
        row = {axis: line[axis] for axis in axes}
        row |= {column.key: line.get(column.key, math.nan) for column in columns}
        rows.append(row)
    return pd.DataFrame(rows)


def values_to_log(line: Line) -> dict[str, float]:
    """Return MLflow's metrics of a verdict's line: each logged value with its interval's ends; gaps are left out."""
    keys = []
    for column in TABLES["tests"]:
        if column.logged:
            keys += [column.key, *column.ends]
    return {key: float(line[key]) for key in keys if math.isfinite(line[key])}


def constant_columns(frame: pd.DataFrame, columns: Sequence[str]) -> dict[str, str]:
    """Return the columns with the same value in every row, and that value: it is shown above the table instead."""
    same = [name for name in columns if name in frame and len(frame) and frame[name].nunique() == 1]
    return {name: str(frame[name].iloc[0]) for name in same}
