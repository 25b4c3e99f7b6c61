"""Along dials: at every point who is best, and where along a dial the order of two strategies changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import pandas as pd

from negbench.analysis.verdicts import PLACE, VerdictRow, VerdictTable
from negbench.analysis.words import label_of, listed, percent, signed
from negbench.grid.dials import Dials
from negbench.scoring.stored import Values


@dataclass(frozen=True)
class Crossing:
    """Where `after` overtakes `before` as a dial grows, at fixed values of the others (`where`).

    `at` is where the lines between the measured means cross. Decided: at the value `low` one of the two beats the
    other and at `high` it is beaten, each for all pairs of its point at once; NaN where there are no such values.
    `series`: what the points have in common.
    """

    series: str
    dial: str
    where: str
    before: str
    after: str
    at: float
    low: float
    high: float

    @property
    def decided(self) -> bool:
        """Whether the order is known to change."""
        return not math.isnan(self.low)


def series_of(place: Sequence[str]) -> str:
    """What points along dials have in common, from their values of `PLACE`: 'plain, tuned, info-nce, tiny'."""
    named = dict(zip(PLACE, place, strict=True))
    return ", ".join(value for axis, value in named.items() if axis not in ("point", "dataset") and value)


# --- crossings -----------------------------------------------------------------------------------------------------


def crossings_of(dials: Dials, tables: Sequence[VerdictTable], rows: Sequence[VerdictRow]) -> list[Crossing]:
    """All changes of order along numeric dials.

    Args:
        dials: of the comparison.
        tables: per-query values of each point.
        rows: what the statistics say of them.
    """
    found = []
    for series in dict.fromkeys(series_of(table.place) for table in tables if dials.axes):
        mine = {t.labels["point"]: shared_means(t.values[t.main]) for t in tables if series_of(t.place) == series}
        beaten = {(r.point, r.strategy): r.beaten_by for r in rows if r.main and series_of(r.place) == series}
        for index, axis in enumerate(dials.axes):
            if not axis.numeric or len(axis.values) < 2:
                continue
            for line in dials.lines_along(index):
                along = [(p[index], dials.label(p)) for p in sorted(line, key=lambda p, i=index: p[i])]  # type: ignore[misc]
                along = [(value, label) for value, label in along if mine.get(label)]
                where = dials.label(line[0], without=index)
                found += [Crossing(series, axis.name, where, *each) for each in _along(along, mine, beaten)]
    return found


def shared_means(values: Mapping[str, Values]) -> dict[str, float]:
    """Each strategy's mean over the seeds that all have; empty where there is none."""
    common = set.intersection(*(set(mine.seeds) for mine in values.values()))
    return {name: mine.of_seeds(common).mean for name, mine in values.items()} if common else {}


def _along(
    along: Sequence[tuple[float, str]],
    means: Mapping[str, Mapping[str, float]],
    beaten: Mapping[tuple[str, str], Sequence[str]],
) -> list[tuple[Any, ...]]:
    """before, after, at, low, high: of every two strategies whose order changes."""
    names = set.intersection(*(set(means[label]) for _, label in along)) if along else set()
    found = []
    for first, second in combinations(sorted(names), 2):
        gaps = [means[label][first] - means[label][second] for _, label in along]
        at = _zero([value for value, _ in along], gaps)
        if math.isnan(at):
            continue
        rises = gaps[0] < 0 or (gaps[0] == 0 and gaps[-1] > 0)
        before, after = (second, first) if rises else (first, second)
        won = [
            (value, first in beaten[label, second])
            for value, label in along
            if second in beaten[label, first] or first in beaten[label, second]
        ]
        changes = ((one[0], other[0]) for one, other in pairwise(won) if one[1] != other[1])
        found.append((before, after, at, *map(float, next(changes, (math.nan, math.nan)))))
    return found


def _zero(x: Sequence[float], gaps: Sequence[float]) -> float:
    """First place where the gaps change their sign, by straight lines between the values; nan: nowhere."""
    for (left, start), (right, end) in pairwise(zip(x, gaps, strict=True)):
        if start * end < 0:
            return float(left + (right - left) * start / (start - end))
    return math.nan


# --- tables and words ----------------------------------------------------------------------------------------------


def at_point(rows: Sequence[VerdictRow], label: str) -> list[VerdictRow]:
    """Strategies of a point, the best first."""
    return sorted((row for row in rows if row.main and row.point == label), key=lambda row: -row.mean)


