"""A comparison on disk: the folder that names its cells."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from negbench.display import log
from negbench.errors import DataError, NegbenchError, OptionError, printable_json
from negbench.grid.axis import AXES, OWN_STRATEGY
from negbench.grid.comparison_record import SCHEMA, ComparisonRecord
from negbench.machine import files
from negbench.store.parents import Parent
from negbench.store.tracking import Tracker

if TYPE_CHECKING:
    from negbench.grid.cells import Cell, Outcome

RATES = "-rates"  # ends the name of the folder of the trials that choose rates and temperatures
FINAL = "-final"  # ends that of the comparison of a study's best with the default
_COMMANDS = {"comparison": "compare", "claims": "claims", "final": "study"}  # kind -> the command that makes it
_KINDS = {"comparison": "a comparison", "claims": "claims", "study": "a study", "final": "the final runs of a study"}


def read_document(path: Path) -> dict[str, Any]:
    """Read a comparison.json without control characters: a terminal would obey those of a received one.

    Raises:
        DataError: it is no object with a list of cells.
    """
    document = printable_json(files.read_json(path))
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise DataError(f"{path} is damaged: expected an object with a list of cells: rerun the command that wrote it")
    return {"kind": "comparison", **document}


def rerun_line(folder: Path, kind: str) -> str:
    """Return what makes a folder's files anew: 'rerun its command, negbench compare ... --name demo'."""
    command = _COMMANDS.get(kind, "compare")
    name = folder.name
    if kind == "final":  # its study has the name
        name = name.removesuffix(FINAL)
    return f"rerun its command, negbench {command} ... --name {name}"


def check_name(folder: Path, kind: str) -> None:
    """Refuse a name that something of another kind has in the runs folder.

    Args:
        folder: the named folder.
        kind: comparison, claims, final or study.

    Raises:
        OptionError: the name is taken; says by what, and what to do.
    """
    present = kind_of(folder)
    if present not in (None, kind):
        noun = _KINDS.get(str(present), present)
        raise OptionError(f"--name {folder.name}: {folder} is already {noun}: give another --name")


def kind_of(folder: Path) -> str | None:
    """Return what a folder is: comparison, claims, study, final, 'a run' or 'a file'; None for a free name."""
    if folder.exists() and not folder.is_dir():
        return "a file"
    if (folder / "config.json").exists():
        return "a run"
    if (folder / "study.json").exists():
        return "study"
    path = folder / "comparison.json"
    return read_document(path)["kind"] if path.exists() else None


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
    def lock(self) -> Iterator[None]:
        """Lock the folder, so that two commands of one name do not mix their cells; the second one waits.

        A folder that cannot be written is not locked, because it can only be read.
        """
        lock = self.path / ".lock"
        with ExitStack() as stack:
            if not self.path.exists() or os.access(self.path, os.W_OK):
                try:
                    stack.enter_context(files.lock_file(lock, wait=False))
                except BlockingIOError:
                    kind = self.about.get("kind", "comparison")
                    log.warning("%s %s is being computed by another process: waiting for it", kind, self.path.name)
                    stack.enter_context(files.lock_file(lock))
            yield

    def write(self, outcomes: Iterable[Outcome]) -> None:
        """Write comparison.json: the run of each cell, and `about`."""
        files.write_json(self.path / "comparison.json", self.document(outcomes))

    def settle(self, outcomes: Iterable[Outcome]) -> None:
        """Write comparison.json, unless it names these cells and no others."""
        if not self.lists(outcomes, exactly=True):
            self.write(outcomes)

    def lists(self, outcomes: Iterable[Outcome], *, exactly: bool = False) -> bool:
        """Whether comparison.json names these cells; unless `exactly`, it may name more, e.g. those of a later look."""
        path = self.path / "comparison.json"
        if not path.exists():
            return False
        stored = read_document(path)
        document = json.loads(json.dumps(self.document(outcomes)))  # turns tuples into lists, as in JSON
        if exactly:
            return bool(stored == document)
        stored_rows = {json.dumps(row) for row in stored.get("cells", ())}
        same_about = all(stored.get(key) == value for key, value in document.items() if key != "cells")
        return same_about and all(json.dumps(row) in stored_rows for row in document["cells"])

    def document(self, outcomes: Iterable[Outcome]) -> dict[str, Any]:
        """Return the contents of comparison.json for these cells."""
        rows: list[dict[str, Any]] = []
        for outcome in outcomes:
            cell = outcome.cell
            of_run = {"seed": cell.seed, "hash": cell.hash, "run": outcome.run_id, "error": outcome.error}
            rows.append({**cell.columns, **of_run})
        rows.sort(key=_row_sort_key)
        return {"kind": "comparison", "schema": SCHEMA, "cells": rows, **self.about}

    def read(self) -> dict[str, Any]:
        """Return comparison.json; one of schema 1 in the form of schema 2.

        Raises:
            NegbenchError: a file of another negbench version.
        """
        path = self.path / "comparison.json"
        document = read_document(path)
        try:
            _renew(document)
            ComparisonRecord.model_validate({"kind": "comparison", "schema": SCHEMA, **document})
        except ValidationError as error:
            first = error.errors()[0]
            flaw = first["msg"]
            if first["loc"]:
                key = ".".join(str(part) for part in first["loc"])
                flaw = f"{key}: {flaw}"
            problem = f"{path} is from another version of negbench, or was changed ({flaw})"
            raise NegbenchError(f"{problem}: {rerun_line(self.path, document['kind'])}") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise NegbenchError(f"{path} is damaged ({error}): {rerun_line(self.path, document['kind'])}") from error
        return document

    def cells(self) -> list[dict[str, Any]]:
        """Rows of comparison.json."""
        return list(self.read()["cells"])

    def parent(self, uri: str | None) -> Parent:
        """Return the parent of the cells' copies in an MLflow store."""
        return Parent(Tracker.open(self.path.parent, uri), self.path)


def _renew(document: dict[str, Any]) -> None:
    """Bring a comparison.json of schema 1 into the form of schema 2."""
    if document.get("schema") == 1:
        document["schema"] = SCHEMA
    if "undefined" in document:
        document["left_out"] = document.pop("undefined")
    systems = document.pop("systems", None)
    if systems:
        strategy_of_system = systems["own"]
        document["remarks"] = systems["remarks"]
        rows = [row for row in document["cells"] if row["system"] in systems["names"]]  # without their corners
        document["cells"] = [
            {**row, OWN_STRATEGY: row["strategy"] == strategy_of_system.get(row["system"])} for row in rows
        ]


def _row_sort_key(row: dict[str, Any]) -> list[str]:
    """Return what rows of comparison.json are sorted by: their labels, then their seed."""
    return [*(str(row.get(axis, "")) for axis in AXES), f"{row['seed']:09d}"]


def default_name(cells: Sequence[Cell]) -> str:
    """Return the default name of a comparison: the same grid gets the same name in every version of the code."""
    grid = sorted(json.dumps(cell.config.identity(), sort_keys=True) for cell in cells)
    return f"compare-{hashlib.sha256(''.join(grid).encode()).hexdigest()[:8]}"
