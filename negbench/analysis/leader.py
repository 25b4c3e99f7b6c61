"""The tables of a comparison: quality with its verdict, what the strategies did, what it cost.

Quality and behaviour are a function of the cells and the rules of comparison alone, so the files written from them are
the same bytes however the cells were computed. Cost depends on the machine and stands in a table of its own. Strategies
that meet equally many negatives per query and step stand together, and the best of them first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from negbench.analysis.verdicts import VerdictRow, headline_metrics, negatives_of
from negbench.analysis.words import bracket, label_of, number, p_text, percent, signed, spread
from negbench.grid.comparison import KEY, Group

# column title, factor, digits; the keys are those of result.json's "behaviour"
_BEHAVIOUR = {
    "false_negative_rate_pool": ("FN pool %", 100, 2),
    "false_negative_rate_draws": ("FN draws %", 100, 2),
    "pool_size": ("pool", 1, 0),
    "hardness": ("hardness", 1, 3),
    "band_start": ("band from %", 100, 1),
    "band_mean": ("band %", 100, 1),
    "band_end": ("band to %", 100, 1),
    "overlap": ("overlap %", 100, 1),
    "fallback_below": ("fallbacks below", 1, 1),
    "fallback_any": ("fallbacks any", 1, 1),
}
_STAGES = ("train", "mine", "encode", "evaluate", "prepare")
NEGATIVES = "negatives"  # title of the column: per query and step
FOLDED = ("loss", "backbone", "dataset", "seeds")  # columns that stand above a table where all rows agree


@dataclass(frozen=True)
class LeaderTable:
    """Rows by negatives per query and step, then by the metric, best first; the three tables share their order."""

    quality: pd.DataFrame
    behaviour: pd.DataFrame
    cost: pd.DataFrame


def leader_table(groups: Sequence[Group], statistics: Sequence[VerdictRow] = ()) -> LeaderTable:
    """Means and standard deviations over seeds of each group.

    Args:
        groups: of a comparison; those of one data set stand together.
        statistics: rows of `negbench.analysis.verdicts`, for the columns that need a test.

    Returns:
        `quality`: labels; with `statistics` the verdict and the difference to the baseline with its interval; each
        headline metric as '12.3 ± 0.4' in percent; negatives per query and step; false negatives among the draws; with
        `statistics` p-value, who beats it, and the detectable difference. `behaviour`: what the strategies did. `cost`:
        negatives, steps, images encoded, seconds by stage, peak memory. Means over seeds.
    """
    lines = ordered(groups, statistics)
    tested = {_key(row): row for row in statistics if row.main}
    rows = [tested.get(tuple(group.labels[k] for k in KEY)) for group in lines]
    quality = [_quality(group, row, bool(tested)) for group, row in zip(lines, rows, strict=True)]
    frames = (quality, [_behaviour(group) for group in lines], [_cost(group) for group in lines])
    return LeaderTable(*map(pd.DataFrame, frames))


def leader_tables(groups: Sequence[Group], statistics: Sequence[VerdictRow] = ()) -> dict[str, LeaderTable]:
    """Data set -> its leader table: results on different data sets never share one."""
    names = sorted({g.labels["dataset"] for g in groups})
    return {name: leader_table([g for g in groups if g.labels["dataset"] == name], statistics) for name in names}


def verdict_frame(rows: Sequence[VerdictRow]) -> pd.DataFrame:
    """All that the statistics say of one metric: percent and points, gaps as '-', in the order of the leader table."""
    shown = []
    for row in sorted(rows, key=lambda r: (r.dataset, r.backbone, _rounded(r.negatives), r.loss, -r.mean, r.strategy)):
        line: dict[str, object] = {key: getattr(row, key) for key in KEY} | {"verdict": row.verdict}
        line |= {"difference": signed(row.difference, row.diff_low, row.diff_high), "p": p_text(row.p_adjusted)}
        line |= {"mean": percent(row.mean, 2), "interval": bracket(row.low, row.high)}
        line |= {NEGATIVES: negatives_text(row.negatives), "beaten by": ", ".join(row.beaten_by) or "-"}
        line |= {"these models": bracket(row.models_low, row.models_high)}
        line |= {"difference of these models": signed(row.difference, row.diff_models_low, row.diff_models_high)}
        line |= {"p alone": p_text(row.p_value), "effect size": number(row.effect_size, 3)}
        line |= {"detectable": percent(row.minimum_detectable, 2), "baseline": row.baseline or "-"}
        shown.append(line | {"seeds": row.seeds, "queries": row.queries})
    return pd.DataFrame(shown)


def measured(groups: Sequence[Group]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Behaviour and cost as numbers, not rounded, under the names of result.json: what behaviour.csv and cost.csv hold.

    Means over seeds; peak memory is the highest. Empty where no run has a value.
    """
    behaviour, cost = [], []
    for group in ordered(groups):
        results = group.results
        seen: dict[str, float] = {"negatives_per_query_and_step": negatives_of(group)}
        seen |= {name: _mean(group.values(name)) for name in ("negatives_seen", "steps", "images_encoded")}
        names = dict.fromkeys(name for result in results for name in result["behaviour"])
        behaviour.append(_head(group) | {name: _mean(group.values("behaviour", name)) for name in names} | seen)
        stages = dict.fromkeys(name for result in results for name in result["seconds"])
        seconds = {f"{name}_seconds": sum(group.values("seconds", name)) / len(results) for name in stages}
        memory = dict.fromkeys(name for result in results for name in result["peak_memory_mib"])
        peaks = {f"peak_memory_{name}_mib": max(group.values("peak_memory_mib", name)) for name in memory}
        cost.append(_head(group) | seen | seconds | {"total_seconds": sum(seconds.values())} | peaks)
    return pd.DataFrame(behaviour), pd.DataFrame(cost)


