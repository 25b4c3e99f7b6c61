"""A comparison on disk: the folder that names its cells, and its finished runs grouped for tables."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from negbench.display import log
from negbench.errors import OptionError, RunError
from negbench.machine import files
from negbench.settings.config import RunConfig
from negbench.store.parents import Parent
from negbench.store.runfolder import RunFolder
from negbench.store.tracking import Tracker

if TYPE_CHECKING:
    from negbench.grid.cells import Cell, Outcome

KEY = ("strategy", "loss", "backbone", "dataset")
AXES = ("system", "point", "settings", "epochs", *KEY)  # the first four only where a comparison has such an axis
SCHEMA = 2  # of comparison.json
_OF_RUN = ("seed", "hash", "run", "error")  # keys of a cell that are neither labels nor facts

_KINDS = {"comparison": "a comparison", "claims": "claims", "study": "a study", "final": "the final runs of a study"}


def check_name(folder: Path, kind: str) -> None:
    """Refuse a name that something of another kind has in the runs folder.

    Args:
        folder: the named folder.
        kind: comparison, claims, final or study.

    Raises:
        OptionError: the name is taken; says by what, and what to do.
    """
    there = _kind_of(folder)
    if there not in (None, kind):
        what = _KINDS.get(str(there), there)
        raise OptionError(f"--name {folder.name}: {folder} is already {what}: give another --name")


def _kind_of(folder: Path) -> str | None:
    if folder.exists() and not folder.is_dir():
        return "a file"
    if (folder / "config.json").exists():
        return "a run"
    if (folder / "study.json").exists():
        return "study"
    path = folder / "comparison.json"
    return str(files.read_json(path).get("kind", "comparison")) if path.exists() else None


Item = TypeVar("Item")
Key = TypeVar("Key")


def together(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by their keys, in the order in which these occur."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


GroupKey = tuple[str, ...]  # a group's labels of `AXES`, '' for those that the comparison lacks


def group_key(labels: Mapping[str, Any]) -> GroupKey:
    """Return the key of the group that a cell belongs to, whatever its seed."""
    return tuple(str(labels.get(axis, "")) for axis in AXES)


@dataclass(frozen=True)
class ComparisonFolder:
    """A comparison's folder in the runs folder; its MLflow experiment has the same name.

    Args:
        path: the folder.
        about: contents of comparison.json besides the cells: dials, left_out, remarks, rates, tuned; and its kind, if
            that is not comparison.
    """

    path: Path
    about: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the folder, so that two commands of one name do not mix their cells; the second one waits.

        A folder that cannot be written is not locked, because it can only be read.
        """
        lock = self.path / ".lock"
        with ExitStack() as stack:
            if not self.path.exists() or os.access(self.path, os.W_OK):
                try:
                    stack.enter_context(files.locked(lock, wait=False))
                except BlockingIOError:
                    what = f"{self.about.get('kind', 'comparison')} {self.path.name}"
                    log.warning("%s is being computed by another process: waiting for it", what)
                    stack.enter_context(files.locked(lock))
            yield

    def write(self, outcomes: Iterable[Outcome]) -> None:
        """Write comparison.json: the run of each cell, and `about`."""
        files.write_json(self.path / "comparison.json", self.document(outcomes))

    def settle(self, outcomes: Iterable[Outcome]) -> None:
        """Write comparison.json, unless it names these cells and no others."""
        if not self.holds(outcomes, exactly=True):
            self.write(outcomes)

    def holds(self, outcomes: Iterable[Outcome], *, exactly: bool = False) -> bool:
        """Whether comparison.json names these cells; unless `exactly`, it may name more, e.g. those of a later look."""
        path = self.path / "comparison.json"
        if not path.exists():
            return False
        there = files.read_json(path)
        wanted = json.loads(json.dumps(self.document(outcomes)))  # turns tuples into lists, as in JSON
        if exactly:
            return bool(there == wanted)
        cells = {json.dumps(row) for row in there.get("cells", ())}
        about = all(there.get(key) == value for key, value in wanted.items() if key != "cells")
        return about and all(json.dumps(row) in cells for row in wanted["cells"])

    def document(self, outcomes: Iterable[Outcome]) -> dict[str, Any]:
        """Return the contents of comparison.json for these cells."""
        rows: list[dict[str, Any]] = [
            {**o.cell.labels, **o.cell.facts}
            | {"seed": o.cell.seed, "hash": o.cell.hash, "run": o.run_id, "error": o.error}
            for o in outcomes
        ]
        rows.sort(key=lambda row: [str(row.get(k, "")) for k in AXES] + [f"{row['seed']:09d}"])
        return {"kind": "comparison", "schema": SCHEMA, "cells": rows, **self.about}

    def read(self) -> dict[str, Any]:
        """Return comparison.json; one of schema 1 in the form of schema 2."""
        document: dict[str, Any] = files.read_json(self.path / "comparison.json")
        if "undefined" in document:
            document["left_out"] = document.pop("undefined")
        if systems := document.pop("systems", None):
            own, document["remarks"] = systems["own"], systems["remarks"]
            rows = [row for row in document["cells"] if row["system"] in systems["names"]]  # without their corners
            document["cells"] = [{**row, "own": row["strategy"] == own.get(row["system"])} for row in rows]
        return document

    def cells(self) -> list[dict[str, Any]]:
        """Rows of comparison.json."""
        return list(self.read()["cells"])

    def parent(self, uri: str | None) -> Parent:
        """Return the parent of the cells' copies in an MLflow store."""
        return Parent(Tracker.open(self.path.parent, uri), self.path)


