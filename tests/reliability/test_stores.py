"""MLflow servers and databases that stop and come back: nothing is lost, nothing runs for ever, no password is shown."""

import json
import os
import select
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from mlflow.tracking import MlflowClient

from negbench.cli.main import run as negbench
from negbench.store import tracking
from negbench.store.tracking import Tracker, default_uri

SECRET = "hunter2-Geheimnis"
GRID = ("compare", "--strategies", "qure,dqe", "--lr", "fixed", "--seeds", "2", "--no-report", "--name", "c")


class Line:
    """A line to a server on this machine that can be cut, at once or after some packets, and mended."""

    def __init__(self, port: int) -> None:
        self._to, self._left, self._open = port, -1, list[socket.socket]()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._server: socket.socket | None = None
        self.mend()

    def mend(self, sent: int = -1) -> None:
        """Connect; cut the line at what the client sends after this many packets."""
        self.cut()
        self._left, self._server = sent, socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def cut(self) -> None:
        for each in (self._server, *self._open):
            if each is not None:
                with_closed(each)
        self._server, self._open = None, []

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
                behind = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            self._open += [client, behind]
            threading.Thread(target=self._carry, args=(client, behind), daemon=True).start()

    def _carry(self, client: socket.socket, behind: socket.socket) -> None:
        try:
            while True:
                for ready in select.select([client, behind], [], [])[0]:
                    if not (data := ready.recv(65536)):
                        raise OSError("closed")
                    if ready is client and self._left == 0:
                        self.cut()
                    self._left -= ready is client
                    (behind if ready is client else client).sendall(data)
        except (OSError, ValueError):
            for each in (client, behind):
                with_closed(each)


def with_closed(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    each.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Start `mlflow server` with an empty store; return its port."""
    place = tmp_path_factory.mktemp("server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{place / 'm.db'}", "--artifacts-destination", str(place / "files")]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | quiet, cwd=place)
    for _ in range(600):
        try:
            if requests.get(f"http://127.0.0.1:{port}/health", timeout=5).ok:
                break
        except requests.ConnectionError:
            assert process.poll() is None, (place / "log").read_text()
            time.sleep(0.3)
    yield port
    process.terminate()
    process.wait(30)


@pytest.fixture
def line(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """Return a line to the server; a store that failed is asked again at once."""
    monkeypatch.setattr(tracking, "_FORGET", 0.0)
    monkeypatch.setattr(tracking, "_SILENT", {})
    cable = Line(server)
    client = MlflowClient(f"http://127.0.0.1:{cable.port}")
    for experiment in client.search_experiments():
        if experiment.experiment_id != "0":
            client.rename_experiment(experiment.experiment_id, f"{experiment.name}-{experiment.experiment_id}")
            client.delete_experiment(experiment.experiment_id)
    yield cable
    cable.cut()


def contents(uri: str, name: str = "c") -> dict[str, Any]:
    """Return what a store shows of a comparison: runs by kind and status, those below no parent, answer, artifacts."""
    client = MlflowClient(uri)
    if (experiment := client.get_experiment_by_name(name)) is None:
        return {}
    runs = client.search_runs([experiment.experiment_id])
    parents = [run.info.run_id for run in runs if run.data.tags.get("negbench.kind") == "comparison"]
    return {
        "runs": Counter((run.data.tags.get("negbench.kind"), run.info.status) for run in runs),
        "names": sorted({run.info.run_name for run in runs}),
        "metrics": sorted((run.info.run_name, sorted(run.data.metrics.items())) for run in runs),
        "loose": [run.info.run_name for run in runs if run.data.tags.get("mlflow.parentRunId", *parents) not in parents],
        "answer": experiment.tags.get("mlflow.note.content"),
        "artifacts": [sorted(file.path for file in client.list_artifacts(parent)) for parent in parents],
    }


@pytest.fixture(scope="module")
def undisturbed(vector_flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Compute the grid with the store in its runs folder; return the folder and what the store shows."""
    runs = tmp_path_factory.mktemp("undisturbed") / "runs"
    assert negbench([*GRID, *vector_flags, "--runs-dir", str(runs)]) == 0
    want = contents(default_uri(runs))
    assert want["runs"] == {("cell", "FINISHED"): 4, ("summary", "FINISHED"): 2, ("comparison", "FINISHED"): 1}
    assert want["loose"] == []
    assert "table.md" in want["artifacts"][0]
    assert want["answer"].startswith("R@10 ")
    return runs, want


@pytest.fixture
def none(undisturbed: tuple[Path, dict[str, Any]], vector_flags: list[str], tmp_path: Path) -> Path:
    """Return a runs folder of the grid, computed with `--tracking-uri none`."""
    assert negbench([*GRID, *vector_flags, "--runs-dir", str(tmp_path / "runs"), "--tracking-uri", "none"]) == 0
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("requests", "again"), [(0, "rerun"), (0, "doctor"), (3, "ui"), (9, "doctor"), (25, "rerun"), (60, "ui")]
)
def test_a_server_that_stops_gets_the_whole_when_it_is_back(
    requests, again, line, undisturbed, vector_flags, tmp_path, capfd
):
    """It stops at the start, or after some requests: while it gets a parent, a cell, a summary."""
    uri, address = f"http://alice:{SECRET}@127.0.0.1:{line.port}", f"http://127.0.0.1:{line.port}"
    place = ["--runs-dir", str(tmp_path / "runs"), "--tracking-uri", uri]
    line.mend(requests)
    assert negbench([*GRID, *vector_flags, *place]) == 0
    out, err = capfd.readouterr()
    lost = [text for text in err.splitlines() if " are not copied: " in text]
    assert len(lost) == 1, err
    assert " of 4 runs, and the summary of 'c' are not copied: rerun the command, or `negbench ui`" in lost[0]
    line.mend()
    assert negbench({"rerun": [*GRID, *vector_flags], "ui": ["ui", "c"], "doctor": ["doctor"]}[again] + place) == 0
    told = "".join(capfd.readouterr())
    assert contents(address) == undisturbed[1]
    assert SECRET not in out + err + told
    if again == "ui":
        page = next(text for text in told.splitlines() if text.startswith(f"{address}/#/experiments/"))
        assert "verdict" in page
    if again != "rerun":
        assert " and the summary of c that the store lacked" in told or "copied the summary of c that" in told
    line.cut()  # whole: nobody is asked
    assert negbench([*GRID, *vector_flags, *place]) == 0
    assert " fails (" not in capfd.readouterr().err


