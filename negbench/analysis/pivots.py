"""Tables over many tables: the strategies at every point of the dials, and every strategy with every system."""

from collections.abc import Sequence

import pandas as pd

from negbench.analysis.verdicts import VerdictRow
from negbench.analysis.words import listed, percent, signed, span
from negbench.grid.comparison import CellGroup
from negbench.grid.dials import Dials

SIGNS = {"better": "▲", "worse": "▼", "equal": "=", "undecided": "?"}
READ_SIGNS = "▲ better, ▼ worse, = equal within the margin, ? undecided"


def at_point(rows: Sequence[VerdictRow], label: str) -> list[VerdictRow]:
    """Return the strategies of a point, best first."""
    return sorted((row for row in rows if row.main and row.where == label), key=lambda row: -row.mean)


def unbeaten(point: Sequence[VerdictRow]) -> list[str]:
    """Return the strategies of a point that no other one there beats, best first."""
    names = {row.strategy for row in point}
    return [row.strategy for row in point if not names & {*row.beaten_by}]


def lead(point: Sequence[VerdictRow]) -> tuple[float, float, float]:
    """Return how far a point's second strategy is behind the first, with the ends of the interval."""
    row = point[1]
    if "num_negatives" in row.facts:  # a point of its own for each number, in one table
        return row.gap, row.gap_low, row.gap_high
    return row.behind, row.behind_low, row.behind_high


def size_of(rows: Sequence[VerdictRow]) -> str:
    """'5 seeds, 40 to 100 queries'."""
    seeds, queries = span((row.seeds for row in rows), str), span((row.queries for row in rows), str)
    return f"{seeds} seed{'s' * (seeds != '1')}, {queries} queries"


def unequal_steps(groups: Sequence[CellGroup]) -> dict[tuple[str, str], int]:
    """Return the steps at each point and training budget; {} unless some of equally many epochs differ in steps."""
    counts = [(group, int(steps)) for group in groups for steps in group.values("steps")]
    trained = {(group.configs[0].train.epochs, steps) for group, steps in counts}
    alike = len(trained) == len({epochs for epochs, _ in trained})
    return {} if alike else {(g.labels.get("point", ""), g.labels.get("epochs", "")): steps for g, steps in counts}


def points_frame(dials: Dials, rows: Sequence[VerdictRow], groups: Sequence[CellGroup] = ()) -> pd.DataFrame:
    """Build one row per point: the best strategy, the gap to the next, who shares first place, all means with ranks.

    A column of steps is added where the points of these groups have `unequal_steps`.
    """
    steps = unequal_steps(groups)
    names = sorted({row.strategy for row in rows})
    shown = []
    for place in dials.points:
        point = at_point(rows, dials.label(place))
        if not point:
            continue
        means = {row.strategy: f"{percent(row.mean)} ({row.ranks})" for row in point}
        line = {name: str(value) for name, value in zip(dials.names, place, strict=True)}
        line |= {"steps": str(steps[point[0].point, point[0].epochs])} if steps else {}
        line |= {"best": point[0].strategy, "next behind by": "-"}
        if len(point) > 1:
            line["next behind by"] = signed(*lead(point))
        shown.append(line | {"not beaten": listed(unbeaten(point)), **{name: means.get(name, "-") for name in names}})
    return pd.DataFrame(shown)


def matrix_frame(rows: Sequence[VerdictRow]) -> pd.DataFrame:
    """Build [strategy x system]: the difference to the system's own negatives with its sign; for these, the mean."""
    shown = {(row.strategy, row.system): _cell(row) for row in rows}
    columns = list(dict.fromkeys(row.system for row in rows))
    strategies = sorted({row.strategy for row in rows})
    cells = {name: {column: shown.get((name, column), "-") for column in columns} for name in strategies}
    return pd.DataFrame([{"strategy": name, **of_columns} for name, of_columns in cells.items()])


def _cell(row: VerdictRow) -> str:
    if not row.compared:
        return f"{percent(row.mean)} own" if row.verdict == "baseline" else "-"
    return f"{signed(row.difference, row.diff_low, row.diff_high)} {SIGNS[row.verdict]}"
