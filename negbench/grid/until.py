"""Compute cells, look by look, until what is asked is decided."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from negbench.grid.cells import Cell, Outcome
from negbench.grid.comparison import ComparisonFolder, place_of
from negbench.grid.compute import Execution, computed
from negbench.grid.looks import Looks

Places = Collection[tuple[str, ...]]  # of groups, as `place_of` returns them


@dataclass(frozen=True)
class Until:
    """When cells stop getting seeds.

    Args:
        looks: schedule of the looks; None: one look.
        undecided: takes all outcomes and the running groups, none of which failed; returns the groups that must go on,
            and a text on what is undecided.
        say: called after every look with a line on what is undecided and what deciding it would cost.
    """

    looks: Looks | None
    undecided: Callable[[Sequence[Outcome], Places], tuple[Places, str]]
    say: Callable[[str], None]


def computed_until(
    folder: ComparisonFolder,
    cells: Sequence[Cell],
    more: Callable[[Sequence[int]], Sequence[Cell]],
    until: Until,
    execution: Execution,
    before: Sequence[Outcome] = (),
) -> list[Outcome]:
    """Compute cells; with looks, add seeds look by look for the groups that have undecided pairs.

    The finished cells alone determine what is computed, so a command that is killed and rerun gives the same result,
    unless it has a budget. A group stops once all its pairs are decided, or if one of its cells failed; another group
    that it was to be compared with then stops too. The caller must `settle` the last look's cells: comparison.json may
    still name those of an earlier command.

    Args:
        folder: of the comparison.
        cells: those of the first look.
        more: returns the cells of further seeds.
        until: when cells stop getting seeds.
        execution: how cells are computed.
        before: outcomes of other cells of the comparison.

    Returns:
        The outcomes of these cells and of those added.
    """
    looks, started = until.looks, time.monotonic()
    execution.estimate.later = (0.0, 0.0 if looks is None else epochs_of_looks(cells, looks, len(looks.first)))
    outcomes = computed(folder, cells, execution, before)
    if looks is None or not any(outcome.run_id for outcome in outcomes):
        return outcomes
    running = {place_of(cell.labels) for cell in cells}
    for number, count in enumerate(looks.counts, 1):
        failed = {place_of(outcome.cell.labels) for outcome in outcomes if outcome.error}
        left, words = until.undecided([*before, *outcomes], running - failed)
        running = {*left}
        until.say(f"look {number}, {count} seeds{', without what failed' * bool(failed)}: {words}")
        if not running or number == len(looks.counts) or time.monotonic() - started >= looks.budget:
            break
        cells = list(more(looks.seeds(looks.counts[number])[count:]))
        wanted = {cell.hash for cell in cells if place_of(cell.labels) in running}
        cells = [cell for cell in cells if cell.hash in wanted]  # all places of a run have the same seeds
        execution.estimate.later = (0.0, epochs_of_looks(cells, looks, looks.counts[number]))
        outcomes += computed(folder, cells, execution, [*before, *outcomes])
    return outcomes


def epochs_of_looks(cells: Sequence[Cell], looks: Looks, count: int) -> float:
    """Return the epochs that the looks after `count` seeds compute at most, if all groups of these cells go on."""
    seeds = {cell.seed for cell in cells}
    return sum(cell.config.train.epochs for cell in cells) / max(1, len(seeds)) * (looks.most - count)
