"""Which strategies are best at each point of the dials, as a table and in words."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from negbench.analysis.verdicts import PLACE, VerdictRow
from negbench.analysis.words import label_of, listed, percent, signed
from negbench.grid.dials import Dials


def series_of(place: Sequence[str]) -> str:
    """Join the labels (values of `PLACE`) that points along dials share: 'plain, tuned, info-nce, tiny'."""
    named = dict(zip(PLACE, place, strict=True))
    return ", ".join(value for axis, value in named.items() if axis not in ("point", "dataset") and value)


def at_point(rows: Sequence[VerdictRow], label: str) -> list[VerdictRow]:
    """Return the strategies of a point, best first."""
    return sorted((row for row in rows if row.main and row.point == label), key=lambda row: -row.mean)


def unbeaten(point: Sequence[VerdictRow]) -> list[str]:
    """Return the strategies of a point that no other beats, best first."""
    return [row.strategy for row in point if not row.beaten_by]


def size_of(rows: Sequence[VerdictRow]) -> str:
    """'5 seeds, 40 to 100 queries'."""
    counts = ((min(each), max(each)) for each in ([row.seeds for row in rows], [row.queries for row in rows]))
    seeds, queries = (" to ".join(map(str, dict.fromkeys(ends))) for ends in counts)
    return f"{seeds} seed{'s' * (seeds != '1')}, {queries} queries"


def points_frame(dials: Dials, rows: Sequence[VerdictRow]) -> pd.DataFrame:
    """Build one row per point: the best strategy, the gap to the next, who shares first place, all means with ranks."""
    names = sorted({row.strategy for row in rows})
    shown = []
    for series in dict.fromkeys(series_of(row.place) for row in rows):
        series_rows = [row for row in rows if series_of(row.place) == series]
        for place in dials.points:
            point = at_point(series_rows, dials.label(place))
            if not point:
                continue
            means = {row.strategy: f"{percent(row.mean)} ({row.ranks})" for row in point}
            line = {name: str(value) for name, value in zip(dials.names, place, strict=True)}
            line |= {"best": point[0].strategy, "next behind by": "-"}
            if len(point) > 1:
                line["next behind by"] = signed(point[1].behind, point[1].behind_low, point[1].behind_high)
            line |= {"not beaten": listed(unbeaten(point)), **{name: means.get(name, "-") for name in names}}
            shown.append({"series": series, **line})
    frame = pd.DataFrame(shown)
    return frame.drop(columns="series") if len(frame) and frame["series"].nunique() == 1 else frame


def dials_answer(dials: Dials, rows: Sequence[VerdictRow]) -> list[str]:
    """Say which strategies are best, at how many points and where, for each series."""
    every = dict.fromkeys(series_of(row.place) for row in rows)
    lines = []
    for series in every:
        prefix = f"{series}: " if len(every) > 1 else ""
        series_rows = [row for row in rows if series_of(row.place) == series]
        lines += [prefix + line for line in _series_answer(dials, series_rows)]
    return lines


def _series_answer(dials: Dials, rows: Sequence[VerdictRow]) -> list[str]:
    points = [point for place in dials.points if (point := at_point(rows, dials.label(place)))]
    alone = [unbeaten(point)[0] for point in points if len(unbeaten(point)) == 1]
    lines = [
        f"{len(points)} points ({label_of(rows[0].metric)}, {size_of(rows)} per point): one strategy beats all others "
        f"at {len(alone)}; at {len(points) - len(alone)} several share first place."
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
    return lines
