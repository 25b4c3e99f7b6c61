"""Results of a comparison: judged from its folder by the rules, stored as statistics.json, read by its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from negbench.analysis.contrasts import CONTRAST, contrasts
from negbench.analysis.tuned_gain import BASELINE, DEFAULT, gains_of, tunings_of
from negbench.analysis.verdicts import OVER_ALL, Rules, VerdictRow, over_all, rows_of, tables_of
from negbench.errors import NegbenchError
from negbench.grid.comparison import CellGroup, ComparisonFolder, group_key, grouped, groups_of
from negbench.grid.dials import Dial, Dials
from negbench.loop.step_plan import StepPlan
from negbench.machine.files import read_json, write_json

FILE = "statistics.json"


@dataclass(frozen=True)
class Findings:
    """A comparison's finished cells, its axes, and its test results.

    Attributes:
        groups: finished cells, grouped over seeds.
        document: comparison.json.
        rows: verdicts.
        gains: verdicts on tuned strategies against their own defaults.
        contrasts: verdicts on losses and backbones, whose names are their `strategy`.
    """

    groups: tuple[CellGroup, ...]
    document: Mapping[str, Any]
    rows: tuple[VerdictRow, ...] = ()
    gains: tuple[VerdictRow, ...] = ()
    contrasts: tuple[VerdictRow, ...] = ()

    @cached_property
    def dials(self) -> Dials:
        """The comparison's dials, its budgets and numbers of negatives as further ones; without axes if it has none."""
        dials = Dials.of(self.document)
        budgets = {int(group.labels["epochs"]) for group in self.groups if "epochs" in group.labels}
        counts = {group.facts["num_negatives"] for group in self.groups if "num_negatives" in group.facts}
        more = (Dial(key, tuple(sorted(values))) for key, values in (("epochs", budgets), ("num_negatives", counts)))
        return Dials((*dials.axes, *(dial for dial in more if dial.values))) if dials.axes else dials

    @property
    def systems(self) -> bool:
        """Whether systems are an axis of the comparison."""
        return any("system" in group.labels for group in self.groups)

    @property
    def main(self) -> list[VerdictRow]:
        """Rows of the metric that verdicts are about."""
        return [row for row in self.rows if row.main]

    @property
    def plain(self) -> tuple[CellGroup, ...]:
        """The groups whose figures a page shows: no points, no systems, settings as published."""
        groups = (group for group in self.groups if not {"point", "system"} & {*group.labels})
        return tuple(group for group in groups if group.labels.get("settings", DEFAULT) == DEFAULT)

    def notes(self) -> list[str]:
        """List caveats: cells that are not defined, and what the backbone or data set does not support."""
        left_out = [
            f"{each.get('strategy', 'all')} at {each.get('system') or each['point']} is not defined: {each['reason']}"
            for each in self.document.get("left_out", ())
        ]
        return [*left_out, *self.document.get("remarks", ()), *self.mixed()]

    def versions(self) -> dict[str, list[str]]:
        """Return package -> the versions with which the runs were computed."""
        held = [manifest.get("versions", {}) for group in self.groups for manifest in group.manifests]
        names = dict.fromkeys(name for each in held for name in each)
        return {name: list(dict.fromkeys(each[name] for each in held if name in each)) for name in names}

    def mixed(self) -> list[str]:
        """Remark on runs that were computed in different ways: versions, threads, steps; empty where all agree."""
        several = [f"{name} {' and '.join(each)}" for name, each in self.versions().items() if len(each) > 1]
        text = "the runs were computed with different versions, which may be a part of any difference"
        starts = [manifest.get("started", {}) for group in self.groups for manifest in group.manifests]
        threads = sorted({each["threads"] for each in starts if "threads" in each and each["device"] == "cpu"})
        mixed = f"the runs were computed with {' and '.join(map(str, threads))} threads: their last bits may differ"
        remarks = [f"{text}: {', '.join(several)}"] * bool(several) + [mixed] * (len(threads) > 1)
        plans = self.step_plans()
        if len(plans) > 1:
            remarks.append(f"the runs were trained in {' and in '.join(plans)}: the last bits of gradients may differ")
        return remarks

    def step_plans(self) -> list[str]:
        """Return how the runs computed their steps, in words, each way once."""
        results = [result for group in self.groups for result in group.results]
        return sorted({str(plan) for result in results for plan in StepPlan.of_result(result)})

    def write(self, folder: Path) -> Path:
        """Write statistics.json; returns its path."""
        write_json(folder / FILE, {"rows": [row.plain() for row in (*self.rows, *self.gains, *self.contrasts)]})
        return folder / FILE


