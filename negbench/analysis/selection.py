"""What another rule of choosing the epoch would have reported, from the curves that runs log.

last    the last epoch
dev     of each run the epoch that is best on a part carved from train, where one was carved
val     of each run the epoch that is best on the reported split itself, as some papers choose it
oracle  the best epoch of the best seed there: the most that one run could be made to show
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy

from negbench.analysis.measures import DIGITS
from negbench.analysis.words import percent
from negbench.runfolder import RunFolder

RULES = ("last", "dev", "val", "oracle")


@dataclass(frozen=True)
class Selected:
    """A strategy's number in a table under a rule: mean over seeds, its rank among the strategies, the mean epoch.

    NaN where the rule cannot be applied. Epochs count from 1.
    """

    table: str
    strategy: str
    rule: str
    mean: float
    rank: float
    epoch: float


Curve = Mapping[int, tuple[float, float]]  # epoch -> main metric on the reported split, on the dev part (NaN: none)


def curve_of(run: RunFolder, metric: str) -> dict[int, tuple[float, float]]:
    """The run's points of a metric, by epoch; of the untrained model none."""
    found: dict[int, tuple[float, float]] = {}
    for point in run.metrics():
        if f"val/{metric}" in point and point["epoch"] >= 0:
            found[int(point["epoch"]) + 1] = (point[f"val/{metric}"], point.get(f"dev/{metric}", math.nan))
    return found


def chosen(curves: Sequence[Curve], rule: str) -> tuple[float, float]:
    """Mean over runs of what a rule reports, and of its epochs (the earliest of equally good ones); NaN: it cannot."""
    picks = []
    for curve in curves:
        column = 1 if rule == "dev" else 0
        if not curve or math.isnan(curve[max(curve)][column]):
            return math.nan, math.nan
        best = max(curve) if rule == "last" else max(sorted(curve), key=lambda epoch, c=curve, k=column: c[epoch][k])  # type: ignore[misc]
        picks.append((curve[best][0], float(best)))
    if not picks:
        return math.nan, math.nan
    if rule == "oracle":
        value, epoch = max(picks, key=lambda pick: pick[0])
        return round(value, DIGITS), epoch
    value, epoch = np.mean(picks, axis=0)
    return round(float(value), DIGITS), float(epoch)


def selection(curves: Mapping[str, Mapping[str, Sequence[Curve]]]) -> list[Selected]:
    """Every rule on every table: table -> strategy -> curves of its runs."""
    found = []
    for table, mine in curves.items():
        for rule in RULES:
            picks = {name: chosen(each, rule) for name, each in mine.items()}
            means = np.array([mean for mean, _ in picks.values()])
            ranks = scipy.stats.rankdata(-means) if not np.isnan(means).any() else np.full(len(means), math.nan)
            found += [
                Selected(table, name, rule, mean, float(rank), epoch)
                for (name, (mean, epoch)), rank in zip(picks.items(), ranks, strict=True)
            ]
    return found


def selection_frame(rows: Sequence[Selected]) -> pd.DataFrame:
    """One row a strategy: under each rule its mean over tables in percent, and its mean rank in brackets."""
    frame = pd.DataFrame([vars(row) for row in rows])
    shown = []
    for strategy in dict.fromkeys(row.strategy for row in rows):
        line: dict[str, object] = {"strategy": strategy}
        for rule in RULES:
            mine = frame[(frame["strategy"] == strategy) & (frame["rule"] == rule)]
            known = not mine["mean"].isna().any()
            line[rule] = f"{percent(mine['mean'].mean(), 2)} ({mine['rank'].mean():.3g})" if known else "-"
        shown.append(line)
    return pd.DataFrame(shown)


def selection_answer(rows: Sequence[Selected]) -> list[str]:
    """Per rule: how far the numbers rise over the last epoch's, and whether the order or the best changes."""
    tables = list(dict.fromkeys(row.table for row in rows))
    lines = []
    for rule in RULES[1:]:
        rises, taus, best = [], [], 0
        for table in tables:
            last, mine = (
                [row.mean for row in rows if row.table == table and row.rule == each] for each in ("last", rule)
            )
            if any(map(math.isnan, [*last, *mine])):
                continue
            rises.append(float(np.mean(mine) - np.mean(last)))
            taus.append(float(scipy.stats.kendalltau(last, mine).statistic) if len(mine) > 1 else math.nan)
            best += int(np.argmax(mine)) not in np.flatnonzero(np.array(last) == max(last))
        if not rises:
            lines.append(f"{rule}: its curve was not logged (--set eval.select=dev carves a dev part).")
            continue
        known = [tau for tau in taus if not math.isnan(tau)]
        tau = f"{np.mean(known):.2f}" if known else "-"
        lines.append(
            f"Epoch chosen by {rule} instead of the last: {100 * np.mean(rises):+.2f} points on average, Kendall's tau "
            f"of the orders {tau}, another strategy highest in {best} of {len(rises)} tables."
        )
    return lines
