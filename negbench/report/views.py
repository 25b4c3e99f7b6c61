"""What MLflow shows of a comparison or a study when it is opened: saved views of its runs table, columns and charts.

A view is the state of MLflow's runs page as its own "Share" button keeps it (as of MLflow 3.17): facets of the search,
columns, grouping, charts. `negbench.tracking` writes it beside the runs; `negbench ui` opens it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from negbench.analysis.verdicts import VerdictRow
from negbench.grid.comparison import Group
from negbench.report.charts import PALETTE
from negbench.runfolder import final_values
from negbench.tracking import Shown

CELLS, MEANS, GROUPED, TRIALS = "cells", "strategies", "grouped", "trials"
_FALSE, _HARD = "mined/false_negative_rate_draws", "mined/hardness"
_SECONDS = "used/train_seconds"


def shown(groups: Sequence[Group], rows: Sequence[VerdictRow], answer: str) -> Shown:
    """How MLflow presents a comparison, a swap matrix or a map.

    Args:
        groups: of the comparison, not empty.
        rows: its verdicts; the main metric is theirs, else the data set's. A swap matrix and a map have none.
        answer: Markdown, the description of the parent run.

    Returns:
        The view of all cells (which is opened first), that of the cells grouped by strategy, and where there are
        verdicts that of the means over seeds; each cell's colour is that of its strategy in every figure.
    """
    main = next((row.metric for row in rows if row.main), str(groups[0].results[0]["main_metric"]))
    known = final_values(groups[0].results[0])
    scores = (main, "average/recall", "average/recall_at_10")
    metrics = list(dict.fromkeys((*(f"final/{name}" for name in scores), _FALSE, _HARD, _SECONDS)))
    metrics = [name for name in metrics if name in known]
    varied = [k for k in groups[0].labels if k not in ("strategy", "loss") and len({g.labels[k] for g in groups}) > 1]
    tags, charts = ["strategy", "loss", *varied], _charts(main, metrics)
    tested = ["verdict", "baseline"] if any(row.main for row in rows) else []
    about = ["difference", "low", "high"] if any(row.main and row.compared for row in rows) else []
    strategies = sorted({group.labels["strategy"] for group in groups})
    cells = _view("cell", metrics, [*tags, "seed"], metrics[0]) | charts
    views = {CELLS: cells, GROUPED: cells | {"groupBy": _BY_STRATEGY}}
    if rows:
        means = [f"mean/{metrics[0]}", *about, *(f"mean/{name}" for name in metrics[1:])]
        views[MEANS] = _view("summary", means, [*tags, *tested], f"mean/{metrics[0]}")
    colours = {
        run.path: PALETTE[strategies.index(group.labels["strategy"]) % len(PALETTE)]
        for group in groups
        for run in group.runs
    }
    return Shown(answer, views, colours)


def trials_shown(objective: str, knobs: Sequence[str], answer: str) -> Shown:
    """How MLflow presents a study: its trials with their knobs, the best first, and as parallel coordinates.

    Args:
        objective: metric of a trial.
        knobs: parameters that are searched.
        answer: Markdown, the description of the parent run.
    """
    columns = ["tags.`trial`", f"metrics.`{objective}`", *(f"params.`{knob}`" for knob in knobs)]
    view = _view("trial", [objective], ["trial"], objective) | {"selectedColumns": columns, "columnOrder": columns}
    drawn = {"selectedParams": list(knobs), "selectedMetrics": [objective], "showAllRuns": True}
    return Shown(answer, {TRIALS: view | _section([_PARALLEL | drawn])})


_BY_STRATEGY = {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": "strategy"}]}


def _view(kind: str, metrics: Sequence[str], tags: Sequence[str], order: str) -> dict[str, Any]:
    """Runs of one kind in unfolded rows (MLflow nests rows only in the order of time), the best first."""
    columns = [f"tags.`{tag}`" for tag in tags] + [f"metrics.`{name}`" for name in metrics]
    return {
        "searchFilter": f"tags.`negbench.kind` = '{kind}'",
        "orderByKey": f"metrics.`{order}`",
        "orderByAsc": False,
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {f"tags.`{tag}`": 55 if tag == "seed" else 105 for tag in tags}
        | {f"metrics.`{name}`": max(95, 7 * len(name) + 40) for name in metrics},  # pixels: names are read whole
        "runsHiddenMode": "SHOW_ALL",
    }


def _charts(main: str, metrics: Sequence[str]) -> dict[str, Any]:
    """Training curves, false negatives against recall, parallel coordinates; MLflow adds one for each other metric."""

    def line(metric: str) -> Mapping[str, Any]:
        axes = {"xAxisKey": "step", "xAxisScaleType": "linear", "scaleType": "linear", "range": {}, "lineSmoothness": 0}
        axes |= {"selectedXAxisMetricKey": "", "yAxisKey": "metric", "yAxisExpressions": [], "ignoreOutliers": False}
        axes |= {"useGlobalXaxisKey": True, "useGlobalLineSmoothing": True}
        named = {"uuid": metric, "type": "LINE", "metricKey": metric, "selectedMetricKeys": [metric]}
        return named | axes | _SHARED

    charts = [line(f"val/{main}"), line("train/loss")]
    if _FALSE in metrics:
        axes = {"xaxis": {"key": _FALSE, "type": "METRIC"}, "yaxis": {"key": f"final/{main}", "type": "METRIC"}}
        charts.append({"uuid": "scatter", "type": "SCATTER", **axes, **_SHARED})
    drawn = {"selectedParams": ["strategy.name", "loss.name"], "showAllRuns": True}
    drawn |= {"selectedMetrics": [*(m for m in (_FALSE, _HARD) if m in metrics), f"final/{main}"]}
    return _section([*charts, _PARALLEL | drawn])


_SHARED = {"metricSectionId": "negbench", "deleted": False, "isGenerated": False, "runsCountToCompare": 100}
_PARALLEL: dict[str, Any] = {"uuid": "parallel", "type": "PARALLEL", **_SHARED}


def _section(charts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Charts in a section of their own, before those that MLflow makes."""
    section = {"uuid": "negbench", "name": "negbench", "display": True, "isReordered": True}
    return {"compareRunCharts": list(charts), "compareRunSections": [section], "isAccordionReordered": True}
