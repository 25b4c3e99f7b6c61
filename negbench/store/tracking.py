"""Copy runs from their folders into an MLflow store by its public API; the only module that imports mlflow.

The folder is the source of truth, so a store that fails (a full disk, a server that is down) costs a remark, never a
run: `negbench ui` copies what the store lacks. MLflow allows no `@` in names: `val/dress/recall_at_10` is what tables
print as R@10.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

from negbench.display import notes
from negbench.errors import NegbenchError, RunError, missing_package, without_secrets
from negbench.machine.files import atomic_write, lock_file, write_json
from negbench.machine.received import check_database, read_text
from negbench.store import patience
from negbench.store.copies import NOTE, ORIGIN, PARENT, POSITION, SUMMARIES, TOKEN, announce, read_note, run_of
from negbench.store.runfolder import RunFolder, final_values

if TYPE_CHECKING:
    from mlflow.entities import Experiment
    from mlflow.tracking import MlflowClient

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # imported, MLflow would send data on how it is used
os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"  # an address with its password, after every run
EXPERIMENT = "negbench"
_FLUSH_SECONDS = 5.0
ALIVE = ".alive"  # lock of a parent run's folder
_HOME = ".mlflow.place"  # path of the runs folder when its store was created
_PAGE = 1000  # runs that MLflow returns at once
_PARAM_LIMIT = 6000  # characters of a parameter's value
_KIND = ("mlflow.experimentKind", "custom_model_development")  # opens in MLflow's pages for training, not for GenAI
_COMPARED = {  # part of the pages' address: only strategies, in the order of their positions, as bars
    "searchFilter": SUMMARIES,
    "orderByKey": f"tags.`{POSITION}`",
    "orderByAsc": "true",
    "compareRunsMode": "CHART",
}
_FOLDER_ONLY = ("mining/", "regime/", "train/lr", "train/temperature")  # curves that are not copied
_SUMMARY_ONLY = ("mined/", "regime_end/")  # of a comparison's runs: the summaries hold their means
_ARTIFACTS = ("config.json", "result.json", "metrics.jsonl", "ranks.parquet", "model.safetensors")


def default_uri(root: Path) -> str:
    """Return the URI of the sqlite store in the runs folder."""
    return f"sqlite:///{root.resolve() / 'mlflow.db'}"


class _Guarded:
    """An MLflow client that holds a lock during each call."""

    def __init__(self, client: MlflowClient, guard: Callable[[], Any]) -> None:
        self._client = client
        self._guard = guard

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            with self._guard():
                return getattr(self._client, name)(*args, **options)

        return call


@dataclass(frozen=True)
class Tracker:
    """An MLflow store. `uri = "none"` keeps no copy.

    Args:
        root: runs folder; artifacts of the default store are in `root/artifacts`.
        uri: MLflow tracking URI.
    """

    root: Path
    uri: str

    @classmethod
    def open(cls, root: Path, uri: str | None = None) -> Tracker:
        """Return the store at `uri`, by default the sqlite file in `root`; nothing is created before the first run."""
        return cls(root, uri or default_uri(root))

    @property
    def enabled(self) -> bool:
        """Whether a copy is kept at all."""
        return self.uri != "none"

    @property
    def printable_uri(self) -> str:
        """The URI without secrets, for printing and for folders' notes."""
        return without_secrets(self.uri)

    def client(self) -> MlflowClient:
        """Return a client of the store. A sqlite store is locked during each call, the first of which creates it.

        Raises:
            RunError: a server fails, or did not answer within ten seconds a moment ago; or the file is a link.
        """
        since, error = patience.SILENT.get(self.uri, (-math.inf, None))
        if error is not None and time.monotonic() - since < patience.FORGET:
            raise error
        try:
            with self.answering(), self.guard():
                client = self._open_client()
        except RunError as error:
            if not self._is_file:
                patience.SILENT[self.uri] = time.monotonic(), error
            raise
        if self._is_file:
            return cast("MlflowClient", _Guarded(client, self.guard))
        if self._is_server:
            return cast("MlflowClient", patience.Patient(client, self.uri))
        return client

    def _open_client(self) -> MlflowClient:
        from mlflow.tracking import MlflowClient
        from mlflow.utils import request_utils

        for name in ("mlflow", "alembic", "sqlalchemy"):  # lines for each table, tracebacks of what is raised as well
            logger = logging.getLogger(name)
            if logger.level != logging.CRITICAL:  # setting it empties all loggers' caches
                logger.setLevel(logging.CRITICAL)
        # MLflow tries a server seven times and a database ten times, for minutes
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(patience.PATIENCE))
        os.environ.setdefault("PGCONNECT_TIMEOUT", str(patience.PATIENCE))
        notes(self._set_aside())
        check_database(self.uri)
        if self.uri.startswith(("postgresql", "mysql", "mssql")):
            patience.within(patience.PATIENCE, self.uri, self._connect)
        if self._is_server:
            adapter = patience.bound_adapter(request_utils.TCPKeepAliveHTTPAdapter)
            request_utils.TCPKeepAliveHTTPAdapter = adapter  # type: ignore[misc, assignment]
        client = MlflowClient(tracking_uri=self.uri)
        if not self._is_file:
            ask = partial(client.search_experiments, max_results=1)
            patience.within(patience.seconds_for(), self.uri, ask)
        return client

    def _connect(self) -> None:
        """Connect to the database, which raises if it refuses."""
        from sqlalchemy import create_engine

        create_engine(self.uri).connect().close()

    @property
    def _is_file(self) -> bool:
        return self.uri.startswith("sqlite")

    @property
    def _is_server(self) -> bool:
        return self.uri.startswith(("http://", "https://"))

    @property
    def may_exist(self) -> bool:
        """Whether the store may hold anything: False where the runs folder has none yet."""
        return self.uri != default_uri(self.root) or (self.root / "mlflow.db").exists()

    def guard(self) -> Any:
        """Return a lock that serialises the users of a sqlite file; server stores need none."""
        return lock_file(self.root / ".mlflow.lock") if self._is_file else nullcontext()

    def set_aside(self) -> list[str]:
        """Put aside the runs folder's store if MLflow cannot go on with it; return a line that says so."""
        with self.guard():
            return self._set_aside()

    def _set_aside(self) -> list[str]:
        """Rename the store of a runs folder that was moved or copied, and delete one that a kill left half made.

        MLflow stores the locations of artifacts as absolute paths, and has no call that changes a run's.
        """
        if self.uri != default_uri(self.root):
            return []
        home_note = self.root / _HOME  # says where the runs folder was
        home = str(self.root.resolve())
        store = self.root / "mlflow.db"
        for path in (store, self.root / "artifacts", *self.root.glob("artifacts/*")):
            if path.is_symlink():  # MLflow would write through it
                raise RunError(f"{path} is a link: replace it by what it leads to")
        lines = list[str]()
        moved = not home_note.exists() or read_text(home_note) != home
        if not moved:
            check_database(self.uri)
        if store.exists() and moved:
            store.replace(store.with_name("mlflow-moved.db"))
            lines.append(f"{self.root} was moved or copied: its MLflow store is now mlflow-moved.db, beside a new one")
        elif store.exists() and _is_half_made(store):
            store.unlink()
            lines.append(f"the MLflow store {store} was half made when a kill came: a new one takes its place")
        if moved:
            with atomic_write(home_note) as file:
                file.write(home)
        return lines

    def address(self, name: str | None = None) -> str:
        """Return the MLflow page of an experiment's runs; of a finished comparison, bar charts of its strategies.

        Args:
            name: the experiment's; default: that of the newest run.

        Raises:
            RunError: there is no such experiment, or none with a run; or the store fails.
        """
        with self.answering():
            client = self.client()
            experiments = {experiment.experiment_id: experiment for experiment in client.search_experiments()}
            if name is None:
                newest = client.search_runs(list(experiments), order_by=["attributes.start_time DESC"], max_results=1)
                experiment = experiments[newest[0].info.experiment_id] if newest else None
            else:
                experiment = client.get_experiment_by_name(name)
        if experiment is None:
            names = ", ".join(sorted(e.name for id_, e in experiments.items() if id_ != "0")) or "none"
            raise RunError(f"no experiment '{name or ''}' in {self.printable_uri}; known: {names}")
        with self.answering():
            compared = client.search_runs([experiment.experiment_id], SUMMARIES, max_results=1)
        view = {"workflowType": "machine_learning"}
        if compared:
            view |= _COMPARED
        return f"/#/experiments/{experiment.experiment_id}/runs?{urlencode(view)}"

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Raise RunError, in one line and without secrets, if the store fails in this block."""
        try:
            yield
        except NegbenchError:
            raise
        except ImportError as error:
            reason = missing_package(error) or str(error)
            raise RunError(f"{self.printable_uri} is not used ({reason})") from error
        except Exception as error:
            first_line = f"{type(error).__name__}: {error}".strip().split("\n")[0]
            reason = " ".join(first_line.split())
            remedy = self._remedy(reason)
            raise RunError(f"{self.printable_uri} fails ({without_secrets(reason, self.uri)}){remedy}") from error

    def _remedy(self, reason: str) -> str:
        """Return the way out of an experiment that was deleted in MLflow's pages; "" for any other failure."""
        match = re.search(r"experiment (\S+) must be in the 'active' state", reason)
        if match is None:
            return ""
        number = match[1].strip("'\"")
        restore = f"MLFLOW_TRACKING_URI={self.printable_uri} mlflow experiments restore -x {number}"
        remove = f"mlflow gc --backend-store-uri {self.printable_uri} --experiment-ids {number}"
        return f": the experiment was deleted; restore it, `{restore}`, or remove it for good, `{remove}`"

    def experiment(self, client: MlflowClient, name: str) -> str:
        """Return the id of the experiment `name`, created if absent."""
        from mlflow.exceptions import MlflowException

        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            location = (self.root.resolve() / "artifacts").as_uri() if self._is_file else None
            with suppress(MlflowException):  # another process made it
                client.create_experiment(name, artifact_location=location, tags=dict([_KIND]))
            experiment = client.get_experiment_by_name(name)
        return str(cast("Experiment", experiment).experiment_id)

    # --- runs -----------------------------------------------------------------------------------------------------

    @contextmanager
    def run(self, folder: RunFolder, params: Mapping[str, Any], tags: Mapping[str, str]) -> Iterator[RunLog]:
        """Log a run while it is computed; it ends FINISHED, KILLED (interrupted) or FAILED.

        A run that is resumed gets a new MLflow run with its whole history; the interrupted one is deleted. The folder
        notes the tags, also where no copy is kept or the store fails, for a later copy.
        """
        log = RunLog(self, folder)
        status = "KILLED"  # by Ctrl-C or another signal
        try:
            if self.enabled and "experiment" not in tags:  # else `Parent.open` did it
                log.attempt(self.end_abandoned)
            log.start(params, tags)
            log.attempt(log.flush)
            yield log
            status = "FINISHED"
        except Exception:
            status = "FAILED"
            raise
        finally:
            log.finish(status)

    def export(self, folder: RunFolder) -> str:
        """Copy a finished run's folder into the store, in place of an earlier copy; return the MLflow run's id.

        Raises:
            RunError: the run is not finished, or the store fails.
        """
        note = read_note(folder.path / NOTE) or {}
        details = folder.result
        tags = {key: value for key, value in note.get("tags", {}).items() if key != PARENT}  # may be of another store
        log = RunLog(self, folder)
        log.start(folder.config.flat(), tags)
        log.artifacts(details)
        log.finish("FINISHED")
        if log.error is not None:
            raise RunError(log.error)
        return log.run_id

    def copy_missing(self, statuses: Mapping[str, str] | None = None) -> list[str]:
        """Copy finished runs that the store lacks; return their ids.

        A copy that was deleted in MLflow's pages stays deleted.

        Args:
            statuses: what `statuses` returned a moment ago; default: the store is asked.

        Raises:
            RunError: the store fails.
        """
        if not self.enabled:
            return []
        if statuses is None:
            statuses = self.statuses()
        copied = []
        for path in sorted(self.root.glob("*/config.json")):
            note = read_note(path.with_name(NOTE), self.printable_uri)
            # a whole copy that the store has, or had before somebody deleted it
            if note and note.get("whole") and statuses.get(note["run_id"]) in ("deleted", "FINISHED"):
                continue
            folder = RunFolder(path.parent)
            if folder.status == "finished" and self.ensure(folder):
                copied.append(folder.run_id)
        return copied

    def ensure(self, folder: RunFolder) -> bool:
        """Copy a finished run if the store lacks it and no other process has the folder; return whether it did."""
        path = folder.path / NOTE
        with suppress(BlockingIOError), lock_file(folder.path / ".lock", wait=False), self.answering():
            if not self.holds(folder):
                self.export(folder)
                return True
            note = read_note(path)
            if note and not note.get("whole"):
                write_json(path, {**note, "whole": True})
        return False

    def copy_lacking(self, folder: RunFolder) -> str | None:
        """Copy a finished run whose copy an earlier command could not make; return why that fails, None otherwise.

        The folder's note says whether its copy is whole, so that the store is not asked each time.
        """
        note = read_note(folder.path / NOTE, self.printable_uri)
        if not self.enabled or (self.may_exist and note is not None and note.get("whole")):
            return None
        try:
            if self.ensure(folder):
                store = self.printable_uri
                notes([f"run {folder.run_id} is copied into {store}, which an earlier command could not do"])
        except NegbenchError as error:
            return str(error)
        return None

    def holds(self, folder: RunFolder, status: str = "FINISHED", statuses: Mapping[str, str] | None = None) -> bool:
        """Whether the store has a whole copy, which ended so, or had one that was deleted; arguments as for `state`."""
        with self.answering():
            return self.state(folder.path / NOTE, statuses) in ("deleted", status)

    def state(self, path: Path, statuses: Mapping[str, str] | None = None) -> str:
        """Return the status of a note's run in this store, or 'deleted'; '' if there is none.

        Args:
            path: of the note.
            statuses: what `statuses` returned a moment ago: only a run that it lacks is asked for.
        """
        note = read_note(path, self.printable_uri)
        if note is None:
            return ""
        if statuses is not None and note["run_id"] in statuses:
            return statuses[note["run_id"]]
        with _unless_gone():
            client = self.client()
            run_id = run_of(client, note)
            if run_id:
                info = client.get_run(run_id).info
                return _state_of(info.status, info.lifecycle_stage)
        return ""

    def statuses(self) -> dict[str, str]:
        """Return MLflow's id of every run of the store -> what `state` returns for it; the store is asked once.

        Of a database only three columns are read: MLflow's client would load each run's parameters, tags and metrics.
        """
        from sqlalchemy.exc import SQLAlchemyError

        client = self.client()  # creates the tables of a new file
        if not self.uri.startswith("http"):
            with suppress(SQLAlchemyError), self.guard():  # MLflow's tables may change, and its client remains
                return self._statuses_in_tables()
        return _statuses_by_pages(client)

    def _statuses_in_tables(self) -> dict[str, str]:
        from sqlalchemy import create_engine, text

        engine = create_engine(self.uri)
        try:
            with engine.connect() as connection:
                rows = connection.execute(text("SELECT run_uuid, status, lifecycle_stage FROM runs"))
                return {run_id: _state_of(status, stage) for run_id, status, stage in rows}
        finally:
            engine.dispose()

    def end_abandoned(self) -> list[str]:
        """End this folder's runs that the store lists as running but whose process is gone (kill -9, power cut).

        A finished run whose copy was cut off is copied again.

        Returns:
            Names of the ended runs.
        """
        client = self.client()
        ended = list[str]()
        running = _running_runs(client)
        if not running:
            return []
        for path in (*self.root.glob(f"*/{NOTE}"), *self.root.glob(f"*/trials/*/{NOTE}")):
            note = read_note(path, self.printable_uri)
            run_id = None if note is None else running.get(note["run_id"] or note["token"])
            if run_id is None:
                continue
            lock = path.with_name(ALIVE)
            if not lock.exists():
                lock = path.with_name(".lock")
            if not lock.exists():  # a trial that is held by a database server
                continue
            folder = RunFolder(path.parent)
            with suppress(BlockingIOError), lock_file(lock, wait=False):
                client.set_terminated(run_id, status="KILLED")
                if folder.status == "finished":
                    self.export(folder)
                ended.append(folder.run_id)
        return ended


