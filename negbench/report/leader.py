"""The leader table of a comparison: quality with its uncertainty, behaviour, cost; as rich, Markdown, LaTeX and CSV.

Quality and behaviour are a function of the cells and the rules of comparison alone, so the files written from them are
the same bytes however the cells were computed. Cost depends on the machine and stands in a table of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from negbench.grid.comparison import KEY, Group
from negbench.report.curve import label_of

if TYPE_CHECKING:
    from negbench.report.verdicts import Row

# column title, factor, digits; the keys are those of result.json's "behaviour"
_BEHAVIOUR = {
    "pool_size": ("pool", 1, 0),
    "band_start": ("band from %", 100, 1),
    "band_mean": ("band %", 100, 1),
    "band_end": ("band to %", 100, 1),
    "false_negative_rate_pool": ("FN pool %", 100, 2),
    "false_negative_rate_draws": ("FN draws %", 100, 2),
    "overlap": ("overlap %", 100, 1),
    "hardness": ("hardness", 1, 3),
    "fallback_below": ("fallbacks below", 1, 1),
    "fallback_any": ("fallbacks any", 1, 1),
}
_STAGES = ("prepare", "encode", "mine", "train", "evaluate")
STATISTICS = ("interval", "difference", "p (Holm)", "verdict", "letters")


@dataclass(frozen=True)
class LeaderTable:
    """Rows in order of the main metric, best first; the three tables share their first columns."""

    quality: pd.DataFrame
    behaviour: pd.DataFrame
    cost: pd.DataFrame


def leader_table(groups: Sequence[Group], statistics: Sequence[Row] = ()) -> LeaderTable:
    """Means and standard deviations over seeds of each group.

    Args:
        groups: of a comparison; those of one data set stand together.
        statistics: rows of `negbench.report.verdicts`, for the columns of the main metric's interval and verdict.

    Returns:
        `quality`: labels, seeds, for each headline metric '12.3 ± 0.4' in percent; with `statistics` also the interval
        of the main metric, its difference to the baseline, Holm's p-value, verdict and letters. `behaviour`: what the
        strategies did. `cost`: negatives seen, seconds by stage, peak memory. Means over seeds.
    """
    ordered = _ordered(groups)
    tested = {tuple(getattr(r, k) for k in KEY): r for r in statistics if r.main}
    quality = [_quality(g) | (_tested(tested.get(tuple(g.labels[k] for k in KEY))) if tested else {}) for g in ordered]
    frames = (quality, [_behaviour(g) for g in ordered], [_cost(g) for g in ordered])
    return LeaderTable(*(pd.DataFrame(rows) for rows in frames))


def leader_tables(groups: Sequence[Group], statistics: Sequence[Row] = ()) -> dict[str, LeaderTable]:
    """Data set -> its leader table: results on different data sets never share one."""
    names = sorted({g.labels["dataset"] for g in groups})
    return {name: leader_table([g for g in groups if g.labels["dataset"] == name], statistics) for name in names}


def measured(groups: Sequence[Group]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Behaviour and cost as numbers, not rounded, under the names of result.json: what behaviour.csv and cost.csv hold.

    Means over seeds; peak memory is the highest. Empty where no run has a value.
    """
    behaviour, cost = [], []
    for group in _ordered(groups):
        results = group.results
        names = dict.fromkeys(name for result in results for name in result["behaviour"])
        seen = {"negatives_seen": _mean(group.values("negatives_seen"))}
        behaviour.append(_head(group) | {name: _mean(group.values("behaviour", name)) for name in names} | seen)
        stages = dict.fromkeys(name for result in results for name in result["seconds"])
        seconds = {f"{name}_seconds": sum(group.values("seconds", name)) / len(results) for name in stages}
        memory = dict.fromkeys(name for result in results for name in result["peak_memory_mib"])
        peaks = {f"peak_memory_{name}_mib": max(group.values("peak_memory_mib", name)) for name in memory}
        cost.append(_head(group) | seen | seconds | {"total_seconds": sum(seconds.values())} | peaks)
    return pd.DataFrame(behaviour), pd.DataFrame(cost)


