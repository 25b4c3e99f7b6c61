"""The MLflow run above the runs of a comparison or a study: made, held while they are computed, copied whole.

What it holds stands in the folder, so that a store that was down, lost or never used gets everything later: `close`
by the command that computes, `restore` by `negbench ui` and `negbench doctor`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench.display import log
from negbench.errors import NegbenchError, PendingError, RunError
from negbench.machine.files import check_links, lock_file, read_json, sha256_of, write_json
from negbench.machine.signals import Stopped
from negbench.store.copies import NOTE, ORIGIN, PARENT, SUMMARIES, TOKEN, SummaryRun, announce, read_note, run_of
from negbench.store.runfolder import RunFolder
from negbench.store.tracking import ALIVE, RunLog, Tracker, delete_run, log_values, param_text

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

TRIAL = "trial.json"  # in a trial's folder: what its copy holds, and why the store lacks it
_CONTENTS = "mlflow-summary.json"  # in the folder: what the parent run holds besides its runs
_PENDING = "SCHEDULED"  # status of a run whose cells wait for jobs
_TAG_LIMIT = 5000  # characters of a tag's value
_DESCRIPTION = "mlflow.note.content"  # Markdown, of a run and of an experiment


@dataclass(frozen=True)
class Parent:
    """A comparison's or a study's run in a store; its experiment has the same name.

    Args:
        tracker: the store.
        folder: of the comparison or the study, in the runs folder.
    """

    tracker: Tracker
    folder: Path

    def open(self) -> None:
        """Find the run or create it, and end abandoned runs; a store that fails costs a warning."""
        try:
            if self.tracker.enabled:
                with self.tracker.answering(), self._lock():
                    self.tracker.end_abandoned()
                    self._run(self.tracker.client())
        except NegbenchError as error:
            log.warning("%s: no MLflow run for '%s'", error, self.folder.name)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Hold the run while its runs are computed, then end it.

        Several processes may hold it. `end_abandoned` ends one that a kill -9 leaves running; one whose runs are handed
        out to jobs is scheduled.
        """
        with lock_file(self.folder / ALIVE, shared=True):
            status = "FAILED"
            try:
                yield
                status = "FINISHED"
            except (KeyboardInterrupt, Stopped):
                status = "KILLED"
                raise
            except PendingError:
                status = _PENDING
                raise
            finally:
                note = self._own_note()
                if note:
                    with suppress(Exception):  # `end_abandoned` does it later
                        self.tracker.client().set_terminated(note["run_id"], status=status)

    def close(self, summaries: Sequence[SummaryRun], artifacts: Sequence[Path], answer: str) -> None:
        """Note in the folder what the run is to hold, and copy it.

        One run per summary, with the group's tags, lets the MLflow pages compare strategies at once. An artifact in a
        folder `figures` stays in one.
        """
        rows = []
        for summary in summaries:
            row = asdict(summary)
            row["params"] = {key: param_text(value) for key, value in summary.params.items()}
            row["metrics"] = {key: value for key, value in summary.metrics.items() if math.isfinite(value)}
            rows.append(row)
        names = [path.relative_to(self.folder).as_posix() for path in artifacts]
        write_json(self.folder / _CONTENTS, {"summaries": rows, "artifacts": names, "answer": answer})
        self.complete()

    def complete(self) -> None:
        """Copy what the store lacks of the comparison, by the notes in folders; a remark counts what stays missing."""
        if not self.tracker.enabled or not os.access(self.folder, os.W_OK):
            return
        if self._is_whole() and not self._missing_copies():
            return
        try:
            with self.tracker.answering():
                self.copy()
        except NegbenchError as error:
            runs = f"{len(self._missing_copies())} of {len(self._runs()) + len(self._trials())} runs"
            missing = f"{runs}, and the summary of '{self.folder.name}'"
            log.warning("%s: %s are not copied: rerun the command, or `negbench ui`, when it answers", error, missing)

    def has_parent(self, statuses: Mapping[str, str]) -> bool:
        """Whether the store has all but the runs, or had the parent, which somebody deleted.

        Args:
            statuses: what the store's `statuses` returned a moment ago.
        """
        state = self.tracker.state(self.folder / NOTE, statuses)
        if state == "deleted":
            return True
        if state not in ("FINISHED", _PENDING) or not self._is_whole():
            return False
        return not any(self._lacks(folder, trial, statuses) for folder, trial in self._trials().items())

    def make(self) -> None:
        """Create the run unless the store has it."""
        with self._lock():
            if not self.tracker.state(self.folder / NOTE):
                self._run(self.tracker.client())

    def copy(self) -> int:
        """Copy the runs that the store lacks by their notes, the trials that it lacks, and all that the parent holds.

        Returns:
            How many trials were copied.

        Raises:
            NegbenchError, or an error of MLflow: the store fails.
        """
        check_links(self.folder)
        with self._lock():
            self.tracker.end_abandoned()
            client = self.tracker.client()
            is_pending = self.tracker.state(self.folder / NOTE) == _PENDING
            parent = self._run(client)
            digest = self._digest()
            trials = self._trials()
            for folder in set(self._missing_copies()) - trials.keys():
                self.tracker.ensure(RunFolder(folder))
            copied = 0
            for folder, trial in trials.items():
                if self._copy_trial(folder, trial):
                    copied += 1
            for folder in (*self._runs(), *trials):
                self._set_parent(client, folder / NOTE, parent)
            self._send(client, parent)
            client.set_terminated(parent, _PENDING if is_pending else "FINISHED")
            write_json(self.folder / NOTE, {**self._own_note(), "whole": digest})
        return copied

    def _set_parent(self, client: MlflowClient, path: Path, parent: str) -> None:
        """Name the parent in a copy that was made while there was none; `path` is the copy's note."""
        note = read_note(path, self.tracker.printable_uri) or {}
        tags = note.get("tags", {})
        if tags.get("experiment") == self.folder.name and tags.get(PARENT) != parent:
            client.set_tag(note["run_id"], PARENT, parent)
            write_json(path, {**note, "tags": {**tags, PARENT: parent}})

    def _lock(self) -> Any:
        return lock_file(self.folder / "mlflow.lock")

    def _own_note(self) -> dict[str, Any]:
        """Return the note of this store's run; empty if there is none."""
        return read_note(self.folder / NOTE, self.tracker.printable_uri) or {}

    def _digest(self) -> str:
        """Return the hash of what the run is to hold; '' if nothing is noted."""
        path = self.folder / _CONTENTS
        return sha256_of(path) if path.exists() else ""

    def _is_whole(self) -> bool:
        return self.tracker.may_exist and self._own_note().get("whole") == self._digest()

    def _runs(self) -> list[Path]:
        """Return the folders of a comparison's finished runs."""
        path = self.folder / "comparison.json"
        if not path.exists():
            return []
        root = self.tracker.root
        folders = []
        for name in dict.fromkeys(row["run"] for row in read_json(path)["cells"]):
            leads_out = not name or Path(name).name != name or name == ".."  # of a received folder
            if not leads_out and (root / name / "result.json").exists():
                folders.append(root / name)
        return folders

    def _missing_copies(self) -> list[Path]:
        """Return the folders of those of the runs and trials whose notes name no whole copy."""
        uri = self.tracker.printable_uri
        folders = []
        for folder, trial in self._trials().items():
            if trial["lost"] or not read_note(folder / NOTE, uri):
                folders.append(folder)
        for folder in self._runs():
            note = read_note(folder / NOTE, uri)
            if note is None or not note.get("whole"):
                folders.append(folder)
        return folders

    def _trials(self) -> dict[Path, dict[str, Any]]:
        """Return the folders of a study's ended trials, with what their copies hold."""
        return {path.parent: read_json(path) for path in sorted(self.folder.glob(f"trials/*/{TRIAL}"))}

    def _lacks(self, folder: Path, trial: Mapping[str, Any], statuses: Mapping[str, str] | None = None) -> bool:
        """Whether the store lacks a trial's copy, or a part of it."""
        return bool(trial["lost"]) or not self.tracker.holds(RunFolder(folder), trial["status"], statuses)

    def _copy_trial(self, folder: Path, trial: Mapping[str, Any]) -> bool:
        """Copy an ended trial if the store lacks it and no process computes it; return whether it did."""
        with suppress(BlockingIOError), lock_file(folder / ".lock", wait=False):
            if self._lacks(folder, trial):
                copy = RunLog(self.tracker, RunFolder(folder))
                copy.start(trial["params"], trial["tags"])
                copy.metrics(trial["values"], int(trial["params"]["train.epochs"]))
                copy.finish(trial["status"])
                if copy.error is not None:
                    raise RunError(copy.error)
                write_json(folder / TRIAL, {**trial, "lost": None})
                return True
        return False

    def _run(self, client: MlflowClient) -> str:
        """Find or create the run, which is running from now on, and note its id."""
        path = self.folder / NOTE
        name = self.folder.name
        if self.tracker.state(path) not in ("", "deleted"):
            note = self._own_note()
            run_id = run_of(client, note)
            client.update_run(run_id, status="RUNNING")
        else:
            kind = "study" if (self.folder / "study.json").exists() else "comparison"
            experiment = self.tracker.experiment(client, name)
            note = announce(path, self.tracker.printable_uri, experiment_id=experiment)
            tags = {TOKEN: note["token"], "mlflow.runName": name, **ORIGIN, "negbench.kind": kind, kind: name}
            run_id = str(client.create_run(experiment, tags=tags, run_name=name).info.run_id)
        write_json(path, {**note, "run_id": run_id, "whole": None})
        return run_id

    def _send(self, client: MlflowClient, parent: str) -> None:
        """Replace the summary runs, and send answer and artifacts."""
        if not (self.folder / _CONTENTS).exists():
            return
        contents = read_json(self.folder / _CONTENTS)
        experiment = self.tracker.experiment(client, self.folder.name)
        for earlier in client.search_runs([experiment], f"tags.`{PARENT}` = '{parent}' and {SUMMARIES}"):
            delete_run(client, earlier.info.run_id)
        for row in contents["summaries"]:
            summary = SummaryRun(**row)
            tags = {PARENT: parent, "negbench.kind": "summary", **ORIGIN, **summary.tags}
            run_id = str(client.create_run(experiment, tags=tags, run_name=summary.name).info.run_id)
            log_values(client, run_id, summary.params, [(key, value, 0) for key, value in summary.metrics.items()])
            client.set_terminated(run_id)
        answer = contents["answer"][:_TAG_LIMIT]
        if answer:
            client.set_tag(parent, _DESCRIPTION, answer)
            client.set_experiment_tag(experiment, _DESCRIPTION, answer)
        for name in contents["artifacts"]:
            path = self.folder / name
            if path.is_file() and path.resolve().is_relative_to(self.folder.resolve()):  # a received folder's may not
                client.log_artifact(parent, str(path), "figures" if path.parent.name == "figures" else None)