@pytest.mark.usefixtures("line")
def test_a_server_is_used_without_a_word_of_mlflow(line, vector_flags, tmp_path, capfd):
    uri = f"http://alice:{SECRET}@127.0.0.1:{line.port}"
    place = [*vector_flags, "--runs-dir", str(tmp_path), "--tracking-uri", uri]
    assert negbench(["run", "--strategy", "qure", "--json", *place]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["reused"] is False
    assert negbench(["run", "--strategy", "dqe", "-q", *place]) == 0
    more = capfd.readouterr()
    assert more.err == ""
    assert SECRET not in out + err + more.out
    assert "View" not in more.out


@pytest.mark.usefixtures("ui_commands")
def test_a_folder_without_a_copy_gets_the_grouped_comparison_from_ui(none, undisturbed):
    assert not (none / "mlflow.db").exists()
    assert negbench(["ui", "c", "--runs-dir", str(none)]) == 0
    assert contents(default_uri(none)) == undisturbed[1]


@pytest.mark.usefixtures("ui_commands")
@pytest.mark.parametrize("again", ["ui", "rerun", "doctor"])
def test_a_copied_folder_shows_the_comparison_as_where_it_was_made(again, undisturbed, vector_flags, tmp_path, capfd):
    there, place = tmp_path / "there", ["--runs-dir", str(tmp_path / "there")]
    shutil.copytree(undisturbed[0], there)
    assert negbench({"rerun": [*GRID, *vector_flags], "ui": ["ui", "c"], "doctor": ["doctor"]}[again] + place) == 0
    assert "its MLflow store is now mlflow-moved.db" in "".join(capfd.readouterr())
    assert contents(default_uri(there)) == undisturbed[1]
    assert "CHART" in Tracker.open(there).address("c")


def half_made(store: Path, statement: int) -> None:
    """Make MLflow's tables, and stop after this many statements, as a kill does."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    count = 0

    def stop(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > statement:
            raise KeyboardInterrupt

    event.listen(Engine, "before_cursor_execute", stop)
    try:
        MlflowClient(f"sqlite:///{store}").search_experiments()
    except KeyboardInterrupt:
        pass
    finally:
        event.remove(Engine, "before_cursor_execute", stop)


@pytest.mark.usefixtures("ui_commands")
def test_a_store_that_a_kill_left_half_made_is_made_again(none, undisturbed, fast_mode, monkeypatch, capfd):
    monkeypatch.setattr(Tracker, "client", fast_mode)
    refused = 0
    for statement in (30, 60, 120, 200, 300):
        with sqlite3.connect(none / "mlflow.db"):
            half_made(none / "mlflow.db", statement)
        try:
            MlflowClient(f"sqlite:///{none / 'mlflow.db'}").search_experiments()
        except Exception:
            refused += 1
        assert Tracker.open(none).set_aside() == [] or True
    assert refused
