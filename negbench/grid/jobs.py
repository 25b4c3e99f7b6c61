"""Cells as a file, for any batch system: the command writes a line for each, jobs compute them, the next call collects.

    python -m negbench.grid.jobs FOLDER NUMBER --runs-dir R [--plugin FILE] [--tracking-uri U]

computes the cell in line NUMBER, from 0, of FOLDER/cells.jsonl. The file is data: it names a run's configuration and
the hash that it must have. Where results are written, which code is imported and which store is connected to, only the
command says.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from negbench.errors import DataError, NegbenchError, OptionError, PendingError, RunError, printable, without_secrets
from negbench.grid.cell_task import Task, compute_task
from negbench.grid.executors import Event, Function, Notify, death, last_event
from negbench.loop.runs import DATA, plan_run
from negbench.machine import files
from negbench.machine.received import read_json_text
from negbench.machine.signals import stop_on_signals
from negbench.settings.config import ResolvedConfig


class JobLine(BaseModel):
    """A line of cells.jsonl; one that holds more is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    config: dict[str, Any]
    tags: dict[str, str]


class JobNote(BaseModel):
    """FOLDER/HASH.json: how often a cell was started, and how it failed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    starts: Annotated[int, Field(ge=0)] = 0
    error: str = ""


@dataclass(frozen=True)
class Trusted:
    """What a job may use, as its command says.

    Args:
        runs: runs folder.
        plugins: plug-in files that may be imported.
        uri: MLflow store, as `Tracker.open` takes it.
    """

    runs: Path
    plugins: Sequence[Path] = ()
    uri: str | None = None


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
        ended = list[Event]()
        unfinished = list[Task]()
        for index, task in enumerate(tasks):
            note = _read_note(_note_path(self.folder, task.planned.hash))
            event = death(index, "its job died", note.starts, self.retries)
            if note.error:
                event = Event(index, "failed", printable(note.error))
            if event.kind == "failed":
                ended.append(event)
            else:
                unfinished.append(task)
        if unfinished:
            self._hand_out(unfinished)
        for event in ended:
            _note_path(self.folder, tasks[event.index].planned.hash).unlink()  # a rerun hands it out again
            yield event

    def _hand_out(self, tasks: Sequence[Task]) -> None:
        """Write the file of cells, and raise PendingError, which says how to compute them."""
        rows = list[str]()
        plugins = dict[str, None]()
        for task in tasks:
            line = JobLine(
                hash=task.planned.hash, config=task.planned.config.model_dump(mode="json"), tags=dict(task.tags)
            )
            rows.append(line.model_dump_json() + "\n")
            plugins |= dict.fromkeys(str(file) for file in task.planned.config.plugins)
        words = ["--runs-dir", str(tasks[0].runs.absolute())]
        for plugin in plugins:
            words += ["--plugin", plugin]
        uri = tasks[0].uri
        if uri:
            if without_secrets(uri) != uri:
                raise OptionError("--tracking-uri has a password, which the jobs would show: give it in MLFLOW_*")
            words += ["--tracking-uri", uri]
        files.write_text(self.folder / "cells.jsonl", "".join(rows))
        command = f"python -m negbench.grid.jobs {shlex.quote(str(self.folder))} NUMBER {shlex.join(words)}"
        raise PendingError(f"run `{command}` for 0 to {len(rows) - 1}, then this command again")


def _note_path(folder: Path, hash_: str) -> Path:
    return folder / f"{hash_[:16]}.json"


def _read_note(path: Path) -> JobNote:
    if not path.exists():
        return JobNote()
    try:
        return JobNote.model_validate(files.read_json(path))
    except ValidationError as error:
        raise DataError(
            f"{path} is damaged ({_flaw(error)}): delete it, so that its cell is handed out again"
        ) from error


def _flaw(error: ValidationError) -> str:
    """Return the first flaw that pydantic found, as 'hash: String should match ...'."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    return printable(f"{key}: {first['msg']}" if key else str(first["msg"])).splitlines()[0][:200]


