"""What is undecided in a comparison: the strategies that need more seeds, and what deciding costs."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import pandas as pd

from negbench.analysis.answer import open_pairs
from negbench.analysis.differences import differences
from negbench.analysis.findings import judge_so_far
from negbench.analysis.frame import groups_of, mean_seconds, read_results, shared_value
from negbench.analysis.prices import floor_of, seeds_for
from negbench.analysis.statistics import Difference
from negbench.analysis.unchanged import inputs_of, keep_look, look
from negbench.analysis.verdict_record import Verdict
from negbench.analysis.verdicts import Rules, VerdictTable, batch_alone, label_for, tables_of
from negbench.analysis.words import join_names, label_of, percent, plural
from negbench.display import duration, notes
from negbench.grid.axis import GroupKey, group_key
from negbench.grid.cells import Cell, Outcome
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.looks import Looks
from negbench.settings.layers import read_recipe
from negbench.settings.options import Compare, PairsToDecide, parse_seeds

_DECIDED = {"baseline": "each difference from the baseline is", "all": "all pairs are", "best": "first place is"}


def rules_of(options: Compare, cells: Sequence[Cell]) -> Rules:
    """Return how the strategies of a comparison are compared, as its options say.

    Raises:
        OptionError, UnknownNameError: looks that do not fit, or a baseline or metric that is not there.
    """
    plugins = {cell.labels["strategy"]: str(cell.columns["plugin"]) for cell in cells}
    pairs = options.pairs
    if pairs is None:
        several_tables = bool(options.dials) or options.systems is not None or options.tuned is not None
        pairs = "baseline" if several_tables or batch_alone(plugins) is not None else "best"
    looks = Looks.of(options, parse_seeds(options.seeds), pairs=pairs)
    baseline = options.baseline
    if baseline is not None and label_for(baseline, plugins) is None and baseline == _of_recipe(options):
        notes([f"the recipe's baseline '{baseline}' is none of these strategies and is left out"])
        baseline = None
    rules = Rules(baseline, options.margin / 100, options.alpha, options.metric, looks)
    rules.check(plugins, {cell.labels["dataset"]: cell.run.card.metrics for cell in cells}.values())
    return rules


def _of_recipe(options: Compare) -> str | None:
    """Return the baseline that the recipe names."""
    if options.recipe is None:
        return None
    baseline: str | None = read_recipe(options.recipe).get("compare", {}).get("baseline")
    return baseline


def open_strategies(
    folder: ComparisonFolder, rules: Rules
) -> Callable[[Sequence[Outcome], Collection[GroupKey]], tuple[Collection[GroupKey], str]]:
    """Return a function that says which strategies need more seeds, and what these cost, as `look_by_look` takes it."""
    runs = folder.path.parent

    def find_undecided(outcomes: Sequence[Outcome], running: Collection[GroupKey]) -> tuple[set[GroupKey], str]:
        document = folder.document(outcomes)
        cells = len(document["cells"])
        inputs = inputs_of(runs, document, rules, sorted(running))
        stored = look(folder.path, cells, inputs)
        if stored is not None:
            return {tuple(key) for key in stored["open"]}, stored["words"]
        findings = judge_so_far(runs, document, rules)
        verdicts = []
        for verdict in findings.verdicts:
            if _group_of(verdict) in running:
                others = tuple(name for name in verdict.undecided if _group_of(verdict, strategy=name) in running)
                verdicts.append(replace(verdict, undecided=others))
        undecided = {_group_of(verdict) for verdict in verdicts if verdict.undecided}
        family = "baseline" if rules.looks is None else rules.looks.pairs
        words = open_pairs(findings.groups, verdicts) or decided_text(verdicts, family)
        keep_look(folder.path, cells, inputs, {"open": sorted(undecided), "words": words})
        return undecided, words

    return find_undecided


def decided_text(verdicts: Sequence[Verdict], family: PairsToDecide) -> str:
    """Say what is decided, and which strategies collapsed, so that they get no more seeds and can be first nowhere."""
    text = f"{_DECIDED[family]} decided"
    collapsed = sorted({verdict.strategy for verdict in verdicts if verdict.collapsed})
    if family != "best" or not collapsed:
        return text
    if all(verdict.collapsed for verdict in verdicts):
        return "every strategy collapsed: more seeds decide nothing"
    return f"{text}, as {join_names(collapsed)} collapsed and cannot be first"


def _group_of(verdict: Verdict, **other: str) -> GroupKey:
    """Return the group of a verdict, or one with other labels."""
    return group_key({**vars(verdict), **other})


def resolution(cells: Sequence[Cell], runs: Path, rules: Rules) -> list[str]:
    """Estimate from the finished cells how many seeds resolve a difference: a line per table that has two seeds.

    Args:
        cells: of the plan.
        runs: runs folder.
        rules: how strategies are compared.
    """
    finished = sorted((cell for cell in cells if cell.action(runs) == "reuse"), key=lambda cell: cell.seed)
    results = read_results(runs, [{**cell.columns, "seed": cell.seed, "run": cell.folder} for cell in finished])
    groups = groups_of(results)
    lines = []
    tables = tables_of(groups, rules, main_only=True)
    for table in tables:
        values = table.values.get(table.main_metric, {})
        if not values:
            continue
        pairs = differences(values, None, alpha=rules.alpha).pairs.differences
        tests = [difference for difference in pairs.values() if difference.seeds > 1]
        if tests:
            what = label_of(table.main_metric)
            if len(tables) > 1:
                what += f" ({', '.join(dict.fromkeys(table.labels.values()))})"
            nested = any(strategy_values.nested for strategy_values in values.values())
            lines.append(_resolution_line(what, tests, _seconds(groups, table), nested=nested))
    return lines or ["the number of seeds needed is unknown: run a pilot first (--seeds 3)"]


def _resolution_line(what: str, tests: Sequence[Difference], seconds: float, *, nested: bool) -> str:
    """Write one table's line: medians over its pairs; a seed of all its strategies takes `seconds`."""
    parts = []
    for points in (1, 2):
        needed = median(seeds_for(test, points / 100, nested=nested) for test in tests)
        cost = "needs more queries"
        if math.isfinite(needed):
            seeds = max(needed, 3)
            cost = f"{seeds:.0f} seeds, {duration(seconds * seeds)} of computing"
        parts.append(f"{points} {plural(points, 'point')}: {cost}")
    text = f"seeds needed to resolve a difference in {what} of {'; of '.join(parts)}"
    if nested:
        return text
    floor = percent(median(floor_of(test, nested=nested) for test in tests))
    return f"{text}; even with unlimited seeds, these queries leave an interval of ± {floor} points"


def _seconds(groups: Sequence[pd.DataFrame], table: VerdictTable) -> float:
    """Return the seconds that one seed of all strategies of a table takes."""
    seconds = 0.0
    for group in groups:
        if all(shared_value(group, axis) == label for axis, label in table.labels.items()):
            seconds += mean_seconds(group)
    return seconds
