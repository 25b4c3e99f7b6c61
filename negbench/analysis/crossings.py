"""Along dials: at every point who is best, and where along a dial the order of two strategies changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from negbench.analysis.differences import seeded
from negbench.analysis.verdicts import PLACE, VerdictRow, VerdictTable
from negbench.analysis.words import label_of, listed, percent, signed
from negbench.scoring.stored import Values

Point = tuple[Any, ...]  # one value of every dial

_RESAMPLES = 2000  # of a crossing


@dataclass(frozen=True)
class DialAxis:
    """A setting and the values that it takes, in the order of the axis."""

    key: str
    values: Point

    @property
    def name(self) -> str:
        """The key without its section."""
        return self.key.split(".")[-1]

    @property
    def numeric(self) -> bool:
        """Whether there is something between two values."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


@dataclass(frozen=True)
class Dials:
    """The points of a comparison along dials: all combinations of the values, or a sample of them."""

    axes: tuple[DialAxis, ...]
    points: tuple[Point, ...]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Dials:
        """From comparison.json: "dials" and "points"; without them no axis."""
        axes = tuple(DialAxis(each["key"], tuple(each["values"])) for each in document.get("dials", ()))
        return cls(axes, tuple(tuple(point) for point in document.get("points", ())))

    @property
    def whole(self) -> bool:
        """Whether every combination is there."""
        return bool(self.axes) and len(self.points) == math.prod(len(axis.values) for axis in self.axes)

    def label(self, point: Sequence[Any], without: int | None = None) -> str:
        """'twins=1, tokens=4', the label `point` of its cells; `without`: index of a dial that is left out."""
        named = [(axis.name, value) for axis, value in zip(self.axes, point, strict=True)]
        return ", ".join(f"{name}={value}" for index, (name, value) in enumerate(named) if index != without)

    def lines_along(self, axis: int) -> list[list[Point]]:
        """The points by the values of all other dials, each list in the order of this dial's values."""
        others = [(None,) if i == axis else other.values for i, other in enumerate(self.axes)]
        values = self.axes[axis].values
        return [[(*rest[:axis], value, *rest[axis + 1 :]) for value in values] for rest in product(*others)]


@dataclass(frozen=True)
class Crossing:
    """Where `after` overtakes `before` as a dial grows, at fixed values of the others (`where`).

    `at` is where the lines between the measured values cross; [low, high] the middle 95 % of the crossings of resampled
    seeds and queries, `share` how many of these have one. Decided: `before` beats `after` at a lower value and is
    beaten at a higher one, each for all pairs of its point at once. `series`: what the points have in common.
    """

    series: str
    dial: str
    where: str
    before: str
    after: str
    at: float
    low: float
    high: float
    share: float
    decided: bool


def series_of(place: Sequence[str]) -> str:
    """What points along dials have in common, from their values of `PLACE`: 'plain, tuned, info-nce, tiny'."""
    named = dict(zip(PLACE, place, strict=True))
    return ", ".join(value for axis, value in named.items() if axis not in ("point", "dataset") and value)


# --- crossings -----------------------------------------------------------------------------------------------------


def crossings_of(dials: Dials, tables: Sequence[VerdictTable], rows: Sequence[VerdictRow]) -> list[Crossing]:
    """All changes of order along numeric dials; none of a sample, whose points lie apart.

    Args:
        dials: the points.
        tables: per-query values of each point.
        rows: what the statistics say of them.
    """
    found = []
    for series in dict.fromkeys(series_of(table.place) for table in tables) if dials.whole else ():
        mine = {t.labels["point"]: on_shared_seeds(t.values[t.main]) for t in tables if series_of(t.place) == series}
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


def on_shared_seeds(values: Mapping[str, Values]) -> dict[str, Values]:
    """The rows of the seeds that all have, in the order of the seeds; empty where there is none."""
    common = sorted(set.intersection(*(set(mine.seeds) for mine in values.values())))
    if not common:
        return {}
    return {
        name: replace(mine, values=mine.values[[mine.seeds.index(seed) for seed in common]], seeds=tuple(common))
        for name, mine in values.items()
    }