def headline_metrics(metrics: Sequence[str]) -> list[str]:
    """The averages where a benchmark has groups, else the metrics of all queries."""
    averaged = [name for name in metrics if name.startswith("average/")]
    return averaged or [name for name in metrics if "/" not in name] or list(metrics)


def _ordered(groups: Sequence[Group]) -> list[Group]:
    return sorted(groups, key=lambda g: (g.labels["dataset"], -_main(g), sorted(g.labels.items())))


def _main(group: Group) -> float:
    return float(np.mean(group.values("metrics", group.results[0]["main_metric"])))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _head(group: Group) -> dict[str, object]:
    return {name: group.labels[name] for name in KEY} | {"seeds": len(group.runs)}


def _quality(group: Group) -> dict[str, object]:
    row = _head(group)
    for metric in headline_metrics(list(group.results[0]["metrics"])):
        row[label_of(metric).removeprefix("average ")] = spread(group.values("metrics", metric))
    return row


def _tested(row: Row | None) -> dict[str, object]:
    """Columns of STATISTICS, in points."""
    if row is None:
        return dict.fromkeys(STATISTICS, "-")
    compared = row.compared
    cells = (
        bracket(row.low, row.high),
        f"{100 * row.difference:+.2f} {bracket(row.diff_low, row.diff_high)}" if compared else "-",
        p_text(row.p_adjusted) if compared else "-",
        row.verdict,
        row.letters,
    )
    return dict(zip(STATISTICS, cells, strict=True))


def _behaviour(group: Group) -> dict[str, object]:
    row = _head(group)
    for name, (title, factor, digits) in _BEHAVIOUR.items():
        values = group.values("behaviour", name)
        row[title] = f"{factor * float(np.mean(values)):,.{digits}f}" if values else "-"
    row["negatives seen"] = f"{np.mean(group.values('negatives_seen')):,.0f}"
    return row


def _cost(group: Group) -> dict[str, object]:
    row = _head(group)
    row["negatives seen"] = f"{np.mean(group.values('negatives_seen')):,.0f}"
    for stage in _STAGES:
        row[f"{stage} s"] = f"{np.sum(group.values('seconds', stage)) / len(group.runs):.1f}"
    row["memory MiB"] = f"{np.max(group.values('peak_memory_mib', 'process')):,.0f}"
    if gpu := group.values("peak_memory_mib", "gpu"):
        row["GPU MiB"] = f"{np.max(gpu):,.0f}"
    return row


def spread(values: Sequence[float]) -> str:
    """'12.34 ± 0.56' in percent: mean and standard deviation over seeds (n - 1); '± -' for one seed."""
    mean = 100 * float(np.mean(values))
    deviation = 100 * float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return f"{mean:.2f} ± {'-' if math.isnan(deviation) else f'{deviation:.2f}'}"


def bracket(low: float, high: float) -> str:
    """'[12.3, 13.4]' in percent."""
    return f"[{100 * low:.2f}, {100 * high:.2f}]"


def p_text(value: float) -> str:
    """'0.012', or '<0.001'."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def markdown(frame: pd.DataFrame) -> str:
    """GitHub table; a `|` inside a cell is escaped."""
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + "|".join("---" for _ in frame.columns) + "|"]
    rows = ([str(value).replace("|", r"\|") for value in row] for row in frame.itertuples(index=False))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def latex(frame: pd.DataFrame) -> str:
    """Tabular of booktabs."""
    escape = str.maketrans(
        {"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "±": r"$\pm$", "<": "$<$", ">": "$>$", "$": r"\$"}
        | {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    )
    rows = [" & ".join(str(value).translate(escape) for value in row) + r" \\" for row in frame.itertuples(index=False)]
    head = " & ".join(str(column).translate(escape) for column in frame.columns) + r" \\"
    body = "\n".join(rows)
    parts = [f"\\begin{{tabular}}{{{'l' * len(frame.columns)}}}", r"\toprule", head, r"\midrule", body, r"\bottomrule"]
    return "\n".join([*parts, r"\end{tabular}"]) + "\n"
