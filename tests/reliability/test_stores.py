"""MLflow servers and databases that stop and come back: nothing is lost or runs for ever, no password is shown."""

import gzip
import itertools
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from kills import many
from mlflow.tracking import MlflowClient
from servers import Database, Line, Server, contents

from negbench.cli.main import run as negbench
from negbench.errors import NegbenchError, RunError
from negbench.machine.signals import Stopped
from negbench.store import patience
from negbench.store.tracking import Tracker, default_uri

SECRET = "hunter2-Geheimnis"
GRID = ("compare", "--strategies", "qure,dqe", "--lr", "fixed", "--seeds", "2", "--no-report", "--name", "c")


def again_by(how: str, flags: list[str]) -> list[str]:
    return {"rerun": [*GRID, *flags], "ui": ["ui", "c"], "doctor": ["doctor"]}[how]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Start `mlflow server` with an empty store, which takes it seconds to make; return its port."""
    folder = tmp_path_factory.mktemp("server")
    Tracker.open(folder).client()
    (folder / "mlflow.db").rename(folder / "store.db")
    started = Server(folder)
    yield started.port
    started.stop()


@pytest.fixture
def line(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """Return a line to the server; a store that failed is asked again at once."""
    monkeypatch.setattr(patience, "FORGET", 0.0)
    monkeypatch.setattr(patience, "SILENT", {})
    cable = Line(server)
    yield cable
    cable.mend()
    client = MlflowClient(f"http://127.0.0.1:{cable.port}")
    for experiment in client.search_experiments():
        if experiment.experiment_id != "0":  # the next test's has the same name
            client.rename_experiment(experiment.experiment_id, f"{experiment.name}-{experiment.experiment_id}")
    cable.cut()


@dataclass(frozen=True)
class Undisturbed:
    """A runs folder with the grid and its store, and what the store shows."""

    runs: Path
    contents: dict[str, Any]


@pytest.fixture(scope="module")
def undisturbed(vector_flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    runs = tmp_path_factory.mktemp("undisturbed") / "runs"
    assert negbench([*GRID, *vector_flags, "--runs-dir", str(runs)]) == 0
    want = contents(default_uri(runs), "c")
    assert want["runs"] == {"cell FINISHED": 4, "summary FINISHED": 2, "comparison FINISHED": 1}
    assert want["loose"] == []
    assert "table.md" in want["files"]["c"]
    assert want["answer"].startswith("R@10 ")
    return Undisturbed(runs, want)


@pytest.mark.parametrize(("sent", "again"), [(0, "rerun"), (60, "doctor"), (7, "ui"), (100, "ui")][: many(2, 4)])
def test_a_server_that_stops_gets_all_when_it_is_back(sent, again, line, undisturbed, vector_flags, tmp_path, capfd):
    """It stops at the start, or after some packets: while it gets a parent, a cell, a summary."""
    uri = f"http://alice:{SECRET}@127.0.0.1:{line.port}"
    address = f"http://127.0.0.1:{line.port}"
    store_flags = ["--runs-dir", str(tmp_path / "runs"), "--tracking-uri", uri]
    line.mend(sent)
    assert negbench([*GRID, *vector_flags, *store_flags]) == 0
    out, err = capfd.readouterr()
    lost = [text for text in err.splitlines() if " are not copied: " in text]
    assert len(lost) == 1, err
    assert " of 4 runs, and the summary of 'c' are not copied: rerun the command, or `negbench ui`" in lost[0]
    line.mend()
    assert negbench(again_by(again, vector_flags) + store_flags) == 0
    printed = "".join(capfd.readouterr())
    assert contents(address, "c") == undisturbed.contents
    assert SECRET not in out + err + printed
    if again == "ui":  # the server's own page
        page = next(text for text in printed.splitlines() if text.startswith(f"{address}/#/experiments/"))
        assert "orderByKey=tags.%60negbench.place%60" in page  # by the rows' own order
    if again != "rerun":
        assert " and the summary of c that the store lacked" in printed or "copied the summary of c that" in printed
    line.cut()  # whole: nobody is asked
    assert negbench([*GRID, *vector_flags, *store_flags]) == 0
    assert " fails (" not in capfd.readouterr().err


@pytest.mark.usefixtures("line")
def test_a_server_is_used_without_a_word_of_mlflow(line, vector_flags, tmp_path, capfd):
    uri = f"http://alice:{SECRET}@127.0.0.1:{line.port}"
    store_flags = [*vector_flags, "--runs-dir", str(tmp_path), "--tracking-uri", uri]
    assert negbench(["run", "--strategy", "qure", "--json", *store_flags]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["reused"] is False
    assert negbench(["run", "--strategy", "dqe", "-q", *store_flags]) == 0
    more = capfd.readouterr()
    assert more.err == ""
    assert SECRET not in out + err + more.out
    assert "View" not in more.out


@pytest.mark.usefixtures("ui_commands")
@pytest.mark.parametrize("again", ["ui", "rerun", "doctor"][: many(1, 3)])
def test_a_copied_folder_shows_the_comparison_as_where_it_was_made(again, undisturbed, vector_flags, tmp_path, capfd):
    copy = tmp_path / "copy"
    shutil.copytree(undisturbed.runs, copy)
    assert negbench([*again_by(again, vector_flags), "--runs-dir", str(copy)]) == 0
    assert "its MLflow store is now mlflow-moved.db" in "".join(capfd.readouterr())
    assert contents(default_uri(copy), "c") == undisturbed.contents
    assert "CHART" in Tracker.open(copy).address("c")


def cut_off(store: Path, statements: int) -> None:
    """Let MLflow make its tables in a new file, and stop it after so many statements, as a kill does."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    count = 0

    def stop(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > statements:
            raise Stopped(signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", stop)
    try:
        with pytest.raises(Stopped):
            MlflowClient(f"sqlite:///{store}").search_experiments()
    finally:
        event.remove(Engine, "before_cursor_execute", stop)


@pytest.mark.slow
@pytest.mark.parametrize("again", ["rerun", "doctor"][: many(1, 2)])
def test_a_half_made_store_is_made_again(again, undisturbed, vector_flags, fast_mode, monkeypatch, capfd, tmp_path):
    """MLflow refuses it for ever: it adds columns that are there."""
    runs = tmp_path / "runs"
    half_made = tmp_path / "half-made.db"
    assert negbench([*GRID, *vector_flags, "--runs-dir", str(runs), "--tracking-uri", "none"]) == 0
    monkeypatch.setattr(Tracker, "client", fast_mode)
    tracker = Tracker.open(runs)
    tracker.set_aside()  # marks the folder as the store's
    cut_off(half_made, 40)
    shutil.copy(half_made, runs / "mlflow.db")
    remark = f"the MLflow store {runs / 'mlflow.db'} was half made when a kill came: a new one takes its place"
    assert tracker.set_aside() == [remark]
    shutil.copy(half_made, runs / "mlflow.db")
    with pytest.raises(Exception, match="duplicate column name"):
        MlflowClient(f"sqlite:///{half_made}").search_experiments()
    assert negbench([*again_by(again, vector_flags), "--runs-dir", str(runs)]) == 0
    assert "was half made when a kill came" in "".join(capfd.readouterr())
    assert contents(default_uri(runs), "c") == undisturbed.contents


@pytest.mark.parametrize(("content", "text"), [(None, "a named pipe"), (b"PK" * 50, "is no SQLite database")])
@pytest.mark.parametrize("named", [True, False])
def test_a_store_that_is_no_database_is_one_line(tmp_path, content, text, named):
    """Of a received runs folder that knows where it will lie, or named by --tracking-uri."""
    Tracker.open(tmp_path).set_aside()  # marks the folder as the store's
    path = tmp_path / ("other.db" if named else "mlflow.db")
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    tracker = Tracker.open(tmp_path, f"sqlite:///{path}" if named else None)
    with pytest.raises(NegbenchError, match=text):
        tracker.client()


@pytest.fixture(scope="module")
def database() -> Iterator[int]:
    """Start PostgreSQL where the machine has it; return its port."""
    try:
        started = Database()
    except RuntimeError as error:
        pytest.skip(str(error))
    yield started.port
    started.stop()


def turns(command: list[str], line: Line, sent: int, capfd: Any) -> tuple[str, str]:
    """Give a command while its database stops after some packets, then again; return what each printed as errors."""
    line.mend(sent)
    negbench(command)
    errors = capfd.readouterr().err
    assert "Traceback" not in errors
    line.mend()
    code = negbench(command)
    errors_again = capfd.readouterr().err
    assert code == 0, errors_again
    assert SECRET not in errors + errors_again
    return errors, errors_again


@pytest.mark.parametrize("sent", [200, 60, 330][: many(1, 3)])
def test_a_study_whose_database_stops_ends_with_the_same_trials(sent, database, vector_flags, tmp_path, capfd):
    """It stops while the study is opened, and while trials are drawn, computed and told."""
    line = Line(database)
    address = f"postgresql+psycopg://alice:{SECRET}@127.0.0.1:{line.port}/studies"
    study = ["study", "--strategy", "dqe", "--trials", "3", "--seeds", "1", "--final-seeds", "0", *vector_flags]
    study += ["--tracking-uri", "none", "--name", f"s{sent}"]
    first, _ = turns([*study, "--runs-dir", str(tmp_path / "a"), "--storage", address], line, sent, capfd)
    (text,) = first.splitlines()[-1:]
    assert text.startswith("negbench: error: the study's storage postgresql+psycopg://alice@127.0.0.1:")
    line.cut()
    assert negbench([*study, "--runs-dir", str(tmp_path / "b")]) == 0
    resumed = pd.read_csv(tmp_path / "a" / f"s{sent}" / "trials.csv")
    whole = pd.read_csv(tmp_path / "b" / f"s{sent}" / "trials.csv")
    columns = [name for name in whole if name not in ("seconds", "why")]
    pd.testing.assert_frame_equal(resumed[columns], whole[columns])


@pytest.mark.skipif(not many(0, 1), reason="a server and a study whose database stops stay: `make faults`")
def test_a_comparison_whose_database_stops_is_copied_whole_when_it_is_back(
    database, undisturbed, vector_flags, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(patience, "FORGET", 0.0)
    monkeypatch.chdir(tmp_path)  # MLflow puts artifacts into the current folder
    line = Line(database)
    address = f"postgresql+psycopg://alice:{SECRET}@127.0.0.1:{line.port}/runs"
    command = [*GRID, *vector_flags, "--runs-dir", str(tmp_path / "runs"), "--tracking-uri", address]
    Tracker.open(tmp_path, address).client()  # makes the tables
    first, again = turns(command, line, 100, capfd)
    (lost,) = [text for text in first.splitlines() if " are not copied: " in text]
    assert lost.startswith(f"postgresql+psycopg://alice@127.0.0.1:{line.port}/runs fails (")
    assert " are not copied: " not in again
    copied = contents(address, "c")
    for key in ("runs", "values", "loose", "answer"):
        assert copied[key] == undisturbed.contents[key], key
    line.cut()


# --- servers that answer without end -------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def one_by_one(text: bytes, rest: bytes) -> Iterator[bytes]:
    """Yield a text at once, then the rest a byte at a time, five a second."""
    yield text
    for number in itertools.count():
        time.sleep(0.2)
        yield rest[number % len(rest) :][:1]


def without_end(text: bytes, part: bytes) -> Iterator[bytes]:
    """Yield a text, then the same part again and again."""
    yield text
    yield from itertools.repeat(part)


ENDLESS: dict[str, Callable[[], Iterator[bytes]]] = {
    "a body that drips": partial(one_by_one, HEAD + b"Content-Length: 999\r\n\r\n", b" "),
    "headers that drip": partial(one_by_one, b"HTTP/1.1 200 OK\r\nA: ", b"a"),
    "a status that drips": partial(one_by_one, b"HTTP/1.1 200 ", b"O"),
    "a body without end": partial(without_end, HEAD + b"\r\n", b"[" * 2**16),
    "a packed body without end": partial(
        without_end, HEAD + b"Content-Encoding: gzip\r\n\r\n", gzip.compress(bytes(2**24))
    ),
}


@pytest.fixture
def endless(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the address of a server that never ends its answer."""
    monkeypatch.setattr(patience, "SILENT", {})
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    stopped = threading.Event()

    def answer(client: socket.socket) -> None:
        with suppress(OSError), client:
            client.recv(65536)
            for part in ENDLESS[request.param]():
                if stopped.is_set():
                    return
                client.sendall(part)

    def accept(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        stopped.set()
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("endless", ENDLESS, indirect=True)
def test_a_server_whose_answer_never_ends_is_given_up(endless, tmp_path):
    """MLflow alone would wait for ever: its seconds count from one byte to the next."""
    begun = time.monotonic()
    with pytest.raises(RunError, match=r"^http://127\.0\.0\.1:\d+ fails \(") as first:
        Tracker.open(tmp_path, endless).client()
    with pytest.raises(RunError) as second:  # not asked again for a minute
        Tracker.open(tmp_path, endless).client()
    assert str(second.value) == str(first.value)
    assert time.monotonic() - begun < 60  # of a loaded machine; without the limit it never ends


@pytest.mark.parametrize("endless", ["a body that drips"], indirect=True)
def test_a_run_goes_on_without_a_copy(endless, vector_flags, tmp_path, run_command):
    short = ["--set", "train.epochs=2", "--runs-dir", str(tmp_path), "--tracking-uri", endless]
    lines = run_command("run", "--strategy", "qure", *vector_flags, *short)
    words = " ".join((lines.out + lines.err).split())
    assert f"{endless} fails (its answer is not whole after 2 seconds)" in words
    assert list(tmp_path.glob("*/result.json"))