def judged(runs: Path, name: str, rules: Rules) -> Findings:
    """Judge the finished cells of a comparison.

    Raises:
        RunError: no such comparison, no finished cell, or runs whose ranks are of different queries.
        UnknownNameError: a data set has no such metric.
    """
    groups, document = _stored(runs, name)
    tables, rules = tables_of(groups, rules), _jointly(groups, rules)
    joined, between = ([], []) if document.get("dials") else (over_all(tables), contrasts(tables))
    rows = [row for table in [*joined, *tables, *between] for row in rows_of(table, rules)]
    return _parted(groups, document, [row.plain() for row in (*rows, *gains_of(tables, tunings_of(document), rules))])


def _parted(groups: tuple[CellGroup, ...], document: Mapping[str, Any], kept: Sequence[Mapping[str, Any]]) -> Findings:
    """Read rows as `write` stores them, so that a page shows the same numbers at once and later."""
    rows = [VerdictRow.read(row) for row in kept]
    there = {group_key(group.labels) for group in groups}  # not those whose runs were deleted since
    rows = [row for row in rows if group_key(vars(row)) in there or OVER_ALL in row.table_key]
    kinds: dict[str, list[VerdictRow]] = {"rows": [], "gains": [], "contrasts": []}
    for row in rows:
        kinds["gains" if row.baseline == BASELINE else "contrasts" if CONTRAST in row.facts else "rows"].append(row)
    return Findings(groups, document, **{kind: tuple(members) for kind, members in kinds.items()})


def judge_so_far(runs: Path, document: Mapping[str, Any], rules: Rules) -> Findings:
    """Judge an unfinished comparison on the main metric of every table, whose verdicts it has to reach.

    Args:
        runs: runs folder.
        document: content of comparison.json for the computed cells (`ComparisonFolder.document`).
        rules: how strategies are compared.
    """
    groups = tuple(grouped(runs, document["cells"]))
    tables, rules = tables_of(groups, rules, main_only=True), _jointly(groups, rules)
    return Findings(groups, document, tuple(row for table in tables for row in rows_of(table, rules)))


def _jointly(groups: Sequence[CellGroup], rules: Rules) -> Rules:
    """Return the rules at a level at which the tables of all training budgets hold at once, so that turns do, too."""
    return replace(rules, alpha=rules.alpha / max(1, len({group.labels.get("epochs") for group in groups})))


def stored(runs: Path, name: str) -> Findings:
    """Read a comparison's stored results; without rows if it was not judged.

    Raises:
        RunError: no such comparison, or no finished cell.
        NegbenchError: a file of another negbench version.
    """
    groups, document = _stored(runs, name)
    path = runs / name / FILE
    if not path.exists():
        return Findings(groups, document)
    try:
        return _parted(groups, document, read_json(path)["rows"])
    except (TypeError, AttributeError, KeyError) as error:
        raise NegbenchError(f"{path} is from another version of negbench: rerun the comparison ({error})") from error


def _stored(runs: Path, name: str) -> tuple[tuple[CellGroup, ...], Mapping[str, Any]]:
    """Read a comparison's groups and comparison.json."""
    return tuple(groups_of(runs, name)), ComparisonFolder(runs / name).read()