def unbeaten(point: Sequence[VerdictRow]) -> list[str]:
    """The best strategy of a point and all that it does not beat, the best first."""
    return [row.strategy for row in point if point[0].strategy not in row.beaten_by]


def points_frame(dials: Dials, rows: Sequence[VerdictRow]) -> pd.DataFrame:
    """One row a point: who is best, what the next is behind, who shares first place, all means with their ranks."""
    names = sorted({row.strategy for row in rows})
    shown = []
    for series in dict.fromkeys(series_of(row.place) for row in rows):
        mine = [row for row in rows if series_of(row.place) == series]
        for place in dials.points:
            point = at_point(mine, dials.label(place))
            if not point:
                continue
            means = {row.strategy: f"{percent(row.mean)} ({row.ranks})" for row in point}
            line = {axis.name: str(value) for axis, value in zip(dials.axes, place, strict=True)}
            line |= {"best": point[0].strategy, "next behind by": "-"}
            if len(point) > 1:
                line["next behind by"] = signed(point[1].behind, point[1].behind_low, point[1].behind_high)
            line |= {"not beaten": listed(unbeaten(point)), **{name: means.get(name, "-") for name in names}}
            shown.append({"series": series, **line})
    frame = pd.DataFrame(shown)
    return frame.drop(columns="series") if len(frame) and frame["series"].nunique() == 1 else frame


def crossings_frame(crossings: Sequence[Crossing]) -> pd.DataFrame:
    """One row a change of order, the decided ones first."""
    several = len({each.series for each in crossings}) > 1
    return pd.DataFrame(
        [
            {
                **({"series": each.series} if several else {}),
                "dial": each.dial,
                "at": each.where or "-",
                "overtakes": f"{each.after} > {each.before}",
                "beyond": f"{each.at:.3g}",
                "known between": f"{each.low:g} and {each.high:g}" if each.decided else "-",
                "verdict": "decided" if each.decided else "undecided",
            }
            for each in sorted(crossings, key=lambda each: (not each.decided, each.series, each.dial, each.where))
        ]
    )


def dials_answer(dials: Dials, rows: Sequence[VerdictRow], crossings: Sequence[Crossing]) -> list[str]:
    """Who is best at how many points, and where the order changes; for each series by itself."""
    every = dict.fromkeys(series_of(row.place) for row in rows)
    lines = []
    for series in every:
        prefix = f"{series}: " if len(every) > 1 else ""
        mine = [row for row in rows if series_of(row.place) == series]
        found = [each for each in crossings if each.series == series]
        lines += [prefix + line for line in _series_answer(dials, mine, found)]
    return lines


def _series_answer(dials: Dials, rows: Sequence[VerdictRow], crossings: Sequence[Crossing]) -> list[str]:
    points = [point for place in dials.points if (point := at_point(rows, dials.label(place)))]
    alone = [point[0].strategy for point in points if len(unbeaten(point)) == 1]
    size = points[0][0]
    counts = f"{label_of(size.metric)}, {size.seeds} seeds, {size.queries} queries a point"
    lines = [
        f"{len(points)} points ({counts}): one strategy beats all others at {len(alone)}; at "
        f"{len(points) - len(alone)} several share first place."
    ]
    for name in sorted(set(alone), key=lambda each: -alone.count(each)):
        where = [point[0].point for point in points if unbeaten(point) == [name]]
        more = f" and {len(where) - 4} more" * (len(where) > 4)
        lines.append(f"{name} is best at {'; '.join(where[:4])}{more}.")
    held = {row.strategy: sum(row.strategy in unbeaten(point) for point in points) for row in rows}
    most = max(held.values())
    best = sorted(name for name in held if held[name] == most)
    held_by = f"{listed(best)} {'is best or shares' if len(best) == 1 else 'are best or share'}"
    lines.append(f"Over all points: {held_by} first place at {most} of {len(points)}.")
    decided = [crossing for crossing in crossings if crossing.decided]
    lines += [_crossing_line(crossing) for crossing in decided[:6]]
    if not decided:
        lines.append("No change of order between two strategies along a dial is decided.")
    elif len(decided) > 6:
        lines.append(f"{len(decided) - 6} more changes of order are in crossings.csv.")
    return lines


def _crossing_line(crossing: Crossing) -> str:
    at = f" at {crossing.where}" if crossing.where else ""
    return (
        f"{crossing.after} overtakes {crossing.before} as {crossing.dial} grows beyond {crossing.at:.3g}{at}: known "
        f"between {crossing.low:g} and {crossing.high:g}."
    )
