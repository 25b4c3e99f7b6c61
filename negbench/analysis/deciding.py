"""Compute cells, look by look, until the pairs in question are decided."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from negbench.analysis.answer import open_pairs
from negbench.analysis.differences import differences
from negbench.analysis.findings import standing
from negbench.analysis.prices import floor_of, seeds_for
from negbench.analysis.statistics import Difference
from negbench.analysis.verdicts import Rules, VerdictRow, VerdictTable, tables_of
from negbench.analysis.words import label_of, percent
from negbench.display import duration
from negbench.grid.cells import Cell, Outcome
from negbench.grid.comparison import ComparisonFolder, Group, place_of
from negbench.grid.compute import computed
from negbench.grid.looks import Looks
from negbench.store.runfolder import RunFolder

_DECIDED = {"baseline": "each difference from the baseline is", "all": "all pairs are", "best": "first place is"}
Places = Collection[tuple[str, ...]]  # of groups, as `place_of` returns them


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
    """Compute cells; with `looks`, add seeds look by look for the groups that have undecided pairs.

    The finished cells alone determine what is computed, so a command that is killed and rerun gives the same result,
    unless it has a budget. A group stops once all its pairs are decided, or if one of its cells failed; another group
    that it was to be compared with then stops too. The caller must `settle` the last look's cells: comparison.json may
    still name those of an earlier command.

    Args:
        folder: of the comparison.
        cells: those of the first look.
        more: returns the cells of further seeds.
        looks: schedule of the looks; None: one look.
        undecided: takes all outcomes (those of `before` too) and the running groups, none of which failed; returns the
            groups that must go on, and a text on what is undecided.
        how: executor and tracking_uri, as `computed` takes them.
        say: called after every look with a line on what is undecided and what deciding it would cost.
        before: outcomes of other cells of the comparison.

    Returns:
        The outcomes of these cells and of those added.
    """
    started, outcomes = time.monotonic(), computed(folder, cells, **how, before=before)
    if looks is None or not any(outcome.run_id for outcome in outcomes):
        return outcomes
    running = {place_of(cell.labels) for cell in cells}
    for number, count in enumerate(looks.counts, 1):
        failed = {place_of(outcome.cell.labels) for outcome in outcomes if outcome.error}
        left, words = undecided([*before, *outcomes], running - failed)
        running = {*left}
        say(f"look {number}, {count} seeds{', without what failed' * bool(failed)}: {words}")
        if not running or number == len(looks.counts) or time.monotonic() - started >= looks.budget:
            break
        seeds = looks.seeds(looks.counts[number])[count:]
        cells = list(more(seeds))
        wanted = {cell.hash for cell in cells if place_of(cell.labels) in running}
        cells = [cell for cell in cells if cell.hash in wanted]  # all places of a run have the same seeds
        outcomes += computed(folder, cells, **how, before=[*before, *outcomes])
    return outcomes


def open_strategies(
    folder: ComparisonFolder, rules: Rules
) -> Callable[[Sequence[Outcome], Places], tuple[Places, str]]:
    """Return `undecided` for `computed_until`: the strategies with an undecided pair, and the cost of deciding it."""

    def undecided(outcomes: Sequence[Outcome], running: Places) -> tuple[Places, str]:
        findings = standing(folder.path.parent, folder.document(outcomes), rules)
        rows = [
            replace(row, undecided=tuple(name for name in row.undecided if _place(row, strategy=name) in running))
            for row in findings.rows
            if _place(row) in running
        ]
        left = {_place(row) for row in rows if row.undecided}
        family = "baseline" if rules.looks is None else rules.looks.pairs
        return left, open_pairs(findings.groups, rows) or f"{_DECIDED[family]} decided"

    return undecided


def _place(row: VerdictRow, **other: str) -> tuple[str, ...]:
    return place_of({**vars(row), **other})


def resolution(cells: Sequence[Cell], runs: Path, rules: Rules) -> list[str]:
    """Estimate from the finished cells how many seeds resolve a difference: a line per table that has two seeds.

    Args:
        cells: of the plan.
        runs: runs folder.
        rules: how strategies are compared.
    """
    done: dict[tuple[str, ...], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.seed):
        if cell.step(runs) == "reuse":
            done.setdefault(place_of(cell.labels), []).append(cell)
    groups = [Group(own[0].labels, tuple(RunFolder(runs / str(cell.folder)) for cell in own)) for own in done.values()]
    lines, tables = [], tables_of(groups, rules, main_only=True)
    for table in tables:
        values = table.values.get(table.main, {})
        nested = any(each.nested for each in values.values())
        every = differences(values, None, alpha=rules.alpha).pairs.differences if values else {}
        if known := [each for each in every.values() if each.seeds > 1]:
            where = f" ({', '.join(dict.fromkeys(table.labels.values()))})" * (len(tables) > 1)
            lines.append(_resolved(label_of(table.main) + where, known, _seconds(groups, table), nested=nested))
    return lines or ["the number of seeds needed is unknown: run a pilot first (--seeds 3)"]


def _resolved(what: str, known: Sequence[Difference], seconds: float, *, nested: bool) -> str:
    """Write one table's line: medians over its pairs; a seed of all its strategies takes `seconds`."""
    parts = []
    for points in (1, 2):
        needed = median(seeds_for(each, points / 100, nested=nested) for each in known)
        cost = f"{max(needed, 3):.0f} seeds, {duration(seconds * max(needed, 3))} of computing"
        parts.append(f"{points} point{'s' * (points > 1)}: {cost if math.isfinite(needed) else 'more queries'}")
    floor = percent(median(floor_of(each, nested=nested) for each in known))
    text = f"resolving differences in {what} takes, for {'; for '.join(parts)}"
    return text + ("" if nested else f"; even with unlimited seeds the queries leave ± {floor} points")


def _seconds(groups: Sequence[Group], table: VerdictTable) -> float:
    """Return the seconds that one seed of all strategies of a table takes."""
    members = [group for group in groups if all(group.labels.get(axis) == name for axis, name in table.labels.items())]
    return sum(sum(sum(result["seconds"].values()) for result in group.results) / len(group.runs) for group in members)