def restore(tracker: Tracker) -> Iterator[str]:
    """Put aside a store of no use, end what no process computes, and copy what the store lacks of the runs folder.

    Yields:
        A line for each kind of mend.

    Raises:
        RunError: the store fails.
    """
    with tracker.answering():
        yield from tracker.set_aside()
        ended = tracker.end_abandoned()
        if ended:
            yield f"marked as ended, because their process is gone: {', '.join(ended)}"
        statuses = tracker.statuses() if tracker.enabled else {}
        folders: set[Path] = set()
        if tracker.enabled:
            folders |= {path.parent for path in tracker.root.glob("*/comparison.json")}
            folders |= {path.parent for path in tracker.root.glob("*/study.json")}
        missing = list[Parent]()
        with ExitStack() as locks:
            for folder in sorted(folders):
                parent = Parent(tracker, folder)
                with suppress(BlockingIOError):  # it is computed
                    locks.enter_context(lock_file(folder / ALIVE, wait=False))
                    if not parent.has_parent(statuses):
                        parent.make()  # first, so that its runs name it
                        missing.append(parent)
            copied = len(tracker.copy_missing(statuses))
            trials = sum(parent.copy() for parent in missing)
    names = [parent.folder.name for parent in missing]
    parts = []
    if copied:
        parts.append(f"{copied} run{'s' if copied > 1 else ''}")
    if trials:
        parts.append(f"{trials} trial{'s' if trials > 1 else ''}")
    if names:
        parts.append(f"the summary of {', '.join(names)}")
    if parts:
        yield f"copied {' and '.join(parts)} that the store lacked"
