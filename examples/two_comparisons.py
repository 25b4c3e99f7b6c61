"""Put two comparisons side by side: the rows of both, the verdicts that changed, and the settings that differ.

    python examples/two_comparisons.py runs/demo runs/earlier

Every verdict is within its own comparison; no test compares the two.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd

from negbench.analysis.findings import Findings, read_findings
from negbench.analysis.frame import shared_value
from negbench.analysis.verdict_record import Verdict
from negbench.grid.axis import AXES


def axes_of(first: Findings, second: Findings) -> list[str]:
    """Return what names a row: the strategy, and every axis with several values in either."""
    axes = []
    for axis in AXES:
        several = [len({getattr(row, axis) for row in findings.verdicts}) > 1 for findings in (first, second)]
        if axis == "strategy" or any(several):
            axes.append(axis)
    return axes


def rows(first: Findings, second: Findings) -> pd.DataFrame:
    """Return each row of both on the main metric of the first: the means in %, the change in points, the verdicts."""
    axes = axes_of(first, second)

    def key_of(row: Verdict) -> tuple[Any, ...]:
        return tuple(getattr(row, axis) for axis in axes)

    counterparts = {(row.metric, key_of(row)): row for row in second.verdicts}
    records = []
    for row in first.main_verdicts:
        counterpart = counterparts.get((row.metric, key_of(row)))
        if counterpart is None:
            continue
        mean = 100 * row.mean.value
        other_mean = 100 * counterpart.mean.value
        changed = row.verdict != counterpart.verdict
        means = (mean, other_mean, mean - other_mean)
        records.append((*key_of(row), *means, row.verdict, counterpart.verdict, changed))
    columns = [*axes, "mean", "other mean", "moved", "verdict", "other verdict", "changed"]
    return pd.DataFrame(records, columns=columns)


def settings(first: Findings, second: Findings) -> pd.DataFrame:
    """Return the settings, versions, data, code and weights that differ in rows of both, over the seeds of both."""
    axes = axes_of(first, second)

    def key_of(cells: pd.DataFrame) -> tuple[Any, ...]:
        return tuple(shared_value(cells, axis) for axis in axes)

    counterparts = {key_of(cells): cells for cells in second.groups}
    values_of_first: dict[str, set[str]] = defaultdict(set)
    values_of_second: dict[str, set[str]] = defaultdict(set)
    for cells in first.groups:
        counterpart = counterparts.get(key_of(cells))
        if counterpart is None:
            continue
        seeds = set(cells["seed"]) & set(counterpart["seed"])
        first_values = values(cells, seeds)
        second_values = values(counterpart, seeds)
        for key in first_values.keys() | second_values.keys():
            if first_values[key] != second_values[key]:
                values_of_first[key] |= first_values[key]
                values_of_second[key] |= second_values[key]
    records = []
    for key in sorted(values_of_first):
        records.append((key, _text_of(values_of_first[key]), _text_of(values_of_second[key])))
    return pd.DataFrame(records, columns=["setting", "value", "other value"])


def _text_of(settings_values: set[str]) -> str:
    return ", ".join(sorted(settings_values)) or "-"


def values(cells: pd.DataFrame, seeds: set[int]) -> dict[str, set[str]]:
    """Return setting -> its values over the runs of these seeds (of all, if there are none)."""
    values_by_setting: dict[str, set[str]] = defaultdict(set)
    for run in cells["stored"]:
        if seeds and run.config.seed not in seeds:
            continue
        manifest = run.manifest
        settings_of_run = run.config.flat()
        for name, version in manifest["versions"].items():
            settings_of_run[f"versions.{name}"] = version
        settings_of_run["data"] = manifest["dataset"]["val"]
        settings_of_run["code"] = manifest["code"]
        settings_of_run["weights"] = manifest["backbone"]["sha256"][:12]
        for key, value in settings_of_run.items():
            values_by_setting[key].add(str(value))
    return values_by_setting


if __name__ == "__main__":
    both = [read_findings(Path(folder).parent, Path(folder).name) for folder in sys.argv[1:3]]
    for frame in (rows(*both), settings(*both)):
        print(frame.round(2).to_string(index=False))