def _along(
    along: Sequence[tuple[float, str]],
    tables: Mapping[str, Mapping[str, Values]],
    beaten: Mapping[tuple[str, str], Sequence[str]],
) -> list[tuple[Any, ...]]:
    """before, after, at, low, high, share, decided: of every two strategies whose order changes."""
    names = set.intersection(*(set(tables[label]) for _, label in along)) if along else set()
    x, back = scale_of([value for value, _ in along])
    found = []
    for first, second in combinations(sorted(names), 2):
        drawn = np.stack([_resampled(tables[label][first], tables[label][second]) for _, label in along], axis=1)
        gaps = drawn[0]  # the means themselves
        at = _zero(x, gaps[None])[0]
        if math.isnan(at):
            continue
        zeros = _zero(x, drawn[1:])
        known = zeros[~np.isnan(zeros)]
        low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (math.nan, math.nan)
        rises = gaps[0] < 0 or (gaps[0] == 0 and gaps[-1] > 0)
        before, after = (second, first) if rises else (first, second)
        signs = [
            (second not in beaten[label, first]) - (first not in beaten[label, second])
            for _, label in along
            if second in beaten[label, first] or first in beaten[label, second]
        ]
        changed = any(one != other for one, other in pairwise(signs))
        share = len(known) / len(zeros)
        found.append((before, after, float(back(at)), float(back(low)), float(back(high)), share, changed))
    return found


def scale_of(values: Sequence[float]) -> tuple[NDArray[np.float64], Callable[[Any], Any]]:
    """Where values lie on a dial's axis, and the way back: logarithms where all are above 0 and span a factor of 4."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) and x.min() > 0 and x.max() / x.min() >= 4:
        return np.log(x), np.exp
    return x, lambda place: place


def _zero(x: NDArray[np.float64], gaps: NDArray[np.float64]) -> NDArray[np.float64]:
    """[R] first place where each row of [R, V] changes its sign, by straight lines between the values; nan: nowhere."""
    changes = (np.sign(gaps[:, :-1]) * np.sign(gaps[:, 1:])) < 0
    first = changes.argmax(axis=1)
    rows = np.arange(len(gaps))
    left, right = gaps[rows, first], gaps[rows, first + 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        place = x[first] + (x[first + 1] - x[first]) * left / (left - right)
    return np.where(changes.any(axis=1), place, np.nan)


def _resampled(first: Values, second: Values) -> NDArray[np.float64]:
    """[1 + R] mean difference, then those under other seeds and queries, both drawn again; each stratum keeps its size.

    The seeds' part is stretched by sqrt(S / (S - 1)), which the bootstrap of S values lacks. The generator is the same
    for every pair and point, so that crossings are comparable.
    """
    difference = first.values - second.values
    seeds, queries = difference.shape
    generator = seeded({}, "crossings")
    strata = np.zeros(queries, dtype=int) if first.strata is None else np.unique(first.strata, return_inverse=True)[1]
    weights = np.zeros((1 + _RESAMPLES, queries))
    labels = np.unique(strata)
    for label in labels:
        rows = np.flatnonzero(strata == label)
        drawn = generator.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=1 + _RESAMPLES)
        drawn[0] = 1
        weights[:, rows] = drawn / len(rows) / len(labels)
    by_seed = weights @ difference.T  # [1 + R, S]
    chosen = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=1 + _RESAMPLES) / seeds
    chosen[0] = 1 / seeds
    middle = by_seed.mean(axis=1)
    stretch = math.sqrt(seeds / (seeds - 1)) if seeds > 1 else 0.0
    return np.asarray(middle + stretch * ((by_seed * chosen).sum(axis=1) - middle), dtype=np.float64)


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
                "beyond": f"{each.at:.3g} [{each.low:.3g}, {each.high:.3g}]",
                "of resamples": f"{each.share:.0%}",
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
        f"{crossing.after} overtakes {crossing.before} as {crossing.dial} grows beyond {crossing.at:.3g} "
        f"[{crossing.low:.3g}, {crossing.high:.3g}]{at}."
    )
