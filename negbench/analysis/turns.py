"""Orders that reverse: A beats B in one table or by one metric, and B beats A in another."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from negbench.analysis.verdict_record import TABLE_AXES, Estimate, Verdict
from negbench.analysis.verdicts import OVER_ALL
from negbench.analysis.words import estimate_text, first_names, join_names, label_of, plural
from negbench.machine.grouping import group_by

_NAMED = 4  # most pairs named in a line
_LINES = 4  # most lines of one kind

_AMONG = {"epochs": "training budgets", "loss": "losses", "backbone": "backbones", "dataset": "data sets"}


def turns(verdicts: Sequence[Verdict]) -> list[str]:
    """Say which orders turn between budgets, losses, backbones or data sets.

    A beats B, decided, in one table, and B beats A in another.
    """
    lines: list[str] = []
    for axis, words in _AMONG.items():
        lines += _turns_along(axis, words, verdicts)
    return list(dict.fromkeys(lines))


def _turns_along(axis: str, words: str, verdicts: Sequence[Verdict]) -> list[str]:
    """Write a line on each two values of an axis between which an order turns, or one that none does."""
    others = [name for name in TABLE_AXES if name != axis]
    rows_with_axis = [row for row in verdicts if getattr(row, axis) and OVER_ALL not in row.table_key]
    level = "" if axis == "epochs" else f" (each table alone at {100 * (1 - verdicts[0].alpha):g} %)"

    def values_of_others(row: Verdict) -> tuple[str, ...]:
        return tuple(getattr(row, name) for name in others)

    tables_along_axis = group_by(rows_with_axis, values_of_others)
    lines = []
    compared_values: dict[str, None] = {}
    for rows in tables_along_axis.values():
        beaten = _beaten_along(axis, rows)
        if len(beaten) > 1:
            compared_values |= dict.fromkeys(beaten)
        distinction = _distinguish_table(rows[0], tables_along_axis, others)
        for (one, other), pairs in _turned_pairs(beaten).items():
            ahead = first_names([f"{winner} is ahead of {loser}" for winner, loser in pairs], _NAMED, "more pairs")
            text = f"{_under(axis, one)} {ahead}; {_under(axis, other)} it is the other way round"
            lines.append(f"The order reverses{distinction}: {text}{level}.")
    if lines:
        return _first_lines(lines, "The order reverses between {} more pairs of tables.")
    if compared_values:
        return [f"No decided order reverses between the {words} {join_names(list(compared_values), 9)}{level}."]
    return []


def _under(axis: str, value: str) -> str:
    """'after 20 epochs', 'with info-nce'."""
    return f"after {_epochs(value)}" if axis == "epochs" else f"with {value}"


def _epochs(value: str) -> str:
    return f"{value} {plural(int(value), 'epoch')}"


def _first_lines(lines: Sequence[str], more: str) -> list[str]:
    """Return the first lines, then one that counts the others: dials have a table at each point."""
    if len(lines) <= _LINES:
        return list(lines)
    return [*lines[:_LINES], more.format(len(lines) - _LINES)]


Pair = tuple[str, str]  # the strategy that beats the other, and that one


def _beaten_along(axis: str, rows: Sequence[Verdict]) -> dict[str, set[Pair]]:
    """Return each value of an axis with the pairs of which the first beats the second there."""
    tables = group_by(rows, lambda row: str(getattr(row, axis)))
    order = sorted(tables, key=int) if axis == "epochs" else list(tables)
    beaten = {}
    for value in order:
        beaten[value] = _beaten_in(tables[value])
    return beaten


def _beaten_in(rows: Sequence[Verdict]) -> set[Pair]:
    """Return the pairs of which the first beats the second in these rows."""
    pairs: set[Pair] = set()
    for row in rows:
        pairs |= {(winner, row.strategy) for winner in row.beaten_by}
    return pairs


def _turned_pairs(beaten: Mapping[str, set[Pair]]) -> dict[tuple[str, str], list[Pair]]:
    """Return two values of an axis -> the pairs whose order turns between them; each pair once."""
    turned: dict[tuple[str, str], list[Pair]] = {}
    seen: set[Pair] = set()
    for one, other in combinations(beaten, 2):
        for winner, loser in sorted(beaten[one]):
            if (loser, winner) in beaten[other] and (winner, loser) not in seen:
                seen.add((winner, loser))
                turned.setdefault((one, other), []).append((winner, loser))
    return turned


# --- between metrics ---------------------------------------------------------------------------------------------


def turns_by_metric(verdicts: Sequence[Verdict]) -> list[str]:
    """Say by which other headline metrics a decided order of the main one reverses; nothing where none does.

    Each metric's intervals hold for its own pairs, so that the others describe and decide nothing.
    """
    lines: dict[str, list[str]] = {}  # by metric
    tables = group_by(verdicts, lambda row: row.table_key)
    for rows in tables.values():
        by_metric = group_by(rows, lambda row: row.metric)
        main = next((metric for metric, members in by_metric.items() if members[0].main), None)
        if main is None:
            continue
        for metric, members in by_metric.items():
            if metric == main:
                continue
            beaten = {main: _beaten_in(by_metric[main]), metric: _beaten_in(members)}
            for pairs in _turned_pairs(beaten).values():
                line = _turn_by_metric(pairs, main, members, _distinguish_table(rows[0], tables, TABLE_AXES))
                lines.setdefault(metric, []).append(line)
    first_lines = []
    for metric, metric_lines in lines.items():
        first_lines += _first_lines(metric_lines, f"By {label_of(metric)} orders reverse in {{}} more tables.")
    return first_lines


def _distinguish_table(row: Verdict, tables: Mapping[tuple[str, ...], Sequence[Verdict]], axes: Sequence[str]) -> str:
    """Name what of these axes distinguishes a row's table from the others: ', 20 epochs, cirr'; '' for the only one."""
    firsts = [members[0] for members in tables.values()]
    parts = []
    for axis in axes:
        if len({getattr(first, axis) for first in firsts}) > 1 and getattr(row, axis):
            value = getattr(row, axis)
            parts.append(_epochs(value) if axis == "epochs" else value)
    return "".join(f", {part}" for part in parts)


