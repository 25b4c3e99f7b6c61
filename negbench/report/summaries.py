"""Summary runs of a comparison, one per strategy, as MLflow's charts show them.

What MLflow 3 does with them, which decides names and order here:

- The title of a chart is the metric's whole name, cut after some ten letters in a narrow window, and after three beside
  the Assistant, which MLflow opens at a first visit; the part before the last "/" names a section. Both are sorted by
  code unit, so that a capital comes first: only recall begins with one.
- The page that compares chosen runs opens on the first metric that was logged, its scatter plot on the first by name.
- Of the rows of the list, the first ten are drawn. `POSITION` sorts them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from negbench.analysis.columns import values_to_log
from negbench.analysis.findings import Findings
from negbench.analysis.frame import first_run, key_of, labels_of, shared_value
from negbench.analysis.leader import row_line
from negbench.analysis.verdict_record import Verdict
from negbench.analysis.words import join_names
from negbench.grid.axis import AXES, GroupKey, group_key
from negbench.metrics.names import SHORT
from negbench.store.copies import POSITION, SummaryRun
from negbench.store.runfolder import final_values

DRAWN = 10  # rows that MLflow draws at first
_CHARTS = {  # a value of a run or of a verdict -> its name in MLflow
    "mined/false_negative_rate_pool": "mined/FN pool",
    "mined/false_negative_rate_draws": "mined/FN draws",
    "mined/false_negative_rate_shared": "mined/FN shared",
    "mined/pool_size": "mined/pool",
    "mined/pool_size_median": "mined/median pool",
    "mistakes/any_wrong_at_10": "wrong/any",
    "mistakes/wrong_first": "wrong/first",
    "mistakes/neg_recall_at_10": "wrong/negrecall",
    "mined/draw_rank_median": "mined/rank drawn",
    "mined/band_start": "mined/from",
    "mined/band_mean": "mined/band",
    "mined/band_end": "mined/to",
    "mined/fallback_below": "mined/below",
    "mined/fallback_any": "mined/any",
    "regime_end/target_rank_median": "card/rank",
    "regime_end/target_first": "card/first",
    "regime_end/band_start_top": "card/top 5",
    "regime_end/band_start_median": "card/band",
    "regime_end/fit_gap": "card/gap",
    "regime_end/false_negatives": "card/FN",
    "regime_end/false_negatives_above": "card/above",
    "regime_end/false_negatives_below": "card/below",
    "regime_end/drop_prominence": "card/drop",
    "regime_end/drop_prominence_second": "card/2nd drop",
    "regime_end/recall_train": "card/train",
    "regime_end/recall_val": "card/val",
    "used/peak_memory_process_mib": "used/MiB",
    "used/peak_memory_gpu_mib": "used/GPU MiB",
    "verdict/difference": "vs/diff",
    "verdict/diff_low": "vs/diff low",
    "verdict/diff_high": "vs/diff high",
    "verdict/p_adjusted": "vs/p",
    "verdict/behind": "vs/top",
    "verdict/behind_low": "vs/top low",
    "verdict/behind_high": "vs/top high",
    "verdict/minimum_detectable": "vs/detectable",
    "verdict/mean": "vs/mean",
    "verdict/low": "vs/mean low",
    "verdict/high": "vs/mean high",
    "verdict/seeds": "vs/seeds",
}


def summary_runs(findings: Findings) -> tuple[list[SummaryRun], str]:
    """Return a comparison's summary runs, and a line on those that MLflow does not draw, "" if it draws all.

    Their names join the labels on the axes in which the comparison's groups differ.
    """
    axes = ["strategy"]
    for axis in AXES:
        if axis != "strategy" and len({shared_value(group, axis) for group in findings.groups}) > 1:
            axes.append(axis)
    rows = dict[GroupKey, Verdict]()
    for row in findings.verdicts:
        if row.main:
            rows.setdefault(group_key(vars(row)), row)
    groups = sort_for_drawing(findings.groups, [rows.get(key_of(group)) for group in findings.groups])
    runs = []
    for position, group in enumerate(groups):
        name = " ".join(shared_value(group, axis) for axis in axes if shared_value(group, axis))
        runs.append(_summary(name, group, rows.get(key_of(group)), position))
    names = [run.name for run in runs[DRAWN:]]
    if not names:
        return runs, ""
    return runs, (
        f"MLflow draws {DRAWN} of these {len(runs)} rows: the best, the baseline and the worst of each table, and the "
        f"next best. It does not draw, until you click the eye beside the name: {join_names(names, len(names))}."
    )


def sort_for_drawing(groups: Sequence[pd.DataFrame], rows: Sequence[Verdict | None]) -> list[pd.DataFrame]:
    """Sort groups, the best first, so that each table's best, baseline and worst are among those that MLflow draws.

    Args:
        groups: the cells of each row.
        rows: the verdict of each group; None for one without.
    """
    indices = range(len(groups))
    means = [float("-inf") if row is None else row.mean.value for row in rows]
    ranked = sorted(indices, key=lambda index: -means[index])
    tables: dict[tuple[str, ...], list[int]] = {}  # table -> the indices of its groups, the best first
    baseline_of: dict[tuple[str, ...], int] = {}
    for index in ranked:
        row = rows[index]
        if row is not None:
            tables.setdefault(row.table_key, []).append(index)
            if row.verdict == "baseline":
                baseline_of[row.table_key] = index
    best = [members[0] for members in tables.values()]
    baselines = [baseline_of[key] for key in tables if key in baseline_of]
    worst = [members[-1] for members in tables.values()]
    first = list(dict.fromkeys([*best, *baselines, *worst, *ranked]))[:DRAWN]
    order = [index for index in ranked if index in first] + [index for index in ranked if index not in first]
    return [groups[index] for index in order]


def _summary(name: str, group: pd.DataFrame, row: Verdict | None, position: int) -> SummaryRun:
    """Build a summary run: means of final values, deviations of recall, shared parameters, the verdict."""
    configs = [run.config.flat() for run in group["stored"]]
    parameters: dict[str, Any] = {}
    for key, value in configs[0].items():
        if all(config.get(key) == value for config in configs):
            parameters[key] = value
    tags = labels_of(group) | {POSITION: f"{position:04d}"}
    if row is not None:
        tags |= {"verdict": row.verdict, "baseline": row.baseline, "tested": row.metric}
        tags |= {"beaten by": ", ".join(row.beaten_by)}
    return SummaryRun(name, tags, parameters, dict(_values(group, row)))


def _values(group: pd.DataFrame, row: Verdict | None) -> Iterator[tuple[str, float]]:
    """Yield MLflow's metrics of a group, the main metric first, for the page that compares runs."""
    result = first_run(group).result
    by_name: dict[str, list[float]] = {result["main_metric"]: []}
    for run in group["stored"]:
        for key, value in final_values(run.result).items():
            by_name.setdefault(key, []).append(value)
    for key, values in by_name.items():
        if values:
            yield chart_name(key, score=key in result["metrics"]), float(np.mean(values))
    for key, values in by_name.items():
        chart = chart_name(key, score=True)
        has_title = key == result["main_metric"] or chart.startswith("R")  # more would be told apart by no title
        if len(values) > 1 and key in result["metrics"] and has_title:
            yield f"sd/{chart.replace('/', ' ')}", float(np.std(values, ddof=1))
    yield chart_name("verdict/seeds"), float(len(group))
    if row is not None:
        for key, value in values_to_log(row_line(row)).items():
            yield chart_name(f"verdict/{key}"), value


