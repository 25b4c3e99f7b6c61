"""What is undecided in a comparison: the strategies that need more seeds, and what deciding costs."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from negbench.analysis.differences import differences
from negbench.analysis.findings import judge_so_far
from negbench.analysis.prices import floor_of, seeds_for
from negbench.analysis.statistics import Difference
from negbench.analysis.unchanged import inputs_of, keep_look, look
from negbench.analysis.verdicts import Rules, VerdictRow, VerdictTable, label_for, tables_of
from negbench.analysis.words import label_of, listed, percent
from negbench.display import duration, notes
from negbench.grid.cells import Cell, Outcome
from negbench.grid.comparison import CellGroup, ComparisonFolder, GroupKey, group_key, together
from negbench.grid.looks import Looks
from negbench.settings.layers import read_recipe
from negbench.settings.options import Compare, PairsToDecide, parse_seeds
from negbench.store.runfolder import RunFolder

_DECIDED = {"baseline": "each difference from the baseline is", "all": "all pairs are", "best": "first place is"}


def rules_of(asked: Compare, cells: Sequence[Cell]) -> Rules:
    """Return how the strategies of a comparison are compared, as its options say.

    Raises:
        OptionError, UnknownNameError: looks that do not fit, or a baseline or metric that is not there.
    """
    alone = not asked.dials and asked.systems is None and asked.tuned is None
    looks = Looks.of(asked, parse_seeds(asked.seeds), pairs=asked.pairs or ("best" if alone else "baseline"))
    plugins = {cell.labels["strategy"]: str(cell.facts["plugin"]) for cell in cells}
    baseline, recipe = asked.baseline, {} if asked.recipe is None else read_recipe(asked.recipe).get("compare", {})
    if baseline is not None and label_for(baseline, plugins) is None and baseline == recipe.get("baseline"):
        notes([f"the recipe's baseline '{baseline}' is none of these strategies and is left out"])
        baseline = None
    rules = Rules(baseline, asked.margin / 100, asked.alpha, asked.metric, looks)
    rules.check(plugins, {cell.labels["dataset"]: cell.run.card.metrics for cell in cells}.values())
    return rules


def open_strategies(
    folder: ComparisonFolder, rules: Rules
) -> Callable[[Sequence[Outcome], Collection[GroupKey]], tuple[Collection[GroupKey], str]]:
    """Return a function that says which strategies need more seeds, and what these cost, as `looked` takes it."""
    runs = folder.path.parent

    def undecided(outcomes: Sequence[Outcome], running: Collection[GroupKey]) -> tuple[set[GroupKey], str]:
        document = folder.document(outcomes)
        cells, inputs = len(document["cells"]), inputs_of(runs, document, rules, sorted(running))
        if (known := look(folder.path, cells, inputs)) is not None:
            return set(map(tuple, known["open"])), known["words"]
        from negbench.analysis.answer import open_pairs  # its tables import pandas, which a plan does without

        findings = judge_so_far(runs, document, rules)
        rows = [
            replace(row, undecided=tuple(name for name in row.undecided if _place(row, strategy=name) in running))
            for row in findings.rows
            if _place(row) in running
        ]
        left = {_place(row) for row in rows if row.undecided}
        family = "baseline" if rules.looks is None else rules.looks.pairs
        words = open_pairs(findings.groups, rows) or decided_text(rows, family)
        keep_look(folder.path, cells, inputs, {"open": sorted(left), "words": words})
        return left, words

    return undecided


def decided_text(rows: Sequence[VerdictRow], family: PairsToDecide) -> str:
    """Say what is decided, and which strategies collapsed, so that they get no more seeds and can be first nowhere."""
    fallen = sorted({row.strategy for row in rows if row.collapsed and family == "best"})
    if fallen and all(row.collapsed for row in rows):
        return "every strategy collapsed: more seeds decide nothing"
    return f"{_DECIDED[family]} decided" + f", as {listed(fallen)} collapsed and cannot be first" * bool(fallen)


def _place(row: VerdictRow, **other: str) -> tuple[str, ...]:
    return group_key({**vars(row), **other})


def resolution(cells: Sequence[Cell], runs: Path, rules: Rules) -> list[str]:
    """Estimate from the finished cells how many seeds resolve a difference: a line per table that has two seeds.

    Args:
        cells: of the plan.
        runs: runs folder.
        rules: how strategies are compared.
    """
    done = sorted((cell for cell in cells if cell.step(runs) == "reuse"), key=lambda cell: cell.seed)
    places = together(done, lambda cell: group_key(cell.labels)).values()
    groups = [CellGroup(own[0].labels, tuple(RunFolder(runs / str(cell.folder)) for cell in own)) for own in places]
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
        parts.append(f"{points} point{'s' * (points > 1)}: {cost if math.isfinite(needed) else 'needs more queries'}")
    floor = percent(median(floor_of(each, nested=nested) for each in known))
    left = "" if nested else f"; even with unlimited seeds, these queries leave an interval of ± {floor} points"
    return f"seeds needed to resolve a difference in {what} of {'; of '.join(parts)}{left}"


def _seconds(groups: Sequence[CellGroup], table: VerdictTable) -> float:
    """Return the seconds that one seed of all strategies of a table takes."""
    members = [group for group in groups if all(group.labels.get(axis) == name for axis, name in table.labels.items())]
    return sum(sum(sum(result["seconds"].values()) for result in group.results) / len(group.runs) for group in members)
