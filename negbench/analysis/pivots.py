"""Tables over many tables: the strategies at every point of the dials, and every strategy with every system."""

from collections.abc import Sequence

import pandas as pd

from negbench.analysis.frame import config_of, known_numbers, shared_value
from negbench.analysis.verdict_record import Estimate, Verdict
from negbench.analysis.words import estimate_text, join_names, percent, seeds_text, span
from negbench.grid.axis import AXES, Axis, group_key, point_text, points_of, short_names
from negbench.grid.setting import COMMON_SETTING, OWN_SETTING, ChosenSetting

SIGNS = {"better": "▲", "worse": "▼", "equal": "=", "undecided": "?"}
READ_SIGNS = "▲ better, ▼ worse, = equal within the margin, ? undecided"


def at_point(rows: Sequence[Verdict], label: str) -> list[Verdict]:
    """Return the strategies of a point, best first."""
    return sorted((row for row in rows if row.main and row.where == label), key=lambda row: -row.mean.value)


def leaders_of(point: Sequence[Verdict]) -> list[str]:
    """Return the strategies of a point that no other one there beats, best first."""
    names = {row.strategy for row in point}
    return [row.strategy for row in point if not names & {*row.beaten_by}]


def lead(point: Sequence[Verdict]) -> Estimate | None:
    """Return how far a point's second strategy is behind the first; None if they share no seed."""
    second = point[1]
    if "num_negatives" in second.facts:  # a point of its own for each number, in one table
        return second.behind_best
    return second.behind_highest


def size_of(rows: Sequence[Verdict]) -> str:
    """'5 seeds, 40 to 100 queries'."""
    queries = span((row.queries for row in rows), str)
    return f"{seeds_text(row.seeds for row in rows)}, {queries} queries"


def unequal_steps(groups: Sequence[pd.DataFrame]) -> dict[tuple[str, str], int]:
    """Return the steps at each point and training budget; {} unless some of equally many epochs differ in steps."""
    trained = set()  # pairs of epochs and steps
    steps_at = {}
    for group in groups:
        point_and_budget = shared_value(group, "point"), shared_value(group, "epochs")
        for steps in known_numbers(group, "steps"):
            trained.add((config_of(group).train.epochs, int(steps)))
            steps_at[point_and_budget] = int(steps)
    if len(trained) == len({epochs for epochs, _ in trained}):
        return {}
    return steps_at


def points_frame(axes: Sequence[Axis], rows: Sequence[Verdict], groups: Sequence[pd.DataFrame] = ()) -> pd.DataFrame:
    """Build one row per point: the best strategy, the gap to the next, who shares first place, all means with ranks.

    A column of steps is added where the points of these groups have `unequal_steps`.
    """
    steps = unequal_steps(groups)
    strategies = sorted({row.strategy for row in rows})
    names = short_names(axes)
    lines = []
    for values in points_of(axes):
        point = at_point(rows, point_text(names, values))
        if not point:
            continue
        line = {name: str(value) for name, value in zip(names, values, strict=True)}
        if steps:
            line["steps"] = str(steps[point[0].point, point[0].epochs])
        line["best"] = point[0].strategy
        line["next behind by"] = estimate_text(lead(point)) if len(point) > 1 else "-"
        line["not beaten"] = join_names(leaders_of(point))
        means = {row.strategy: f"{percent(row.mean.value)} ({row.ranks})" for row in point}
        for strategy in strategies:
            line[strategy] = means.get(strategy, "-")
        lines.append(line)
    return pd.DataFrame(lines)


def settings_frame(rows: Sequence[Verdict], settings: Sequence[ChosenSetting]) -> pd.DataFrame:
    """Build one row per strategy of each table: its result at the table's common setting, and at its own.

    A result is the mean with its ranks and, where there is a baseline, the difference from it with its sign.

    Args:
        rows: verdicts on one metric.
        settings: that were chosen, two of each strategy.
    """
    setting_of = {group_key(chosen.labels): str(chosen.setting) for chosen in settings}
    result_of = {group_key(vars(row)): row for row in rows}
    axes = [axis for axis in AXES if axis not in ("settings", "strategy")]
    lines = []
    for row in rows:
        if row.settings != OWN_SETTING or group_key(vars(row)) not in setting_of:  # a mean over tables has no setting
            continue
        line = {axis: getattr(row, axis) for axis in axes if getattr(row, axis)}
        line["strategy"] = row.strategy
        for kind in (COMMON_SETTING, OWN_SETTING):
            group = group_key({**vars(row), "settings": kind})
            line[f"{kind} setting"] = setting_of[group]
            line[f"at the {kind} one"] = _result(result_of.get(group))
        lines.append(line)
    return pd.DataFrame(lines)


def _result(row: Verdict | None) -> str:
    """'67.9 (1-2), +2.50 [1.80, 3.30] ▲'; '-' where nothing was tested."""
    if row is None:
        return "-"
    text = f"{percent(row.mean.value)} ({row.ranks})"
    if row.against_baseline is None:
        return text
    return f"{text}, {estimate_text(row.against_baseline)} {SIGNS[row.verdict]}"


def matrix_frame(rows: Sequence[Verdict]) -> pd.DataFrame:
    """Build [strategy x system]: the difference to the system's own negatives with its sign; for these, the mean."""
    cells = {(row.strategy, row.system): _cell(row) for row in rows}
    systems = list(dict.fromkeys(row.system for row in rows))
    lines = []
    for strategy in sorted({row.strategy for row in rows}):
        line = {"strategy": strategy}
        for system in systems:
            line[system] = cells.get((strategy, system), "-")
        lines.append(line)
    return pd.DataFrame(lines)


def _cell(row: Verdict) -> str:
    """Return a strategy's difference with its sign, or the mean of a system's own."""
    if row.against_baseline is not None:
        return f"{estimate_text(row.against_baseline)} {SIGNS[row.verdict]}"
    return f"{percent(row.mean.value)} own" if row.verdict == "baseline" else "-"
