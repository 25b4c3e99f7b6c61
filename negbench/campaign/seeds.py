"""Add seeds look by look, until the verdicts are decided."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from operator import attrgetter
from pathlib import Path

from negbench.campaign.driver import Course, Done, Round
from negbench.grid.axis import GroupKey, group_key
from negbench.grid.cells import Cell, Outcome
from negbench.grid.looks import Looks
from negbench.loop.runs import DATA

# outcomes so far, groups that go on -> the undecided ones of these, and a line on what deciding them costs
Undecided = Callable[[Sequence[Outcome], Collection[GroupKey]], tuple[Collection[GroupKey], str]]


def look_by_look(first: Round, looks: Looks | None, undecided: Undecided) -> Course:
    """Ask for cells; with looks, for further seeds of the groups that have undecided pairs, look by look.

    The finished cells alone determine what is asked for, so a command that is killed and rerun gives the same result,
    unless it has a budget. A group stops once all its pairs are decided, or if one of its cells failed; another group
    that it was to be compared with then stops too.

    Args:
        first: the round of the first look.
        looks: schedule of the looks; None: one look.
        undecided: takes all outcomes and the running groups, none of which failed; returns the groups that must go on,
            and a text on what is undecided and what deciding it would cost.

    Returns:
        `Done`, with the outcomes of these cells and of those added, without those before.
    """
    cells = first.cells
    folder = first.folder
    started = time.monotonic()
    epochs_after_looks = first.later_epochs
    if looks is not None:
        first = replace(first, later_epochs=first.later_epochs + epochs_of_looks(cells, looks, len(looks.first)))
    outcomes = list((yield first))
    if looks is None or not any(outcome.run_id for outcome in outcomes):
        return Done(folder, outcomes)
    running = {group_key(cell.labels) for cell in cells}
    blocks = _blocks_of_first_seed(cells)  # these are repeated at later seeds
    for number, (count, next_count) in enumerate(zip_longest(looks.counts, looks.counts[1:]), 1):
        failed = {group_key(outcome.cell.labels) for outcome in outcomes if outcome.error}
        still_open, words = undecided([*first.before, *outcomes], running - failed)
        running = {*still_open}
        without = ", without what failed" if failed else ""
        line = f"look {number}, {count} seeds{without}: {words}"
        if not running or next_count is None or time.monotonic() - started >= looks.budget:
            break
        hashes = {cell.hash for cell in first.cells if group_key(cell.labels) in running}
        new_seeds = looks.seeds(next_count)[count:]
        added = _cells_of_seeds(blocks, hashes, new_seeds, first.runs)
        later_epochs = epochs_after_looks + epochs_of_looks(added, looks, next_count)
        outcomes += yield Round(folder, added, [*first.before, *outcomes], later_epochs=later_epochs, words=[line])
    return Done(folder, outcomes, words=[line])


def _blocks_of_first_seed(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return the cells of the first seed, in blocks of adjacent ones: each shares its data and backbone."""
    blocks = []
    for seed, block in groupby(cells, attrgetter("seed")):
        if seed == cells[0].seed:
            blocks.append(list(block))
    return blocks


def _cells_of_seeds(
    blocks: Sequence[Sequence[Cell]], hashes: Collection[str], seeds: Sequence[int], runs: Path
) -> list[Cell]:
    """Return the cells of further seeds, block by block.

    Args:
        blocks: cells of the first seed.
        hashes: of the cells of groups that go on; groups that share a run go on together.
        seeds: to add.
        runs: runs folder.
    """
    added = []
    for block in blocks:
        for seed in seeds:
            added += [cell.at_seed(seed, runs, DATA) for cell in block if cell.hash in hashes]
    return added


def epochs_of_looks(cells: Sequence[Cell], looks: Looks, count: int) -> float:
    """Return the epochs that the looks after `count` seeds compute at most, if all groups of these cells go on."""
    seeds = {cell.seed for cell in cells}
    return sum(cell.config.train.epochs for cell in cells) / max(1, len(seeds)) * (looks.most - count)
