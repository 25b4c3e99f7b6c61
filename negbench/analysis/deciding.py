"""Computing a comparison: its cells, or look by look until its pairs are decided."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from negbench.analysis.answer import open_pairs
from negbench.analysis.findings import standing
from negbench.analysis.verdicts import Rules
from negbench.grid.cells import Cell, Outcome
from negbench.grid.comparison import AXES, ComparisonFolder
from negbench.grid.compute import computed
from negbench.options import parse_budget


def computed_until(
    folder: ComparisonFolder,
    cells: Sequence[Cell],
    more: Callable[[Sequence[int]], Sequence[Cell]],
    rules: Rules,
    how: Mapping[str, Any],
    *,
    say: Callable[[str], None],
    budget: str | None = None,
    before: Sequence[Outcome] = (),
) -> list[Outcome]:
    """Compute cells, and those of more seeds where the rules have looks.

    What is computed follows from the finished cells alone, so a command that is killed and rerun ends as it would have;
    a budget excepted. A strategy leaves once its pairs are decided, or where a cell of it failed.

    Args:
        folder: of the comparison.
        cells: of the first look.
        more: the cells of other seeds.
        rules: how strategies are compared.
        how: executor, tracking_uri and overwrite, as `computed` takes them.
        say: told after every look what is decided, what is open, and what that would cost.
        budget: as `--budget`; after a look that ends later there is no other.
        before: outcomes of other cells of the comparison.

    Returns:
        The outcomes of these cells.
    """
    started, outcomes = time.monotonic(), computed(folder, cells, **how, before=before)
    looks = rules.looks
    if looks is None or not any(outcome.run_id for outcome in outcomes):
        return outcomes
    running = {_place(cell.labels) for cell in cells}
    for number, count in enumerate(looks.counts, 1):
        found = standing(folder.path.parent, folder.path.name, rules)
        rows = [row for row in found.rows if _place(vars(row)) in running]
        failed = {_place(outcome.cell.labels) for outcome in outcomes if outcome.error}
        running = {_place(vars(row)) for row in rows if row.undecided} - failed
        say(f"look {number}, {count} seeds: {open_pairs(found.groups, rows) or 'all pairs are decided'}")
        spent = budget is not None and time.monotonic() - started >= parse_budget(budget)
        if spent or not running or number == len(looks.counts):
            break
        seeds = looks.seeds(looks.counts[number])[count:]
        cells = [cell for cell in more(seeds) if _place(cell.labels) in running]
        outcomes += computed(folder, cells, **how, before=[*before, *outcomes])
    return outcomes


def _place(labels: Mapping[str, Any]) -> tuple[str, ...]:
    """A strategy in its table, whatever the seed."""
    return tuple(str(labels.get(axis, "")) for axis in AXES)