def chart_name(name: str, *, score: bool = False) -> str:
    """Return the name in MLflow of a value of a run or of a verdict: its first ten letters tell it from the others.

    Args:
        name: as `final_values` or a verdict's line has it.
        score: whether it is one of the data set's metrics.

    Example:
        >>> chart_name("average/recall_at_10", score=True), chart_name("map_at_5", score=True)
        ('R/10 average', 'map/5')
    """
    if not score:
        return _CHARTS.get(name) or _by_rule(name)
    *groups, metric = name.split("/")
    if metric == "recall":
        return "/".join(["R", " ".join(groups) or "all"])
    for long, printed in SHORT.items():
        if metric.startswith(long):
            kind = printed.rstrip("@")
            if not kind.startswith("R"):
                kind = kind.lower()
            return " ".join([f"{kind}/{metric.removeprefix(long)}", *groups])
    return " ".join([metric, *groups])


def _by_rule(name: str) -> str:
    """Return the name of a value that is one of several of its kind; any other keeps its own."""
    if name.startswith("used/") and name.endswith("_seconds"):
        return f"{name.removesuffix('_seconds')} s"
    if name.startswith("mistakes/") and name.endswith("wrong_at_10"):
        kind = name.removeprefix("mistakes/").removesuffix("wrong_at_10").rstrip("/")
        return f"wrong/{kind or 'all'}"
    for begins, section in (("mined/draws_", "drawn/"), ("mined/random_", "random/"), ("regime_end/", "card/")):
        if name.startswith(begins):
            return section + name.removeprefix(begins)
    return name
