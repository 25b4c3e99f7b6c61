"""Learning curves: where a group's curve ended, how fast it got there, and whether it was still rising."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import pandas as pd

from negbench.analysis.frame import curve_of, key_of, labels_of, shared_value
from negbench.analysis.verdict_record import Verdict
from negbench.analysis.words import first_names, in_points, label_of, percent
from negbench.grid.axis import group_key, names_of

SHARE = 0.95  # of a plateau: the steps to reach it are reported
_NAMED = 4


@dataclass(frozen=True)
class LearningCurve:
    """Learning curve of a metric on the scored split, averaged over seeds.

    Attributes:
        epochs: trained at each point; 0 is the untrained model.
        steps: trained at each point.
        mean: the metric at each point.
    """

    epochs: tuple[int, ...]
    steps: tuple[float, ...]
    mean: tuple[float, ...]

    @classmethod
    def of(cls, group: pd.DataFrame, metric: str) -> Self:
        """Average a group's stored curves; without points if none is stored."""
        epochs, steps, values = curve_of(group, metric)
        mean = values.mean(0).tolist() if epochs else []
        return cls(tuple(epochs), tuple(steps), tuple(mean))

    @property
    def level(self) -> float:
        """The mean curve's last value; NaN without a point."""
        return self.mean[-1] if self.mean else math.nan

    @property
    def rise(self) -> float:
        """Last value minus the first of the last third of the epochs; NaN if that third has fewer than two."""
        last_third = []
        for epoch, value in zip(self.epochs, self.mean, strict=True):
            if 3 * epoch >= 2 * self.epochs[-1]:
                last_third.append(value)
        return last_third[-1] - last_third[0] if len(last_third) > 1 else math.nan

    def steps_to(self, level: float) -> float:
        """Return the steps after which the mean curve first reaches this value; NaN if it never does."""
        for step, value in zip(self.steps, self.mean, strict=True):
            if value >= level:
                return float(step)
        return math.nan


def add_plateaus(groups: Sequence[pd.DataFrame], lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add plateaus to the groups' lines; the best plateau is per point, data set and backbone.

    Args:
        groups: of a comparison.
        lines: from `negbench.analysis.leader.line_of`, one per group.
    """
    curves = []
    best_keys = []
    best: dict[tuple[str, ...], float] = {}
    for group, line in zip(groups, lines, strict=True):
        curve = LearningCurve.of(group, line.get("metric") or shared_value(group, "main_metric"))
        best_key = tuple(str(line[axis]) for axis in ("point", "dataset", "backbone"))
        best[best_key] = max(best.get(best_key, -math.inf), curve.level)
        curves.append(curve)
        best_keys.append(best_key)
    extended = []
    for line, curve, best_key in zip(lines, curves, best_keys, strict=True):
        numbers = {
            "plateau": curve.level,
            "rise": curve.rise,
            "steps_own": curve.steps_to(SHARE * curve.level),
            "steps_best": curve.steps_to(SHARE * best[best_key]),
        }
        extended.append({**line, **numbers})
    return extended


class _Rise(NamedTuple):
    """How much a group's curve still rises."""

    points: float
    name: str
    row: Verdict


def training_answer(groups: Sequence[pd.DataFrame], rows: Sequence[Verdict]) -> list[str]:
    """Say whether a curve still rises by more than the margin at the longest budget; nothing where no rise is known.

    Args:
        groups: of a comparison.
        rows: their verdicts on the main metric.
    """
    tested = {group_key(vars(row)): row for row in rows}
    longest = max((int(shared_value(group, "epochs") or 0) for group in groups), default=0)
    rises: list[_Rise] = []
    for name, group in zip(names_of([labels_of(group) for group in groups]), groups, strict=True):
        row = tested.get(key_of(group))
        if row is None or int(shared_value(group, "epochs") or 0) != longest:
            continue
        points = LearningCurve.of(group, row.metric).rise
        if not math.isnan(points):
            rises.append(_Rise(points, name, row))
    if not rises:
        return []
    rising = [rise for rise in rises if rise.points > rise.row.margin]
    rising.sort(key=lambda rise: -rise.points)
    first = (rising or rises)[0].row
    metric = label_of(first.metric)
    margin = in_points(first.margin)
    third = f"the last third of the {longest} epochs" if longest else "the last third of the epochs"
    if not rising:
        return [f"Training is finished: no curve of {metric} rises by more than {margin} in {third}."]
    names = first_names([f"{rise.name} by {percent(rise.points)}" for rise in rising], _NAMED)
    return [
        f"Training is unfinished: {metric} still rises by more than {margin} in {third} ({names}). "
        "More epochs may change the order."
    ]
