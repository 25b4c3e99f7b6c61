"""Declarations of all table columns, used by the terminal, CSV, Markdown, LaTeX, the page and MLflow.

A table is a list of columns over lines; a line maps keys to values, which `negbench.analysis.leader` reads from runs
and verdicts. To add a column, add it here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from negbench.analysis.plateau import SHARE
from negbench.analysis.words import label_of, number, p_text, percent, signed, spread

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
    ends: tuple[str, str] | None = None
    optional: bool = False
    logged: bool = False

    def text(self, line: Line) -> str:
        """Format the value for people; '-' for a gap."""
        value = line.get(self.key)
        if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
            return "-"
        if isinstance(value, list):
            return spread(value)
        if self.unit in ("word", "words"):
            return str(value) if self.unit == "word" else ", ".join(value) or "-"
        if self.unit == "p":
            return p_text(value)
        if self.ends is not None:
            return signed(value, *(line[end] for end in self.ends), sign=self.unit == "points")
        return percent(value, self.digits) if self.unit in ("%", "points") else number(value, self.digits)


def metric_column(name: str) -> Column:
    """Return the column of a metric: mean and standard deviation over seeds."""
    return Column(f"metrics/{name}", label_of(name).removeprefix("average "), "%", 2)


# --- one run's behaviour, by the names of result.json; means over seeds ----------------------------------------------

NEGATIVES = Column("negatives", "negatives", "word")  # per query and step
DISTINCT = Column("distinct", "distinct", digits=1)  # different images among them
FALSE_DRAWS = Column("false_negative_rate_draws", "FN draws %", "%", 2)
FALSE_POOL = Column("false_negative_rate_pool", "FN pool %", "%", 2)
POOL = Column("pool_size", "pool")
HARDNESS = Column("hardness", "hardness", digits=3)
BAND = (
    Column("band_start", "band from %", "%", 1),
    Column("band_mean", "band %", "%", 1),
    Column("band_end", "band to %", "%", 1),
)
FALLBACKS = (Column("fallback_below", "fallbacks below", digits=1), Column("fallback_any", "fallbacks any", digits=1))

KINDS_DRAWN = tuple(
    Column(f"draws_{kind}", f"{kind} draws %", "%", 1, optional=True) for kind in ("composed", "visual", "textual")
)
DRAW_RANK = Column("draw_rank_median", "rank drawn", digits=1)

BEHAVIOUR = (
    NEGATIVES,
    FALSE_POOL,
    FALSE_DRAWS,
    *KINDS_DRAWN,
    POOL,
    HARDNESS,
    DRAW_RANK,
    *BAND,
    Column("overlap", "overlap %", "%", 1),
    *FALLBACKS,
)
AUDIT = (
    FALSE_DRAWS,
    *KINDS_DRAWN,
    FALSE_POOL,
    POOL,
    HARDNESS,
    DRAW_RANK,
    *BAND,
    Column("diversity", "diversity", digits=3),
    Column("likeness", "likeness", digits=3, optional=True),
    *FALLBACKS,
)
COST = (
    NEGATIVES,
    Column("steps", "steps"),
    Column("images_encoded", "images encoded"),
    *(
        Column(f"{stage}_seconds", f"{stage} s", digits=1)
        for stage in ("train", "mine", "encode", "evaluate", "prepare")
    ),
    Column("negatives_seen", "negatives seen"),
    Column("peak_memory_process_mib", "memory MiB"),
    Column("peak_memory_gpu_mib", "GPU MiB", optional=True),
)
LR = Column("lr", "lr", "word")
TRAINING = (
    LR,
    Column("epochs_trained", "epochs"),
    Column("steps", "steps"),
    Column("plateau", "plateau %", "%", 2),
    Column("rise", "rise in last third", "points", 2),
    Column("steps_own", f"steps to {100 * SHARE:g} %"),
    Column("steps_best", f"steps to {100 * SHARE:g} % of the best"),
)
REGIME = (
    Column("target_rank_median", "rank", digits=1),
    Column("target_first", "first %", "%", 1),
    Column("band_start_top", "bands top 5 %", "%", 1),
    Column("fit_gap", "gap", "%", 1),
    Column("false_negatives_above", "FN above %", "%", 1),
    Column("tail", "tail", digits=2),
    Column("false_negatives_below", "FN below %", "%", 1),
    Column("false_negatives", "FN random %", "%", 2),
    Column("drop_prominence", "drops", digits=1),
    Column("drop_prominence_second", "drops 2", digits=2),
    Column("band_start_median", "band from %", "%", 1),
    Column("recall_train", "R@10 train", "%", 1),
    Column("recall_val", "R@10 val", "%", 1),
    Column("relevant", "relevant", digits=1),
    Column("images", "images"),
    Column("queries", "queries"),
)

# --- verdicts, by the names of `VerdictRow` ------------------------------------------------------------------------

STANDING = Column("standing", "against the best", "word")  # with as many negatives
GAP = Column("gap", "behind the best", "points", 2, ("gap_low", "gap_high"))
VERDICT = Column("verdict", "verdict", "word")
DIFFERENCE = Column("difference", "difference", "points", 2, ("diff_low", "diff_high"), logged=True)
P_VALUE = Column("p_adjusted", "p", "p", logged=True)
BEATEN_BY = Column("beaten_by", "beaten by", "words")
RANKS = Column("ranks", "ranks", "word")
DETECTABLE = Column("minimum_detectable", "detectable", "points", 2, logged=True)
MEAN = Column("mean", "mean", "%", 2, ("low", "high"), logged=True)

LEADERS = (STANDING, GAP)
AGAINST = (VERDICT, DIFFERENCE, P_VALUE, DETECTABLE)  # the baseline, where one was asked for
AFTER_METRICS = (RANKS, BEATEN_BY, MEAN)
TESTS = (
    STANDING,
    GAP,
    VERDICT,
    DIFFERENCE,
    P_VALUE,
    MEAN,
    NEGATIVES,
    DISTINCT,
    RANKS,
    BEATEN_BY,
    Column("behind", "behind the highest", "points", 2, ("behind_low", "behind_high"), logged=True),
    DETECTABLE,
    Column("baseline", "baseline", "word"),
    Column("seeds", "seeds"),
    Column("queries", "queries"),
)
LOGGED = tuple(column for column in TESTS if column.logged)


def texts(columns: Sequence[Column], lines: Sequence[Line], axes: Sequence[str]) -> pd.DataFrame:
    """Build a table for people: each line's axes, then its formatted columns."""
    shown = [c for c in columns if not c.optional or any(c.text(line) != "-" for line in lines)]
    return pd.DataFrame(
        [{axis: line[axis] for axis in axes} | {c.title: c.text(line) for c in shown} for line in lines]
    )


def numbers(columns: Sequence[Column], lines: Sequence[Line], axes: Sequence[str]) -> pd.DataFrame:
    """Build a table for programs: unrounded values under their keys."""
    rows = [{axis: line[axis] for axis in axes} | {c.key: line.get(c.key, math.nan) for c in columns} for line in lines]
    return pd.DataFrame(rows)


def logged(line: Line) -> dict[str, float]:
    """Return MLflow's metrics of a verdict's line: each logged value with its interval's ends; gaps are left out."""
    keys = [key for column in LOGGED for key in (column.key, *(column.ends or ()))]
    return {key: float(line[key]) for key in keys if math.isfinite(line[key])}


def constant(frame: pd.DataFrame, columns: Sequence[str]) -> dict[str, str]:
    """Return the columns with the same value in every row, and that value: it is shown above the table instead."""
    same = [name for name in columns if name in frame and len(frame) and frame[name].nunique() == 1]
    return {name: str(frame[name].iloc[0]) for name in same}
