"""Plateaus of learning curves: where a group's curve ended, how fast it got there, and whether it was still rising."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from negbench.analysis.verdicts import VerdictRow
from negbench.analysis.words import in_points, label_of, listed, number, percent, span
from negbench.grid.comparison import AXES, KEY, CellGroup, group_key
from negbench.grid.picked_rate import PickedRate
from negbench.metrics.fixed import DEV_QUERIES

SHARE = 0.95  # of a plateau: the steps to reach it are reported
_NAMED = 4


@dataclass(frozen=True)
class Plateau:
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
    def of(cls, group: CellGroup, metric: str) -> Self:
        """Average a group's stored curves; without points if none is stored."""
        epochs, steps, values = group.curve(metric)
        return cls(tuple(epochs), tuple(steps), tuple(values.mean(0).tolist() if epochs else ()))

    @property
    def level(self) -> float:
        """The mean curve's last value; NaN without a point."""
        return self.mean[-1] if self.mean else math.nan

    @property
    def rise(self) -> float:
        """Last value minus the first of the last third of the epochs; NaN if that third has fewer than two."""
        third = [value for epoch, value in zip(self.epochs, self.mean, strict=True) if 3 * epoch >= 2 * self.epochs[-1]]
        return third[-1] - third[0] if len(third) > 1 else math.nan

    def steps_to(self, level: float) -> float:
        """Return the steps after which the mean curve first reaches this value; NaN if it never does."""
        reached = (step for step, value in zip(self.steps, self.mean, strict=True) if value >= level)
        return float(next(reached, math.nan))


def names_of(labels: Sequence[Mapping[str, str]]) -> list[str]:
    """Name each group by its strategy and the labels that distinguish it: 'qure', 'qure info-nce', '[twins=2] qure'."""
    dials = any("point" in each for each in labels)  # a point is a loss, a backbone or a data set of its own
    varied = [axis for axis in AXES if len({each.get(axis) for each in labels}) > 1]
    before = [axis for axis in varied if axis not in KEY]
    behind = [axis for axis in varied if axis in KEY[1:] and not dials]
    return [
        " ".join([*(f"[{each.get(axis, '')}]" for axis in before), each["strategy"], *(each[a] for a in behind)])
        for each in labels
    ]


def rates_answer(document: Mapping[str, Any]) -> list[str]:
    """Write one line on the learning rate chosen for each group; none if no rate was chosen.

    Args:
        document: comparison.json.
    """
    chosen = [PickedRate(**each) for each in document.get("rates") or ()]
    if not chosen:
        return []
    names = names_of([each.labels for each in chosen])
    of_rate, ends, failed = dict[float, list[str]](), list[str](), list[str]()
    for name, each in sorted(zip(names, chosen, strict=True), key=lambda pair: -pair[1].lr):
        if all(score is None for _, score in each.tried):
            failed.append(name)
            continue
        of_rate.setdefault(each.lr, []).append(name)
        ends += [name] * (each.beyond is not None)
    rates = "; ".join(f"{rate:g} for {listed(members, _NAMED)}" for rate, members in of_rate.items())
    parts = [f"Learning rates, chosen on {_dev_part(chosen)} with seed {chosen[0].seed}: {rates}."] * bool(rates)
    if errors := [each.error for each in chosen if each.error is not None]:
        near = f"Of rates within one standard error of the best ({span(errors)} points), "
        parts.append(f"{near}the nearest to the configured one is taken.")
    end = f"The best rate of {listed(ends, _NAMED)} is the highest or the lowest tried; a better one may lie beyond."
    lost = f"All trials of {listed(failed, _NAMED)} failed, so the configured rate was used."
    parts += [end] * bool(ends) + [lost] * bool(failed)
    return [" ".join(parts)]


def _dev_part(chosen: Sequence[PickedRate]) -> str:
    """Say how many queries the rates were chosen on, and whether these are fewer than they should be."""
    if not (sizes := [each.queries for each in chosen if each.queries]):
        return "queries that are not reported"
    if chosen[0].generated:
        return f"{span(sizes, number)} queries generated for this"
    few = f" (fewer than {DEV_QUERIES:,})" * (min(sizes) < DEV_QUERIES)
    return f"{span(sizes, number)} queries carved from train{few}"


def with_plateaus(groups: Sequence[CellGroup], lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add plateaus to the groups' lines; the best plateau is per point, data set and backbone.

    Args:
        groups: of a comparison.
        lines: from `negbench.analysis.leader.line_of`, one per group.
    """
    curves, best = list[Plateau](), dict[tuple[str, ...], float]()
    places = [tuple(str(line[axis]) for axis in ("point", "dataset", "backbone")) for line in lines]
    for group, line, place in zip(groups, lines, places, strict=True):
        curves.append(Plateau.of(group, line.get("metric") or group.results[0]["main_metric"]))
        best[place] = max(best.get(place, -math.inf), curves[-1].level)
    extended = list[dict[str, Any]]()
    for line, curve, place in zip(lines, curves, places, strict=True):
        own, highest = curve.steps_to(SHARE * curve.level), curve.steps_to(SHARE * best[place])
        ends = {"plateau": curve.level, "rise": curve.rise, "steps_own": own, "steps_best": highest}
        extended.append({**line, **ends})
    return extended


def trained_out(groups: Sequence[CellGroup], rows: Sequence[VerdictRow]) -> list[str]:
    """Say whether a curve still rises by more than the margin at the longest budget; nothing where no rise is known.

    Args:
        groups: of a comparison.
        rows: their verdicts on the main metric.
    """
    tested = {group_key(vars(row)): row for row in rows}
    longest = max((int(group.labels.get("epochs", 0)) for group in groups), default=0)
    known = list[tuple[float, str, VerdictRow]]()
    for name, group in zip(names_of([group.labels for group in groups]), groups, strict=True):
        row = tested.get(group_key(group.labels))
        rise = Plateau.of(group, row.metric).rise if row is not None else math.nan
        if row is not None and not math.isnan(rise) and int(group.labels.get("epochs", 0)) == longest:
            known.append((rise, name, row))
    if not known:
        return []
    rising = sorted((each for each in known if each[0] > each[2].margin), key=lambda each: -each[0])
    row = (rising or known)[0][2]
    points = in_points(row.margin)
    third = f"the last third of the {longest or ''} epochs".replace("  ", " ")
    if not rising:
        return [f"Training is finished: no curve of {label_of(row.metric)} rises by more than {points} in {third}."]
    named = ", ".join(f"{name} by {percent(rise)}" for rise, name, _ in rising[:_NAMED])
    named += f" and {len(rising) - _NAMED} more" * (len(rising) > _NAMED)
    return [
        f"Training is unfinished: {label_of(row.metric)} still rises by more than {points} in {third} ({named}). "
        "More epochs may change the order."
    ]
