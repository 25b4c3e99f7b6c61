"""Results of a comparison: judged from its folder by the rules, stored as statistics.json, read by its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from negbench.analysis.answer import answer
from negbench.analysis.decomposition import Gain, gains_of, systems_answer
from negbench.analysis.dial_points import dials_answer
from negbench.analysis.plateau import rates_answer, trained_out
from negbench.analysis.tuned_gain import (
    DEFAULT,
    TUNED,
    TunedRow,
    TuningGain,
    tuned_answer,
    tuned_rows,
    tuning_gains,
    tunings_of,
)
from negbench.analysis.verdicts import OVER_ALL, Rules, VerdictRow, over_all, rows_of, tables_of
from negbench.errors import NegbenchError
from negbench.grid.comparison import Group, grouped, groups_of, place_of
from negbench.grid.dials import Dials
from negbench.machine.files import read_json, write_json

FILE = "statistics.json"


@dataclass(frozen=True)
class Findings:
    """A comparison's finished cells, its axes, and its test results.

    Attributes:
        groups: finished cells, grouped over seeds, without the corners of systems.
        document: comparison.json.
        rows: verdicts.
        gains, tuning: other stored results; empty if the comparison has no such axis.
    """

    groups: tuple[Group, ...]
    document: Mapping[str, Any]
    rows: tuple[VerdictRow, ...] = ()
    gains: tuple[Gain, ...] = ()
    tuning: tuple[TuningGain, ...] = ()

    @cached_property
    def dials(self) -> Dials:
        """The comparison's dials; without axes if it has none."""
        return Dials.of(self.document)

    @property
    def systems(self) -> Mapping[str, Any]:
        """The systems in comparison.json; empty if the comparison has none."""
        systems: Mapping[str, Any] = self.document.get("systems") or {}
        return systems

    @property
    def main(self) -> list[VerdictRow]:
        """Rows of the metric that verdicts are about."""
        return [row for row in self.rows if row.main]

    @cached_property
    def tuned(self) -> list[TunedRow]:
        """Default and tuned results side by side."""
        return tuned_rows(self.rows, tunings_of(self.document)[1], self.tuning)

    @property
    def plain(self) -> tuple[Group, ...]:
        """The groups whose figures a page shows: no points, no systems, settings as published."""
        return tuple(
            group
            for group in self.groups
            if not {"point", "system"} & set(group.labels) and group.labels.get("settings", DEFAULT) == DEFAULT
        )

    def answer(self) -> list[str]:
        """Write the answer in sentences."""
        if not self.rows:
            return []
        lines = []
        if self.dials.axes:
            lines += dials_answer(self.dials, self.main)
        elif self.systems:
            lines += systems_answer(self.main, self.gains)
        else:
            rows = [row for row in self.rows if row.settings != TUNED]
            lines += answer(self.plain or self.groups, rows)
        lines += [*rates_answer(self.document), *trained_out(self.groups, self.main)]
        return lines + (tuned_answer(tunings_of(self.document)[0], self.tuned) if self.tuned else [])

    def notes(self) -> list[str]:
        """List caveats: cells that are not defined, and what the backbone or data set does not support."""
        undefined = [
            f"{each['strategy']} at {each.get('system') or each.get('point')} is not defined: {each['reason']}"
            for each in self.document.get("undefined", ())
        ]
        return [*undefined, *self.systems.get("remarks", ())]

    def write(self, folder: Path) -> Path:
        """Write statistics.json; returns its path."""
        document: dict[str, Any] = {"rows": [row.plain() for row in self.rows]}
        for name in _PARTS:
            document[name] = [asdict(each) for each in getattr(self, name)]
        write_json(folder / FILE, document)
        return folder / FILE


_PARTS: Mapping[str, type[Any]] = {
    "gains": Gain,
    "tuning": TuningGain,
}


def judged(runs: Path, name: str, rules: Rules) -> Findings:
    """Judge the finished cells of a comparison.

    Raises:
        RunError: no such comparison, no finished cell, or runs whose ranks are of different queries.
        UnknownNameError: a data set has no such metric.
    """
    groups, corners, document = _stored(runs, name)
    systems: Mapping[str, Any] = document.get("systems") or {}
    tables = tables_of(groups, rules, systems.get("own"))
    joined = [] if document.get("dials") else over_all(tables)
    rows = [row for table in [*joined, *tables] for row in rows_of(table, rules)]
    return Findings(
        groups=groups,
        document=document,
        rows=tuple(VerdictRow.read(row.plain()) for row in rows),  # as a page reads them back
        gains=tuple(gains_of(tables_of(corners, rules), systems.get("corners", {}), rules)),
        tuning=tuple(tuning_gains(tables, tunings_of(document)[1], rules.alpha)),
    )


def standing(runs: Path, document: Mapping[str, Any], rules: Rules) -> Findings:
    """Judge an unfinished comparison on the main metric of every table, whose verdicts it has to reach.

    Args:
        runs: runs folder.
        document: content of comparison.json for the computed cells (`ComparisonFolder.document`).
        rules: how strategies are compared.
    """
    groups, _ = _parted(grouped(runs, document["cells"]), document)
    tables = tables_of(groups, rules, (document.get("systems") or {}).get("own"), main_only=True)
    return Findings(groups, document, tuple(row for table in tables for row in rows_of(table, rules)))


def stored(runs: Path, name: str) -> Findings:
    """Read a comparison's stored results; without rows if it was not judged.

    Raises:
        RunError: no such comparison, or no finished cell.
        NegbenchError: a file of another negbench version.
    """
    groups, _, document = _stored(runs, name)
    path = runs / name / FILE
    if not path.exists():
        return Findings(groups, document)
    kept = read_json(path)
    try:
        parts = {key: tuple(kind(**_gaps(each)) for each in kept[key]) for key, kind in _PARTS.items()}
        rows = [VerdictRow.read(row) for row in kept["rows"]]
    except (TypeError, AttributeError, KeyError) as error:
        raise NegbenchError(f"{path} is from another version of negbench: rerun the comparison ({error})") from error
    there = {place_of(group.labels) for group in groups}  # not those whose runs were deleted since
    rows = [row for row in rows if place_of(vars(row)) in there or OVER_ALL in row.place]
    return Findings(groups, document, tuple(rows), **parts)


def _gaps(row: Mapping[str, Any]) -> dict[str, Any]:
    """Replace null, a gap in JSON, by NaN."""
    return {key: float("nan") if value is None else value for key, value in row.items()}


def _stored(runs: Path, name: str) -> tuple[tuple[Group, ...], list[Group], Mapping[str, Any]]:
    """Read a comparison's own groups, the groups of its systems' corners, and comparison.json."""
    groups, document = groups_of(runs, name), read_json(runs / name / "comparison.json")
    return *_parted(groups, document), document


def _parted(groups: Sequence[Group], document: Mapping[str, Any]) -> tuple[tuple[Group, ...], list[Group]]:
    """Split groups into a comparison's own and those of its systems' corners."""
    systems: Mapping[str, Any] = document.get("systems") or {}
    labels = {corner["label"] for corners in systems.get("corners", {}).values() for corner in corners}
    corners = [group for group in groups if group.labels.get("system") in labels]
    own = [group for group in groups if not systems or group.labels.get("system") in systems.get("names", ())]
    return tuple(own), corners
