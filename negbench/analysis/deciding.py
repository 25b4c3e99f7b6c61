"""Computing cells, look by look until what they are for is decided."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from negbench.analysis.answer import open_pairs
from negbench.analysis.differences import differences
from negbench.analysis.findings import standing
from negbench.analysis.prices import floor_of, seeds_for
from negbench.analysis.statistics import Difference
from negbench.analysis.verdicts import Rules, VerdictTable, tables_of
from negbench.analysis.words import label_of, percent
from negbench.display import duration
from negbench.grid.cells import Cell, Outcome
from negbench.grid.comparison import ComparisonFolder, Group, place_of
from negbench.grid.compute import computed
from negbench.grid.looks import Looks
from negbench.store.runfolder import RunFolder

Places = Collection[tuple[str, ...]]  # of groups, as `place_of` has them


def computed_until(
    folder: ComparisonFolder,
    cells: Sequence[Cell],
    more: Callable[[Sequence[int]], Sequence[Cell]],
    looks: Looks | None,
    undecided: Callable[[Sequence[Outcome], Places], tuple[Places, str]],
    how: Mapping[str, Any],
    *,
    say: Callable[[str], None],
    before: Sequence[Outcome] = (),
) -> list[Outcome]:
    """Compute cells, and those of more seeds where there are looks.

    What is computed follows from the finished cells alone, so a command that is killed and rerun ends as it would have;
    a budget excepted. A group leaves once all that it is for is decided, or where a cell of it failed. The last look's
    cells are for the caller to `settle`: comparison.json may name those of an earlier command, too.

    Args:
        folder: of the comparison.
        cells: of the first look.
        more: the cells of other seeds.
        looks: when they are looked at; None: once.
        undecided: from all outcomes, those of `before` too, and the groups that run: those of them that must go on,
            and in words what is undecided.
        how: executor and tracking_uri, as `computed` takes them.
        say: told after every look what is decided, what is open, and what that would cost.
        before: outcomes of other cells of the comparison.

    Returns:
        The outcomes of these cells.
    """
    started, outcomes = time.monotonic(), computed(folder, cells, **how, before=before)
    if looks is None or not any(outcome.run_id for outcome in outcomes):
        return outcomes
    running = {place_of(cell.labels) for cell in cells}
    for number, count in enumerate(looks.counts, 1):
        left, words = undecided([*before, *outcomes], running)
        running = {*left} - {place_of(outcome.cell.labels) for outcome in outcomes if outcome.error}
        say(f"look {number}, {count} seeds: {words}")
        if not running or number == len(looks.counts) or time.monotonic() - started >= looks.budget:
            break
        seeds = looks.seeds(looks.counts[number])[count:]
        cells = [cell for cell in more(seeds) if place_of(cell.labels) in running]
        outcomes += computed(folder, cells, **how, before=[*before, *outcomes])
    return outcomes


def open_strategies(
    folder: ComparisonFolder, rules: Rules
) -> Callable[[Sequence[Outcome], Places], tuple[Places, str]]:
    """For `computed_until`: the strategies of a comparison that have a pair to be decided, and what that would cost."""

    def undecided(outcomes: Sequence[Outcome], running: Places) -> tuple[Places, str]:
        found = standing(folder.path.parent, folder.document(outcomes), rules)
        rows = [row for row in found.rows if place_of(vars(row)) in running]
        words = open_pairs(found.groups, rows) or "all pairs are decided"
        return {place_of(vars(row)) for row in rows if row.undecided}, words

    return undecided


def resolution(cells: Sequence[Cell], runs: Path, rules: Rules) -> list[str]:
    """What seeds would resolve, told from the finished ones of these cells: a line for each table that has two.

    Args:
        cells: as planned.
        runs: runs folder.
        rules: how strategies are compared.
    """
    found: dict[tuple[str, ...], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.seed):
        if cell.step(runs) == "reuse":
            found.setdefault(place_of(cell.labels), []).append(cell)
    groups = [Group(own[0].labels, tuple(RunFolder(runs / str(cell.folder)) for cell in own)) for own in found.values()]
    lines, tables = [], tables_of(groups, rules, main_only=True)
    for table in tables:
        values = table.values.get(table.main, {})
        nested = any(each.nested for each in values.values())
        every = differences(values, None, alpha=rules.alpha).pairs.differences if values else {}
        if known := [each for each in every.values() if each.seeds > 1]:
            where = f" ({', '.join(dict.fromkeys(table.labels.values()))})" * (len(tables) > 1)
            lines.append(_resolved(label_of(table.main) + where, known, _seconds(groups, table), nested=nested))
    return lines or ["what seeds resolve is not known yet: compute a pilot of 3 seeds first (--seeds 3)"]


def _resolved(what: str, known: Sequence[Difference], seconds: float, *, nested: bool) -> str:
    """For one table's metric, whose strategies take `seconds` for a seed of all; the median of its pairs."""
    parts = []
    for points in (1, 2):
        needed = median(seeds_for(each, points / 100, nested=nested) for each in known)
        cost = f"{max(needed, 3):.0f} seeds, {duration(seconds * max(needed, 3))} of computing"
        parts.append(f"{points} point{'s' * (points > 1)}: {cost if math.isfinite(needed) else 'more queries'}")
    floor = percent(median(floor_of(each, nested=nested) for each in known))
    text = f"to resolve differences of {what} takes, for {'; for '.join(parts)}"
    return text + ("" if nested else f"; with any number of seeds the queries leave ± {floor} points")


def _seconds(groups: Sequence[Group], table: VerdictTable) -> float:
    """What a seed of all strategies of a table takes."""
    mine = [group for group in groups if all(group.labels.get(axis) == name for axis, name in table.labels.items())]
    return sum(sum(sum(result["seconds"].values()) for result in group.results) / len(group.runs) for group in mine)
