"""Compare two comparisons: their common rows side by side, and the settings that differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from negbench.analysis.columns import DIFFERENCE, MEAN
from negbench.analysis.findings import Findings, stored
from negbench.analysis.leader import FOLDED, row_line
from negbench.analysis.verdicts import VerdictRow
from negbench.analysis.words import label_of, percent
from negbench.errors import OptionError, RunError
from negbench.grid.comparison import AXES, CellGroup
from negbench.report.build import header_of
from negbench.report.page import Page, PageSection, chapters, write_page
from negbench.report.tables import Table


@dataclass(frozen=True)
class Against:
    """Common rows and differing settings of two comparisons.

    Attributes:
        names: of the two, the reported one first.
        rows: pairs of verdicts on the main metric of the first.
        settings: setting -> its values in both, where they differ.
        axes: used to pair rows: the strategy, and every axis with several values in either.
    """

    names: tuple[str, str]
    rows: tuple[tuple[VerdictRow, VerdictRow], ...]
    settings: Mapping[str, tuple[str, str]]
    axes: tuple[str, ...]

    def answer(self) -> str:
        """Say how many verdicts changed, and which."""
        changed = [f"{_named(vars(a), self.axes)} ({_verdicts(a, b)})" for a, b in self.rows if a.verdict != b.verdict]
        text = f"Of {len(self.rows)} rows in both, {len(changed) or 'no'} verdict{'s' * (len(changed) != 1)} changed"
        return f"{text}{': ' * bool(changed)}{', '.join(changed)}."

    def frame(self) -> pd.DataFrame:
        """Build one row per pair: both means and differences with intervals, the mean's change, verdicts."""
        shown = []
        for pair in self.rows:
            line = {axis: getattr(pair[0], axis) for axis in self.axes}
            for column in (MEAN, DIFFERENCE):
                sides = zip(self.names, pair, strict=True)
                line |= {f"{name}: {column.title}": column.text(row_line(row)) for name, row in sides}
            moved = pair[0].mean - pair[1].mean
            shown.append(line | {"moved": "+" * (moved >= 0) + percent(moved, 2), "verdict": _verdicts(*pair)})
        return pd.DataFrame(shown)

    def settings_frame(self) -> pd.DataFrame:
        """Build one row per setting that differs."""
        return pd.DataFrame([(key, *values) for key, values in self.settings.items()], columns=["setting", *self.names])

    def plain(self) -> dict[str, Any]:
        """Return the contents for JSON."""
        rows = [dict(zip(self.names, (a.plain(), b.plain()), strict=True)) for a, b in self.rows]
        return {"answer": self.answer(), "rows": rows, "settings": self.settings_frame().to_dict("records")}


def against(runs: Path, name: str, other: str) -> Against:
    """Pair the rows of two comparisons.

    Raises:
        OptionError: both are the same.
        RunError: one of them is absent or has no tests, or they have no row in common.
    """
    if name == other:
        raise OptionError(f"--against {other}: name another comparison than the reported one")
    first, second = (stored(runs, each) for each in (name, other))
    values = {axis: [{getattr(row, axis) for row in each.rows} for each in (first, second)] for axis in AXES}
    axes = ("strategy", *(axis for axis in AXES if axis != "strategy" and max(map(len, values[axis])) > 1))
    known = {(row.metric, _named(vars(row), axes)): row for row in second.rows}
    keys = [(row, (row.metric, _named(vars(row), axes))) for row in first.main]
    pairs = tuple((row, known[key]) for row, key in keys if key in known)
    if not pairs:
        raise RunError(
            f"'{name}' and '{other}' have no row in common: no strategy was tested on the same metric in both"
        )
    return Against((name, other), pairs, _differing(first, second, axes), axes)


def _named(labels: Mapping[str, Any], axes: tuple[str, ...]) -> str:
    """Join the labels of a row or a group on these axes: 'qure, info-nce'."""
    return ", ".join(str(labels.get(axis, "")) for axis in axes)


def _verdicts(first: VerdictRow, second: VerdictRow) -> str:
    """'worse', or 'undecided → worse' where the other comparison had another verdict."""
    return " → ".join(dict.fromkeys((second.verdict, first.verdict)))


def _differing(first: Findings, second: Findings, axes: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Return the settings of paired cells that differ, with their values in both."""
    differing: dict[str, tuple[list[str], list[str]]] = {}
    groups = {_named(group.labels, axes): group for group in second.groups}
    pairs = [(group, groups[place]) for group in first.groups if (place := _named(group.labels, axes)) in groups]
    for pair in pairs:
        seeds = [{config.seed for config in group.configs} for group in pair]
        a, b = (_values(group, seeds[0] & seeds[1]) for group in pair)
        for key in (key for key in a | b if a.get(key) != b.get(key)):
            for side, values in zip(differing.setdefault(key, ([], [])), (a, b), strict=True):
                side += [value for value in values.get(key, ("-",)) if value not in side]
    return {key: (", ".join(a), ", ".join(b)) for key, (a, b) in differing.items()}


def _values(group: CellGroup, shared: set[int]) -> dict[str, list[str]]:
    """Return setting -> distinct values over the `shared` seeds (some settings depend on the seed), and all seeds."""
    values: dict[str, list[str]] = {}
    for run in (run for run in group.runs if not shared or run.config.seed in shared):
        kept = run.manifest
        line = run.config.flat() | {f"versions.{name}": version for name, version in kept["versions"].items()}
        line |= {"data": kept["dataset"]["val"], "code": kept["code"], "weights": kept["backbone"]["sha256"][:12]}
        for key, value in line.items():
            values.setdefault(key, []).extend([str(value)] * (str(value) not in values.get(key, ())))
    return values | {"seed": [str(config.seed) for config in group.configs]}


def write_against(runs: Path, changes: Against) -> list[Path]:
    """Write the page to `against-OTHER` in the first one's folder; returns its paths, `index.html` first."""
    (name, other), row = changes.names, changes.rows[0]
    text = f"{label_of(row[0].metric)}, in %; differences from {' and '.join(dict.fromkeys(r.baseline for r in row))} "
    text += f"in points, with the simultaneous intervals of each comparison; moved: the mean in {name} minus that in "
    text += f"{other}, in points; verdict: in {other} → in {name}."
    tables = [Table("against", f"{name} against {other}", changes.frame(), text, FOLDED)]
    if changes.settings:
        tables.append(Table("settings", "Settings that differ", changes.settings_frame(), wrapped=changes.names))
    page = Page(
        title=f"negbench: {name} against {other}",
        subtitle="Two comparisons side by side. Every test is within its own comparison.",
        header=tuple(f"{each}: {', '.join(header_of(stored(runs, each).groups))}" for each in changes.names),
        answer=(changes.answer(),),
        facts=tuple((each, str(runs / each)) for each in changes.names),
        chapters=chapters(result=[PageSection("against", "Side by side", "", tuple(tables))]),
    )
    return write_page(runs / name / f"against-{other}", page)
