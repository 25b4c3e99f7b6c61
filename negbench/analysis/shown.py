"""Results and verdicts as users get them: data frames in points, like everything that is printed."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from negbench.analysis.columns import COLUMNS
from negbench.analysis.frame import NUMBERS, first_run, folders_of, groups_of, shared_value
from negbench.analysis.verdict_record import Verdict
from negbench.errors import OptionError, UnknownNameError
from negbench.grid.axis import AXES
from negbench.metrics.names import find_metric
from negbench.scoring.values import KnownQueries, values_of

POINTS = 100  # a share of 1 is 100 points
_COUNTS = ("steps", "negatives_seen", "images_encoded", "reported_epoch")  # whole numbers
_ESTIMATES = ("mean", "against_best", "against_highest", "against_baseline")
_IN_POINTS = ("sd", "lowest", "highest", "minimum_detectable", "margin")  # numbers of a verdict besides its estimates


def shown_results(results: pd.DataFrame) -> pd.DataFrame:
    """Return a row per finished cell: axes, seed, run, hash, metrics, behaviour and cost; shares are in points.

    Axes that the comparison lacks are left out; training budgets and what dials vary are numbers. Names are those of
    result.json: `recall_at_10`, `hardness`, `train_seconds`, `peak_memory_process_mib`.
    """
    columns: dict[str, pd.Series] = {}
    for axis in AXES:
        if (results[axis] != "").any():
            columns[axis] = results[axis]
    if "epochs" in columns:
        columns["epochs"] = results["epochs"].astype(int)
    others = [str(name) for name in results if "/" not in str(name) and name not in (*AXES, *NUMBERS, "stored")]
    columns |= {name: results[name].infer_objects() for name in others}
    for column in results.columns:
        table, _, name = column.partition("/")
        if table in ("metrics", "mistakes"):
            columns[name] = POINTS * results[column]
        elif table == "behaviour":
            columns[name] = POINTS * results[column] if _is_share(name) else results[column]
        elif table == "seconds":
            columns[f"{name}_seconds"] = results[column]
        elif table == "peak_memory_mib":
            columns[f"peak_memory_{name}_mib"] = results[column]
    configs = [run.config for run in results["stored"]]
    columns["lr"] = pd.Series([config.train.lr for config in configs], results.index)
    columns["epochs_trained"] = pd.Series([config.train.epochs for config in configs], results.index)
    columns |= {name: results[name] for name in NUMBERS if name in results}
    for name in _COUNTS:
        if name in columns and columns[name].notna().all():
            columns[name] = columns[name].astype(int)
    return pd.DataFrame(columns)


def _is_share(behaviour: str) -> bool:
    """Whether tables print this number of result.json in percent; so are shares of the draws and of random ones."""
    shares = behaviour.startswith(("draws_", "random_"))
    return shares or (behaviour in COLUMNS and COLUMNS[behaviour].unit == "%")


def per_query(results: pd.DataFrame, metric: str) -> NDArray[np.float64]:
    """[cells, queries] values of a metric, in points, in the order of the rows: 100 for a hit at 10, say.

    The mean over a row is the cell's metric; where the metric averages over groups of queries (FashionIQ's categories),
    the mean of the groups' means is. `metric` is named as `find_metric` takes it: `average/recall_at_10`, `R@10`.

    Raises:
        UnknownNameError: the cells have no such metric, or it is no mean over queries.
        OptionError: there are no cells, or they have different numbers of queries.
    """
    if results.empty:
        raise OptionError("there are no cells: choose some rows of results")
    results = results.reset_index(drop=True)  # by position, as an index may name several rows alike
    rows: dict[Any, NDArray[np.float64]] = {}  # position -> values
    queries_by_dataset: dict[str, KnownQueries] = {}
    for cells in groups_of(results):
        dataset = shared_value(cells, "dataset")
        names = list(first_run(cells).result["metrics"])
        name = find_metric(metric, names) or metric
        values = values_of(folders_of(cells), [name], queries_by_dataset.setdefault(dataset, {}))
        if name not in values:
            raise UnknownNameError("metric", metric, names, where=f"the results on {dataset}")
        rows |= dict(zip(cells.index, POINTS * values[name].values, strict=True))
    counts = sorted({len(row) for row in rows.values()})
    if len(counts) > 1:
        numbers = " and ".join(str(count) for count in counts)
        raise OptionError(f"these cells have {numbers} queries: choose cells of one data set, results.query(...)")
    return np.stack([rows[index] for index in results.index])


def cells_of(results: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of these rows of `shown_results`, in their order, whatever was done to the index since.

    Raises:
        OptionError: a row has no run, or that of another comparison.
    """
    if "run" not in rows:
        raise OptionError("the cells have no column 'run': choose whole rows of results")
    by_run = results.drop_duplicates("run").set_index("run", drop=False)  # a run in two cells has the same values
    unknown = [run for run in rows["run"] if run not in by_run.index]
    if unknown:
        raise OptionError(f"run {unknown[0]} is not in these results: choose rows of this comparison's results")
    return by_run.loc[list(rows["run"])]


def shown_verdicts(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """Return a row per verdict, in points: estimates as NAME, NAME_low, NAME_high and, of differences, NAME_p."""
    rows = []
    for verdict in verdicts:
        row: dict[str, Any] = {}
        for field in fields(verdict):
            value = getattr(verdict, field.name)
            if field.name == "facts":
                row |= value
            elif field.name in _ESTIMATES:
                row |= _columns_of(field.name, value)
            else:
                row[field.name] = POINTS * value if field.name in _IN_POINTS else value
        rows.append(row)
    frame = pd.DataFrame(rows)
    unused = [axis for axis in AXES if axis in frame and (frame[axis] == "").all()]
    return frame.drop(columns=unused)


def _columns_of(name: str, estimate: Any) -> dict[str, float]:
    """Return an estimate's columns; NaN where there is none."""
    columns = dict.fromkeys((name, f"{name}_low", f"{name}_high", f"{name}_p"), np.nan)
    if estimate is not None:
        columns[name] = POINTS * estimate.value
        columns[f"{name}_low"] = POINTS * estimate.low
        columns[f"{name}_high"] = POINTS * estimate.high
        columns[f"{name}_p"] = estimate.p
    if name == "mean":  # no difference, so without a p-value
        del columns[f"{name}_p"]
    return columns
