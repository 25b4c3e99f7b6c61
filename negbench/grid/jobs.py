"""Cells as a file, for any batch system: the command writes a line for each, jobs compute them, the next call collects.

    python -m negbench.grid.jobs FOLDER NUMBER

computes the cell in line NUMBER, from 0, of FOLDER/cells.jsonl.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from negbench.errors import NegbenchError, OptionError, PendingError, RunError, without_secrets
from negbench.grid.cells import Task, compute_task
from negbench.grid.executors import Event, Function, Notify, death, outcome_of
from negbench.loop.runs import DATA, plan_run
from negbench.machine import files
from negbench.machine.received import read_json_text
from negbench.machine.signals import stop_on_signals
from negbench.settings.config import ResolvedConfig


@dataclass(frozen=True)
class Jobs:
    """Hands out the cells of a round; jobs of a batch system, which share the runs folder, compute them.

    Args:
        folder: of the file of cells, and of a note on each cell whose job started and has no result.
        retries: how often a cell is handed out again after its job died.
    """

    folder: Path
    retries: int = 1
    workers: ClassVar[int] = 1
    elsewhere: ClassVar[bool] = True

    def run(self, function: Function, tasks: Sequence[Task]) -> Iterator[Event]:
        """See `Executor`; yields the failures of jobs once no cell is left to compute.

        Raises:
            PendingError: cells are left; says how to compute them.
        """
        ended, left = list[Event](), list[Task]()
        for index, task in enumerate(tasks):
            note = _note(self.folder, task.planned.hash)
            known: dict[str, Any] = files.read_json(note) if note.exists() else {"starts": 0, "error": ""}
            event = death(index, "its job died", known["starts"], self.retries)
            if known["error"]:
                event = Event(index, "failed", known["error"])
            if event.kind == "failed":
                ended.append(event)
            else:
                left.append(task)
        if left:
            self._hand_out(left)
        for event in ended:
            _note(self.folder, tasks[event.index].planned.hash).unlink()  # a rerun hands it out again
            yield event

    def _hand_out(self, tasks: Sequence[Task]) -> None:
        rows = list[str]()
        for task in tasks:
            if task.uri and without_secrets(task.uri) != task.uri:
                raise OptionError(
                    "--tracking-uri has a password, which a file of cells would show: give it in MLFLOW_*"
                )
            row: dict[str, Any] = {"hash": task.planned.hash, "config": task.planned.config.model_dump(mode="json")}
            row |= {"runs": str(task.runs.absolute()), "uri": task.uri, "tags": dict(task.tags)}
            rows.append(json.dumps(row) + "\n")
        files.write_text(self.folder / "cells.jsonl", "".join(rows))
        line = f"python -m negbench.grid.jobs {self.folder} NUMBER"
        raise PendingError(f"run `{line}` for 0 to {len(rows) - 1}, then this command again")


def _note(folder: Path, key: str) -> Path:
    return folder / f"{key[:16]}.json"


def compute_line(folder: Path, number: int) -> Event:
    """Compute one cell of the file; note that it was started, and how it failed.

    Raises:
        NegbenchError: there is no such line.
    """
    path = folder / "cells.jsonl"
    with files.intact(path):
        rows = read_json_text(path).splitlines()
    if not 0 <= number < len(rows):
        raise NegbenchError(f"{path} has lines 0 to {len(rows) - 1}, not {number}")
    row = json.loads(rows[number])
    note = _note(folder, row["hash"])
    starts = 1 + (files.read_json(note)["starts"] if note.exists() else 0)
    files.write_json(note, {"starts": starts, "error": ""})
    event = outcome_of(_compute, number, row, lambda note: sys.stderr.write(f"{note.value}\n"))
    if event.kind == "failed":
        files.write_json(note, {"starts": starts, "error": event.value})
    else:
        note.unlink(missing_ok=True)
    return event


def _compute(row: dict[str, Any], notify: Notify) -> str:
    planned = plan_run(ResolvedConfig.model_validate(row["config"]), DATA)
    if planned.hash != row["hash"]:
        raise RunError("this machine has different code, data or weights than the planning one: sync them")
    return compute_task(Task(planned, Path(row["runs"]), row["uri"], row["tags"]), notify)[0]


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m negbench.grid.jobs", description="Compute one handed-out cell.")
    parser.add_argument("folder", type=Path, help="that of --executor jobs:FOLDER")
    parser.add_argument("number", type=int, help="line of its cells.jsonl, from 0")
    given = parser.parse_args()
    stop_on_signals()
    try:
        event = compute_line(given.folder, given.number)
    except NegbenchError as error:
        parser.error(str(error))
    sys.stderr.write(f"{event.detail or event.value}\n")
    return int(event.kind == "failed")


if __name__ == "__main__":
    sys.exit(_main())