def compute_line(folder: Path, number: int, trusted: Trusted) -> Event:
    """Compute one cell of the file; note that it was started, and how it failed.

    Args:
        folder: of cells.jsonl.
        number: of the line, from 0.
        trusted: what the job may use.

    Raises:
        NegbenchError: there is no such line, it is damaged, or it wants more than is trusted.
    """
    path = folder / "cells.jsonl"
    with files.intact(path):
        rows = read_json_text(path).splitlines()
    if not 0 <= number < len(rows):
        raise NegbenchError(f"{path} has {f'lines 0 to {len(rows) - 1}' if rows else 'no line'}, not {number}")
    where = f"{path}: line {number}"
    try:
        line = JobLine.model_validate_json(rows[number])
        config = ResolvedConfig.model_validate({**line.config, "plugins": []})
        files_named = [str(file) for file in line.config.get("plugins", ())]
    except ValidationError as error:
        raise DataError(f"{where} is no job ({_flaw(error)}): run the command that wrote the folder again") from error
    except (TypeError, RecursionError) as error:
        raise DataError(f"{where} is no job ({error}): run the command that wrote the folder again") from error
    if "experiment" in line.tags:
        files.check_name(line.tags["experiment"], f"{where}: experiment")
    plugins = tuple(str(_find_plugin(Path(file), trusted.plugins, where)) for file in files_named)
    job = _Job(line, config.model_copy(update={"plugins": plugins}), trusted)
    note_path = _note_path(folder, line.hash)
    starts = 1 + _read_note(note_path).starts
    files.write_json(note_path, {"starts": starts, "error": ""})
    event = last_event(_compute, number, job, _print_note)
    if event.kind == "failed":
        files.write_json(note_path, {"starts": starts, "error": event.value})
    else:
        note_path.unlink(missing_ok=True)
    return event


def _print_note(note: Event) -> None:
    sys.stderr.write(f"{note.value}\n")


def _find_plugin(path: Path, trusted: Sequence[Path], where: str) -> Path:
    """Return the trusted plug-in file that a line names: the one of its path, or else of its name."""
    same_path = [file for file in trusted if file.resolve() == path.resolve()]
    same_name = [file for file in trusted if file.name == path.name]
    for candidates in (same_path, same_name):
        if len(candidates) == 1:
            return candidates[0].resolve()
    name = shlex.quote(printable(path.name))
    raise OptionError(f"{where} wants to import a plug-in file: give --plugin {name} if you trust that file")


@dataclass(frozen=True)
class _Job:
    line: JobLine
    config: ResolvedConfig
    trusted: Trusted


def _compute(job: _Job, notify: Notify) -> str:
    planned = plan_run(job.config, DATA)
    if planned.hash != job.line.hash:
        raise RunError("this machine has different code, data or weights than the planning one: sync them")
    return compute_task(Task(planned, job.trusted.runs, job.trusted.uri, job.line.tags), notify)[0]


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m negbench.grid.jobs", description="Compute one handed-out cell.")
    parser.add_argument("folder", type=Path, help="that of --executor jobs:FOLDER")
    parser.add_argument("number", type=int, help="line of its cells.jsonl, from 0")
    parser.add_argument("--runs-dir", type=Path, required=True, help="where the runs are written")
    parser.add_argument("--plugin", type=Path, action="append", default=[], help="a plug-in file that lines may import")
    parser.add_argument("--tracking-uri", help="MLflow store, as of the command that wrote the folder")
    options = parser.parse_args()
    stop_on_signals()
    trusted = Trusted(options.runs_dir.absolute(), options.plugin, options.tracking_uri)
    try:
        event = compute_line(options.folder, options.number, trusted)
    except NegbenchError as error:
        sys.stderr.write(f"negbench: error: {printable(str(error))}\n")
        return 2
    sys.stderr.write(f"{event.detail or event.value}\n")
    return int(event.kind == "failed")


if __name__ == "__main__":
    sys.exit(_main())
