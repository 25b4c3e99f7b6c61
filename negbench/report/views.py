"""How MLflow presents a comparison or a study when it is opened: the columns of its runs table.

A view is the state of MLflow's runs page as its own "Share" button keeps it, written as a tag of the experiment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from negbench.analysis.verdicts import VerdictRow
from negbench.grid.comparison import AXES, Group
from negbench.runfolder import final_values
from negbench.tracking import Shown

_AFTER = ("mined/false_negative_rate_draws", "mined/hardness", "used/train_seconds")


def shown(groups: Sequence[Group], rows: Sequence[VerdictRow], answer: str) -> Shown:
    """How MLflow presents a comparison: the means over seeds with their verdicts, or the cells where none was tested.

    Args:
        groups: of the comparison, not empty.
        rows: its verdicts; the main metric is theirs, else the data set's.
        answer: Markdown, the description of the parent run.
    """
    main_rows = [row for row in rows if row.main]
    tested = [row.metric for row in main_rows if row.dataset == groups[0].labels["dataset"]]
    final = f"final/{tested[0] if tested else groups[0].results[0]['main_metric']}"
    known = final_values(groups[0].results[0])
    metrics = [name for name in (final, *_AFTER) if name in known]
    tags = [f"tags.`{axis}`" for axis in dict.fromkeys((*varied(groups), "loss"))]
    if not main_rows:
        return Shown(answer, _view("cell", [*_metrics(metrics), *tags, "tags.`seed`"], metrics[:1]))
    means = [summary_name(name) for name in metrics]
    difference = ["difference", "diff_low", "diff_high"] * any(row.compared for row in rows)
    columns = _metrics([*means[:1], *difference, *means[1:]])
    return Shown(answer, _view("summary", [*columns, "tags.`verdict`", "tags.`baseline`", *tags], means[:1]))


def varied(groups: Sequence[Group]) -> list[str]:
    """The axes that tell the groups apart, the strategy first."""
    more = [axis for axis in AXES if len({group.labels.get(axis) for group in groups}) > 1]
    return list(dict.fromkeys(("strategy", *more)))


def summary_name(metric: str) -> str:
    """A summary's name of a metric: of the final ones without their room."""
    return metric.removeprefix("final/")


def trials_shown(objective: str, knobs: Sequence[str], answer: str) -> Shown:
    """How MLflow presents a study: its trials with their knobs, the best first.

    Args:
        objective: metric of a trial.
        knobs: parameters that are searched.
        answer: Markdown, the description of the parent run.
    """
    columns = [*_metrics([objective]), "tags.`trial`", *(f"params.`{knob}`" for knob in knobs)]
    return Shown(answer, _view("trial", columns, [objective]))


def _metrics(names: Sequence[str]) -> list[str]:
    return [f"metrics.`{name}`" for name in names]


def _view(kind: str, columns: Sequence[str], order: Sequence[str]) -> dict[str, Any]:
    """Runs of one kind, the best by a metric first."""
    return {
        "searchFilter": f"tags.`negbench.kind` = '{kind}'",
        "orderByKey": "".join(_metrics(order)),
        "orderByAsc": False,
        "selectedColumns": list(columns),
        "columnOrder": list(columns),
        "columnWidths": {name: max(95, 7 * len(name) - 20) for name in columns},  # pixels: names are read whole
        "runsHiddenMode": "SHOW_ALL",
    }