class RunLog:
    """One MLflow run, fed from a folder. Points are buffered and sent in batches, by a thread: training never waits.

    If the store fails, `error` says why and logging stops.

    Args:
        tracker: the store.
        folder: the run.
    """

    def __init__(self, tracker: Tracker, folder: RunFolder) -> None:
        self.tracker = tracker
        self.folder = folder
        self.run_id = ""
        self.error: str | None = None
        self._client: MlflowClient | None = None
        self._left_out: tuple[str, ...] = _FOLDER_ONLY  # how names of metrics begin that are not copied
        self._params: dict[str, Any] = {}
        self._buffer: list[tuple[str, float, int]] = []
        self._sent = time.monotonic()
        self._sending: threading.Thread | None = None

    def start(self, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Note the tags; create the MLflow run, in place of an earlier copy of the folder; buffer its points so far."""
        self.attempt(partial(self._note, tags=dict(tags), whole=False))
        if "comparison" in tags:
            self._left_out = (*_FOLDER_ONLY, *_SUMMARY_ONLY)
        if self.tracker.enabled:
            self.attempt(partial(self._create, params, tags))
            for point in self.folder.metrics():
                values = {name: value for name, value in point.items() if name not in ("step", "epoch")}
                self.metrics(values, int(point["step"]))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Add points of curves; `step` counts batches. Values that are not finite are left out.

        So is what an artifact has or the summaries show: MLflow takes half a millisecond for each point.
        """
        for name, value in values.items():
            if math.isfinite(value) and not name.startswith(self._left_out):
                self._buffer.append((name, value, step))
        is_sending = self._sending is not None and self._sending.is_alive()
        if time.monotonic() - self._sent > _FLUSH_SECONDS and not is_sending:
            send = self._take()
            self._sending = threading.Thread(target=self.attempt, args=(send,), daemon=True)
            self._sending.start()

    def artifacts(self, details: Mapping[str, Any]) -> None:
        """Send final metrics, then the folder's files."""
        self._wait()
        self.metrics(final_values(details), int(details["steps"]))
        self.attempt(self._send_files)

    def finish(self, status: str) -> None:
        """Send what is buffered and close."""
        self._wait()
        self.attempt(self.flush)
        if self._client is not None:
            self.attempt(partial(self._client.set_terminated, self.run_id, status=status))
            if status == "FINISHED":
                self.attempt(partial(self._note, whole=True))

    def _note(self, **more: Any) -> None:
        """Put values into the folder's note."""
        path = self.folder.path / NOTE
        note = read_note(path) or {}
        write_json(path, {"uri": "none", "run_id": "", "token": "", **note, **more})

    def _create(self, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        client = self.tracker.client()
        path = self.folder.path / NOTE
        name = self.folder.run_id
        uri = self.tracker.printable_uri
        earlier_note = read_note(path, uri)
        if earlier_note:
            earlier_id = run_of(client, earlier_note)
            if earlier_id:
                delete_run(client, earlier_id)
        parent_note = None
        if "experiment" in tags:
            parent_note = read_note(self.tracker.root / tags["experiment"] / NOTE, uri)
        experiment = None
        if parent_note:
            tags = {**tags, PARENT: parent_note["run_id"]}
            experiment = parent_note.get("experiment_id")
        if not experiment:
            experiment = self.tracker.experiment(client, tags.get("experiment", EXPERIMENT))
        note = announce(path, uri, tags=dict(tags))
        all_tags = {TOKEN: note["token"], "negbench.run": name, "mlflow.runName": name, **ORIGIN, **tags}
        run = client.create_run(experiment, tags=all_tags, run_name=name)
        self.run_id, self._client = run.info.run_id, client  # a signal from here on ends it
        self._artifacts: Any = get_artifact_repository(run.info.artifact_uri, tracking_uri=self.tracker.uri)
        self._note(run_id=self.run_id)
        self._params = dict(params)

    def flush(self) -> None:
        """Send what is buffered, now; what a signal interrupts is not sent again."""
        self._take()()

    def _take(self) -> Callable[[], None]:
        """Empty the buffer; return a function that sends what was in it."""
        params = self._params
        points = self._buffer
        client = self._client
        self._params = {}
        self._buffer = []
        self._sent = time.monotonic()

        def send() -> None:
            if client is not None and (params or points):
                log_values(client, self.run_id, params, points)

        return send

    def _wait(self) -> None:
        """Wait for the thread that sends, but no longer than a store may take to answer."""
        if self._sending is None:
            return
        self._sending.join(3 * patience.PATIENCE)
        if self._sending.is_alive() and self.error is None:
            self.error = f"{self.tracker.printable_uri} does not answer"
        self._sending = None

    def _send_files(self) -> None:
        if self._client is None:
            return
        for name in _ARTIFACTS:
            path = self.folder.path / name
            if not path.exists():
                continue
            send = partial(self._artifacts.log_artifact, str(path))
            if self.tracker._is_server:
                patience.within(patience.seconds_for(path.stat().st_size), self.tracker.uri, send)
            else:
                send()

    def attempt(self, action: Callable[[], object]) -> None:
        """Run `action`; if the store fails, keep the error and stop logging: the folder has everything."""
        if self.error is not None:
            return
        try:
            with self.tracker.answering():
                action()
        except NegbenchError as error:
            self.error = str(error)


def param_text(value: Any) -> str:
    """Return a parameter's value as MLflow holds it."""
    return "" if value is None else str(value)[:_PARAM_LIMIT]


def log_values(
    client: MlflowClient, run_id: str, params: Mapping[str, Any], points: Sequence[tuple[str, float, int]]
) -> None:
    """Log parameters, and (name, value, step) points; the client divides them into batches within MLflow's limits."""
    from mlflow.entities import Metric, Param

    milliseconds = int(time.time() * 1000)
    metrics = [Metric(name, float(value), milliseconds, step) for name, value, step in points]
    texts = {key: param_text(value) for key, value in params.items()}
    client.log_batch(run_id, metrics, [Param(key, text) for key, text in texts.items() if text])


def _running_runs(client: MlflowClient) -> dict[str, str]:
    """Return MLflow's id, and our token, of each run that the store lists as running -> its id."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    if not experiments:
        return {}
    ids: dict[str, str] = {}
    for run in client.search_runs(experiments, "attributes.status = 'RUNNING'", max_results=1000):
        run_id = run.info.run_id
        ids[run_id] = run_id
        ids[run.data.tags.get(TOKEN, run_id)] = run_id
    return ids


def _statuses_by_pages(client: MlflowClient) -> dict[str, str]:
    from mlflow.entities import ViewType

    experiments = [experiment.experiment_id for experiment in client.search_experiments(view_type=ViewType.ALL)]
    statuses: dict[str, str] = {}
    if not experiments:
        return statuses
    token = None
    while True:
        runs = client.search_runs(experiments, "", ViewType.ALL, max_results=_PAGE, page_token=token)
        for run in runs:
            statuses[run.info.run_id] = _state_of(run.info.status, run.info.lifecycle_stage)
        token = runs.token
        if not token:
            return statuses


def _state_of(status: str, stage: str) -> str:
    return "deleted" if stage == "deleted" else str(status)


def delete_run(client: MlflowClient, run_id: str) -> None:
    """Delete a run, unless somebody has."""
    with _unless_gone():
        client.delete_run(run_id)


@contextmanager
def _unless_gone() -> Iterator[None]:
    """Leave the block where MLflow says that a run does not exist or is deleted; a store that fails is an error."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise


def _is_half_made(store: Path) -> bool:
    """Whether a kill left MLflow's tables incomplete, after which it refuses the file: it adds an experiment last."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(store)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        of_mlflow = tables & {"experiments", "runs", "metrics", "params", "tags"}
        if "alembic_version" not in tables or len(of_mlflow) < 2:  # another program's file
            return False
        if "experiments" not in tables:
            return True
        return not database.execute("SELECT 1 FROM experiments LIMIT 1").fetchall()
    return False
