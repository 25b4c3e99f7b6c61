"""The leader table of a comparison: quality with its uncertainty, behaviour, cost; as rich, Markdown, LaTeX and CSV.

Quality and behaviour are a function of the cells alone, so the files written from them are the same bytes however the
cells were computed. Cost depends on the machine and stands in a table of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from negbench.compare import Group
from negbench.report.curve import label_of

_BEHAVIOUR = {
    "pool_size": ("pool", 1, 0),
    "band_mean": ("band %", 100, 1),
    "false_negative_rate_pool": ("FN pool %", 100, 2),
    "false_negative_rate_draws": ("FN draws %", 100, 2),
    "overlap": ("overlap %", 100, 1),
    "hardness": ("hardness", 1, 3),
    "fallback_below": ("fallbacks", 1, 0),
}
_STAGES = ("encode", "mine", "train", "evaluate")


@dataclass(frozen=True)
class LeaderTable:
    """Rows in order of the main metric, best first; the three tables share their first columns."""

    quality: pd.DataFrame
    behaviour: pd.DataFrame
    cost: pd.DataFrame


def leader_table(groups: Sequence[Group]) -> LeaderTable:
    """Means and standard deviations over seeds of each group.

    Returns:
        `quality`: labels, seeds, for each averaged metric '12.3 ± 0.4' in percent, false-negative rates. `behaviour`:
        what the strategies did. `cost`: negatives seen, seconds by stage, peak memory. Means over seeds.
    """
    ordered = sorted(groups, key=lambda g: (g.labels["dataset"], -_main(g), sorted(g.labels.items())))
    return LeaderTable(*(pd.DataFrame([row(g) for g in ordered]) for row in (_quality, _behaviour, _cost)))


def headline_metrics(metrics: Sequence[str]) -> list[str]:
    """The averages where a benchmark has groups, else all."""
    averaged = [name for name in metrics if name.startswith("average/")]
    return averaged or list(metrics)


def _main(group: Group) -> float:
    return float(np.mean(group.values("metrics", group.results[0]["main_metric"])))


def _head(group: Group) -> dict[str, object]:
    return {name: group.labels[name] for name in ("strategy", "loss", "backbone", "dataset")} | {
        "seeds": len(group.runs)
    }


def _quality(group: Group) -> dict[str, object]:
    row = _head(group)
    for metric in headline_metrics(list(group.results[0]["metrics"])):
        row[label_of(metric).removeprefix("average ")] = spread(group.values("metrics", metric))
    return row


def _behaviour(group: Group) -> dict[str, object]:
    row = _head(group)
    for name, (title, factor, digits) in _BEHAVIOUR.items():
        values = group.values("behaviour", name)
        row[title] = f"{factor * float(np.mean(values)):,.{digits}f}" if values else "-"
    row["negatives seen"] = f"{np.mean(group.values('negatives_seen')):,.0f}"
    return row


def _cost(group: Group) -> dict[str, object]:
    row = _head(group)
    for stage in _STAGES:
        row[f"{stage} s"] = f"{np.sum(group.values('seconds', stage)) / len(group.runs):.1f}"
    row["memory MiB"] = f"{np.max(group.values('peak_memory_mib', 'process')):,.0f}"
    return row


def spread(values: Sequence[float]) -> str:
    """'12.34 ± 0.56' in percent: mean and standard deviation over seeds (n - 1); '± -' for one seed."""
    mean = 100 * float(np.mean(values))
    deviation = 100 * float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return f"{mean:.2f} ± {'-' if math.isnan(deviation) else f'{deviation:.2f}'}"


def markdown(frame: pd.DataFrame) -> str:
    """GitHub table."""
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + "|".join("---" for _ in frame.columns) + "|"]
    lines += ["| " + " | ".join(str(value) for value in row) + " |" for row in frame.itertuples(index=False)]
    return "\n".join(lines) + "\n"


def latex(frame: pd.DataFrame) -> str:
    """Tabular of booktabs."""
    escape = str.maketrans({"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "±": r"$\pm$"})
    rows = [" & ".join(str(value).translate(escape) for value in row) + r" \\" for row in frame.itertuples(index=False)]
    head = " & ".join(str(column).translate(escape) for column in frame.columns) + r" \\"
    body = "\n".join(rows)
    parts = [f"\\begin{{tabular}}{{{'l' * len(frame.columns)}}}", r"\toprule", head, r"\midrule", body, r"\bottomrule"]
    return "\n".join([*parts, r"\end{tabular}"]) + "\n"