def default_name(cells: Sequence[Cell]) -> str:
    """Return the default name of a comparison: the same grid gets the same name in every version of the code."""
    grid = sorted(json.dumps(cell.config.identity(), sort_keys=True) for cell in cells)
    return f"compare-{hashlib.sha256(''.join(grid).encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class CellGroup:
    """Runs of one (strategy, loss, backbone, dataset), one per seed, with the typed columns of their cells."""

    labels: dict[str, str]
    runs: tuple[RunFolder, ...]  # by seed
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def plugin(self) -> str:
        """The strategy's plug-in."""
        return str(self.facts.get("plugin") or self.configs[0].strategy.name)  # schema 1 has no facts

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        """result.json of each run."""
        return [run.result for run in self.runs]

    @cached_property
    def manifests(self) -> list[dict[str, Any]]:
        """config.json of each run."""
        return [run.manifest for run in self.runs]

    @cached_property
    def configs(self) -> list[RunConfig]:
        """Configuration of each run."""
        return [run.config for run in self.runs]

    @cached_property
    def points(self) -> list[list[dict[str, float]]]:
        """metrics.jsonl of each run."""
        return [run.metrics() for run in self.runs]

    def values(self, *path: str) -> list[float]:
        """Return one number from every run's result that has it, e.g. ("metrics", "average/recall_at_10")."""
        numbers = []
        for result in self.results:
            value: Any = result
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                numbers.append(float(value))
        return numbers

    def curve(self, metric: str) -> tuple[list[int], list[float], NDArray[np.float64]]:
        """Return a metric of the scored split over training: epochs trained [E], steps [E], values [seeds, E].

        E counts the points that all seeds have, the untrained model's (0 epochs) first; E = 0 if a seed has none.
        """
        key = f"{'val' if self.configs[0].eval.reported else 'dev'}/{metric}"
        tables = [{int(point["epoch"]) + 1: point for point in points if key in point} for points in self.points]
        epochs = sorted(set.intersection(*map(set, tables)))
        values = np.array([[table[epoch][key] for epoch in epochs] for table in tables])
        return epochs, [tables[0][epoch]["step"] for epoch in epochs], values


def groups_of(runs: Path, name: str) -> list[CellGroup]:
    """Return the finished cells of a comparison in groups, sorted by seed.

    Raises:
        RunError: no comparison of that name, or one without any finished cell.
    """
    folder = ComparisonFolder(runs / name)
    if not (folder.path / "comparison.json").exists():
        known = sorted(p.parent.name for p in runs.glob("*/comparison.json"))
        raise RunError(f"no comparison '{name}' in {runs}; known: {', '.join(known) or 'none'}")
    with files.intact(folder.path / "comparison.json"):
        groups = grouped(runs, folder.cells())
    if not groups:
        raise RunError(f"comparison '{name}' has no finished cell yet")
    return groups


def grouped(runs: Path, cells: Iterable[Mapping[str, Any]]) -> list[CellGroup]:
    """Group the finished ones of these rows of comparison.json, sorted by seed."""
    finished = [row for row in cells if row["run"] is not None and (runs / row["run"] / "result.json").exists()]
    return [
        CellGroup(
            {k: v for k, v in zip(AXES, place, strict=True) if v},
            tuple(RunFolder(runs / row["run"]) for row in sorted(rows, key=lambda row: row["seed"])),
            {key: value for key, value in rows[0].items() if key not in (*AXES, *_OF_RUN)},
        )
        for place, rows in together(finished, group_key).items()
    ]
