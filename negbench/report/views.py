"""What MLflow shows of a comparison when it is opened: saved views of its runs table, with columns and charts.

A view is the state of MLflow's runs page as its own "Share" button keeps it (as of MLflow 3.17): facets of the search,
columns, grouping, charts. `negbench.tracking` writes it beside the runs; `negbench ui` opens it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from negbench.grid.comparison import Group
from negbench.report.charts import PALETTE
from negbench.report.verdicts import VerdictRow
from negbench.tracking import Shown, final_values

CELLS, MEANS, GROUPED = "cells", "strategies", "grouped"
_FALSE, _HARD = "mined/false_negative_rate_draws", "mined/hardness"
_SECONDS = "used/train_seconds"


def shown(groups: Sequence[Group], rows: Sequence[VerdictRow], answer: str) -> Shown:
    """How MLflow presents a comparison.

    Args:
        groups: of the comparison, not empty.
        rows: its verdicts; the main metric is theirs, else the data set's.
        answer: Markdown, the description of the parent run.

    Returns:
        The view of all cells (which is opened first), that of the means over seeds with their verdicts, and that of the
        cells grouped by strategy; each cell's colour is that of its strategy in every figure.
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
    return Shown(
        answer,
        {
            CELLS: _view("cell", metrics, [*tags, "seed"], metrics[0]) | charts,
            MEANS: _view(
                "summary",
                [f"mean/{metrics[0]}", *about, *(f"mean/{m}" for m in metrics[1:])],
                [*tags, *tested],
                f"mean/{metrics[0]}",
            ),
            GROUPED: _view("cell", metrics, [*tags, "seed"], metrics[0]) | charts | {"groupBy": _BY_STRATEGY},
        },
        {
            run.path: PALETTE[strategies.index(group.labels["strategy"]) % len(PALETTE)]
            for group in groups
            for run in group.runs
        },
    )


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
    section = {"uuid": "negbench", "name": "negbench", "display": True, "isReordered": True}
    shared = {"metricSectionId": "negbench", "deleted": False, "isGenerated": False}

    def line(metric: str) -> Mapping[str, Any]:
        axes = {"xAxisKey": "step", "xAxisScaleType": "linear", "scaleType": "linear", "range": {}, "lineSmoothness": 0}
        axes |= {"selectedXAxisMetricKey": "", "yAxisKey": "metric", "yAxisExpressions": [], "ignoreOutliers": False}
        axes |= {"useGlobalXaxisKey": True, "useGlobalLineSmoothing": True}
        named = {"uuid": metric, "type": "LINE", "metricKey": metric, "selectedMetricKeys": [metric]}
        return named | axes | shared | {"runsCountToCompare": 100}

    charts = [line(f"val/{main}"), line("train/loss")]
    if _FALSE in metrics:
        axes = {"xaxis": {"key": _FALSE, "type": "METRIC"}, "yaxis": {"key": f"final/{main}", "type": "METRIC"}}
        charts.append({"uuid": "scatter", "type": "SCATTER", "runsCountToCompare": 100, **axes, **shared})
    drawn = {"selectedParams": ["strategy.name", "loss.name"], "showAllRuns": True, "runsCountToCompare": 100}
    drawn |= {"selectedMetrics": [*(m for m in (_FALSE, _HARD) if m in metrics), f"final/{main}"]}
    charts.append({"uuid": "parallel", "type": "PARALLEL", **drawn, **shared})
    return {"compareRunCharts": charts, "compareRunSections": [section], "isAccordionReordered": True}