def _turn_by_metric(pairs: Sequence[Pair], main: str, rows: Sequence[Verdict], distinction: str) -> str:
    """Write the line on pairs of which the first is ahead by the main metric, and the second by that of `rows`."""
    name = label_of(rows[0].metric)
    level = f"{100 * (1 - rows[0].alpha):g} %"
    by_strategy = {row.strategy: row for row in rows}
    ahead = []
    for winner, loser in pairs:
        ahead.append(f"{loser} is ahead of {winner}{_gap(by_strategy[winner], by_strategy[loser])}")
    text = f"{len(pairs)} orders reverse"
    if len(pairs) == 1:
        winner, loser = pairs[0]
        text = f"the order of {winner} and {loser} reverses"
    return (
        f"By {name}{distinction} {text}: {first_names(ahead, _NAMED, 'more pairs')}. It describes: verdicts are by "
        f"{label_of(main)}, and its own {level} intervals hold for the pairs of {name} alone."
    )


def _gap(behind: Verdict, ahead: Verdict) -> str:
    """Return by how much a row is behind another, ' by 8.60 [1.29, 15.91] points', where that was estimated."""
    estimate: Estimate | None = None
    if ahead.standing in ("best", "highest") and behind.against_best and behind.negatives == ahead.negatives:
        estimate = behind.behind_best
    elif ahead.rank_low == 1 and behind.against_highest and ahead.against_highest is None:
        estimate = behind.behind_highest
    return "" if estimate is None else f" by {estimate_text(estimate, sign=False)} points"
