"""Put two comparisons side by side: the rows of both, the verdicts that changed, and the settings that differ.

    python examples/two_comparisons.py runs/demo runs/earlier

Every verdict is within its own comparison; no test compares the two.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import pandas as pd

from negbench.analysis.findings import Findings, read_findings
from negbench.analysis.frame import shared_value
from negbench.grid.axis import AXES


def axes_of(*both: Findings) -> list[str]:
    """Return what names a row: the strategy, and every axis with several values in either."""
    several = {axis for each in both for axis in AXES if len({getattr(row, axis) for row in each.verdicts}) > 1}
    return [axis for axis in AXES if axis == "strategy" or axis in several]


def rows(one: Findings, other: Findings) -> pd.DataFrame:
    """Return each row of both on the main metric of `one`: the means in %, the change in points, the verdicts."""
    axes = axes_of(one, other)
    found = {(row.metric, *(getattr(row, axis) for axis in axes)): row for row in other.verdicts}
    records = []
    for row in one.main_verdicts:
        place = tuple(getattr(row, axis) for axis in axes)
        if before := found.get((row.metric, *place)):
            mean, other_mean = row.mean.value, before.mean.value
            means = (100 * mean, 100 * other_mean, 100 * (mean - other_mean))
            records.append((*place, *means, row.verdict, before.verdict, row.verdict != before.verdict))
    columns = [*axes, "mean", "other mean", "moved", "verdict", "other verdict", "changed"]
    return pd.DataFrame(records, columns=columns)


def settings(one: Findings, other: Findings) -> pd.DataFrame:
    """Return the settings, versions, data, code and weights that differ in rows of both, over the seeds of both."""
    axes, differing = axes_of(one, other), defaultdict[str, tuple[set[str], set[str]]](lambda: (set(), set()))
    groups = {tuple(shared_value(cells, axis) for axis in axes): cells for cells in other.groups}
    for cells in one.groups:
        before = groups.get(tuple(shared_value(cells, axis) for axis in axes))
        if before is not None:
            seeds = {*cells["seed"]} & {*before["seed"]}
            first, second = values(cells, seeds), values(before, seeds)
            for key in first.keys() | second.keys():
                if first[key] != second[key]:
                    differing[key][0].update(first[key])
                    differing[key][1].update(second[key])
    records = [(key, *(", ".join(sorted(each)) or "-" for each in sides)) for key, sides in sorted(differing.items())]
    return pd.DataFrame(records, columns=["setting", "value", "other value"])


def values(cells: pd.DataFrame, seeds: set[int]) -> dict[str, set[str]]:
    """Return setting -> its values over the runs of these seeds (of all, if there are none)."""
    found = defaultdict[str, set[str]](set)
    for run in cells["stored"]:
        if seeds and run.config.seed not in seeds:
            continue
        kept = run.manifest
        line = run.config.flat() | {f"versions.{name}": version for name, version in kept["versions"].items()}
        line |= {"data": kept["dataset"]["val"], "code": kept["code"], "weights": kept["backbone"]["sha256"][:12]}
        for key, value in line.items():
            found[key].add(str(value))
    return found


if __name__ == "__main__":
    both = [read_findings(Path(folder).parent, Path(folder).name) for folder in sys.argv[1:3]]
    for frame in (rows(*both), settings(*both)):
        print(frame.round(2).to_string(index=False))