def negatives_text(value: float) -> str:
    """'1', '62.9', '189'; '-' where it is not known."""
    return "-" if math.isnan(value) else f"{value:.3g}"


def equally_many(rows: Sequence[VerdictRow]) -> dict[str, list[VerdictRow]]:
    """Rows by their negatives per query and step, as tables print them; the most usual number first."""
    found: dict[float, list[VerdictRow]] = {}
    for row in rows:
        found.setdefault(_rounded(row.negatives), []).append(row)
    usual = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return {negatives_text(mine[0].negatives): mine for _, mine in usual}


def _rounded(negatives: float) -> float:
    """Equal where a last, smaller batch alone makes the difference."""
    return math.inf if math.isnan(negatives) else float(round(negatives)) if negatives >= 1 else round(negatives, 1)


def _key(row: VerdictRow) -> tuple[str, ...]:
    return tuple(getattr(row, k) for k in KEY)


def ordered(groups: Sequence[Group], statistics: Sequence[VerdictRow] = ()) -> list[Group]:
    """By data set, negatives per query and step, and the metric, best first: the order of tables and figures."""
    means = {_key(row): row.mean for row in statistics if row.main}

    def place(group: Group) -> tuple[object, ...]:
        own = _mean(group.values("metrics", group.results[0]["main_metric"]))
        mean = means.get(tuple(group.labels[k] for k in KEY), own)
        return group.labels["dataset"], _rounded(negatives_of(group)), -mean, sorted(group.labels.items())

    return sorted(groups, key=place)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _head(group: Group) -> dict[str, object]:
    return {name: group.labels[name] for name in KEY} | {"seeds": len(group.runs)}


def _quality(group: Group, row: VerdictRow | None, tested: bool) -> dict[str, object]:
    line, metrics = _head(group), headline_metrics(list(group.results[0]["metrics"]))
    if tested:
        line["verdict"] = row.verdict if row else "-"
        line["difference"] = signed(row.difference, row.diff_low, row.diff_high) if row else "-"
    if row is not None:
        metrics = list(dict.fromkeys([row.metric, *metrics]))
    for metric in metrics:
        line[label_of(metric).removeprefix("average ")] = spread(group.values("metrics", metric))
    line |= _seen(group)
    line["FN draws %"] = percent(_mean(group.values("behaviour", "false_negative_rate_draws")), 2)
    if tested:
        line["p"] = p_text(row.p_adjusted) if row else "-"
        line["beaten by"] = (", ".join(row.beaten_by) or "-") if row else "-"
        line["detectable"] = percent(row.minimum_detectable, 2) if row else "-"
        line["interval"] = bracket(row.low, row.high) if row else "-"
    return line


def _seen(group: Group) -> dict[str, object]:
    return {NEGATIVES: negatives_text(negatives_of(group))}


def _behaviour(group: Group) -> dict[str, object]:
    line = _head(group) | _seen(group)
    for name, (title, factor, digits) in _BEHAVIOUR.items():
        line[title] = number(factor * _mean(group.values("behaviour", name)), digits)
    return line


def _cost(group: Group) -> dict[str, object]:
    line = _head(group) | _seen(group)
    line["steps"] = number(_mean(group.values("steps")))
    line["images encoded"] = number(_mean(group.values("images_encoded")))
    for stage in _STAGES:
        line[f"{stage} s"] = f"{sum(group.values('seconds', stage)) / len(group.runs):.1f}"
    line["negatives seen"] = number(_mean(group.values("negatives_seen")))
    line["memory MiB"] = number(max(group.values("peak_memory_mib", "process"), default=math.nan))
    if gpu := group.values("peak_memory_mib", "gpu"):
        line["GPU MiB"] = number(max(gpu))
    return line
