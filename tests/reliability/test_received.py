"""What a folder from somebody else may do: each row of SECURITY.md's table, by commands watched from inside.

The folder is full of traps: modules, plug-ins and pickles that leave a mark, addresses of a server on this machine that
counts its visitors, a store and links that lead elsewhere. A child process reports each connection, each program
started, each file of code executed below the folder, and each change outside of the runs folder and the cache.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest

from negbench import api
from negbench.cli.main import run as negbench
from negbench.machine.files import write_json
from negbench.store.runfolder import RunFolder
from tests.runs import flags_of
from tests.vector_files import write_vectors

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.rmdir", "shutil.rmtree"}
STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.getaddrinfo"}
TRAP = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()\n"
SEARCH = "study --strategy all-corpus --search train.lr=0.01|0.03 --sampler grid --final-seeds 0 --name searched"
SETS = ("train.epochs=2", "train.batch_size=16", "train.lr=0.03")


@pytest.fixture
def deeds(forked: Callable[..., Any]) -> Callable[..., list[str]]:
    """Return a function that runs an action in a child process, and lists what no received folder may cause."""

    def list_deeds(action: Callable[[], Any], received: Path, allowed: list[Path]) -> list[str]:
        child = forked(partial(_watch, action, str(received), tuple(str(path) for path in allowed)))
        lines = [*dict.fromkeys(child.communicate().splitlines())]
        return lines if child.returncode == 0 else [*lines, "the child failed"]

    return list_deeds


def _watch(action: Callable[[], Any], received: str, allowed: tuple[str, ...]) -> None:
    """Run the action and print its deeds alone."""

    def note(*words: object) -> None:
        line = " ".join(str(word) for word in words).replace("\n", " ")
        os.write(1, f"{line}\n".encode())

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        harmless = arguments[:1] == ("fc-list",) or (event == "socket.connect" and isinstance(arguments[1], str))
        if event in STARTS and not harmless:  # matplotlib lists fonts; a path is a socket of this process's children
            note(event, arguments[0] if event != "socket.connect" else arguments[1])
        elif event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(received):
            note(event, arguments[0].co_filename)
        elif event == "pickle.find_class" and str(arguments[0]).startswith(("posix", "os", "pathlib", "builtins")):
            note(event, *arguments)
        elif event in CHANGES or event in ("open", "sqlite3.connect"):
            path = arguments[0]
            reads = event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
            if reads or not isinstance(path, str | bytes | os.PathLike):
                return
            real = os.path.realpath(os.fsdecode(path).removeprefix("file:"))
            if not real.startswith((*allowed, "/dev/null", "/proc/")):
                note(event, real)

    sys.dont_write_bytecode = True  # a clean clone compiles modules at their first import
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        sys.addaudithook(watch)
        action()


@dataclass(frozen=True)
class Honest:
    """A folder with data and with a runs folder (a comparison, a study), and the flags of its runs."""

    folder: Path
    flags: list[str]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Honest:
    folder = tmp_path_factory.mktemp("honest")
    flags = flags_of([*write_vectors(folder / "own"), *SETS])
    runs = ["--runs-dir", str(folder / "runs")]
    grid = ["--strategies", "qure,in-batch", "--seeds", "1", "--name", "duel", "--no-report", "--lr=fixed"]
    assert negbench(["compare", *grid, *flags, *runs]) == 0
    assert negbench([*SEARCH.split(), *flags, *runs]) == 0
    return Honest(folder, flags)


@dataclass(frozen=True)
class Visited:
    """A server on this machine: its address, and whether anybody has connected."""

    address: str
    anybody: Callable[[], bool]


@pytest.fixture
def visited() -> Iterator[Visited]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)

        def anybody() -> bool:
            try:
                server.accept()
            except BlockingIOError:
                return False
            return True

        yield Visited(f"127.0.0.1:{server.getsockname()[1]}", anybody)


@pytest.fixture
def received(honest: Honest, tmp_path: Path, visited: Visited) -> Path:
    """Return a copy of the folder with every trap in it."""
    copy = tmp_path / "received"
    shutil.copytree(honest.folder, copy)
    runs = copy / "runs"
    for folder in (copy / "own", runs, runs / "duel", *runs.glob("qure-*")):
        for name in ("my_strategy", "sitecustomize", "conftest", "torch", "mlflow", "negbench"):
            (folder / f"{name}.py").write_text(TRAP, encoding="utf-8")
    note = json.loads((runs / "searched" / "study.json").read_text(encoding="utf-8"))
    write_json(runs / "elsewhere" / "study.json", {**note, "storage": f"postgresql://{visited.address}/x"})
    for path in runs.rglob("mlflow.json"):
        write_json(path, {**json.loads(path.read_text(encoding="utf-8")), "uri": f"http://{visited.address}"})
    for path in runs.glob("qure-*"):
        manifest = RunFolder(path).manifest
        manifest["config"]["plugins"] = [str(path / "my_strategy.py")]
        RunFolder(path).write_manifest(manifest)
    (copy / "recipe.toml").write_text(
        f'[study]\nstorage = "sqlite:///{tmp_path}/outside.db"\n[compare]\ntracking_uri = "http://{visited.address}"\n',
        encoding="utf-8",
    )
    return copy


def command(*words: str, code: int = 0) -> Callable[[], None]:
    """Return a function that runs a command, and checks its exit code."""

    def run() -> None:
        assert negbench([*words]) == code, words

    return run


def rows_of_the_table(received: Path, honest: Honest) -> dict[str, Callable[[], Any]]:
    """Return what the rows of SECURITY.md's table do with a received folder."""
    runs = received / "runs"
    data = received / "own"
    runs_flags = ["--runs-dir", str(runs)]
    flags = [word.replace(str(honest.folder), str(received)) for word in honest.flags]
    grid = ["compare", "--strategies", "qure,in-batch", "--seeds", "1", "--name", "duel", "--no-report", "--lr=fixed"]

    def read_trials_elsewhere() -> None:
        with pytest.raises(Exception, match="opened only if you name it"):
            _ = api.load("elsewhere", runs).trials

    return {
        "listing": command("doctor", *runs_flags),
        "reading a comparison": lambda: repr(api.load("duel", runs)),
        "reading a study": lambda: repr(api.load("searched", runs)),
        "reading a study elsewhere": read_trials_elsewhere,
        "reporting": command("report", "duel", *runs_flags),
        "scoring again": command("evaluate", "in-batch", "--dataset", f"{data}/triplets.jsonl", *runs_flags),
        "scoring a run that names code": command("evaluate", "qure", *runs_flags),
        "mining with a run": command(
            "mine", "--run", "in-batch", "--strategy", "qure", f"--out={data}/n.parquet", *runs_flags
        ),
        "resuming a comparison": command(*grid, *flags, *runs_flags),
        "resuming a study": command(*SEARCH.split(), *honest.flags, *runs_flags),
        "a run": command("run", "--strategy", "qure", *flags, *runs_flags),
        "a data folder": command("init", str(data)),
        "a data folder's recipe": command("audit", "--recipe", f"{data}/recipe.toml", "--strategy", "qure"),
        "a recipe": command("compare", "--recipe", str(received / "recipe.toml"), *runs_flags, code=2),
        "a recipe of a study": command("study", "--recipe", str(received / "recipe.toml"), *runs_flags, code=2),
    }


@pytest.mark.slow
def test_the_rows_of_the_table_of_received_folders(
    received, honest, visited, deeds, own_registry, tmp_path, own_cache, monkeypatch
):
    """Secrets of the environment would show as a connection, as no row may connect to anything."""
    for name in ("PGPASSWORD", "MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("MPLCONFIGDIR", str(own_cache))
    monkeypatch.chdir(received / "runs")
    allowed = [Path(tempfile.gettempdir()) / "negbench-miner-", own_cache, own_cache.with_name("store")]
    allowed += [received / "runs", received / "own"]
    bad_deeds = {}
    for row, action in rows_of_the_table(received, honest).items():
        lines = deeds(action, received, allowed)
        if lines:
            bad_deeds[row] = lines
    assert bad_deeds == {}, json.dumps(bad_deeds, indent=1)
    assert not list(received.rglob("*.ran"))
    assert not visited.anybody()
    assert not (tmp_path / "outside.db").exists()


LINKS = {  # an entry of the runs folder that leads elsewhere -> the command that would write through it
    **dict.fromkeys(
        ("duel/SHA256SUMS", "duel/.lock", ".claims.lock", "artifacts"),
        "compare --strategies qure,in-batch --seeds 2 --name duel --lr=fixed --no-report",
    ),
    **dict.fromkeys(("duel", "duel/report"), "report duel"),
    **dict.fromkeys(("searched/optuna.journal", "searched/cells"), f"{SEARCH} --trials 3"),
}


@pytest.mark.slow
@pytest.mark.parametrize("at", LINKS)
def test_nothing_is_written_through_a_link(honest, tmp_path, capsys, at):
    shutil.copytree(honest.folder / "runs", tmp_path / "runs")
    path = tmp_path / "runs" / at
    elsewhere = tmp_path / "elsewhere"
    if path.exists():
        shutil.move(path, elsewhere)
    else:
        elsewhere.mkdir()
    path.symlink_to(elsewhere)
    before = contents(elsewhere)
    flags = honest.flags if LINKS[at] != "report duel" else []
    code = negbench([*LINKS[at].split(), *flags, "--runs-dir", str(tmp_path / "runs")])
    assert code == (0 if at == "artifacts" else 2)  # a store that fails costs a remark, never a run
    assert "link" in capsys.readouterr().err
    assert contents(elsewhere) == before


def contents(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in (path, *path.rglob("*")) if file.is_file()}


def test_the_watch_sees_each_kind_of_deed(tmp_path, visited, deeds):
    """The oracle itself: connecting, writing outside, running a file of the folder, opening a database, a program."""
    (tmp_path / "code.py").write_text("x = 1\n", encoding="utf-8")
    host, port = visited.address.split(":")

    def execute_code() -> None:
        exec(compile("x = 1", str(tmp_path / "code.py"), "exec"))

    deed: dict[str, Callable[[], Any]] = {
        "socket.connect": lambda: socket.create_connection((host, int(port))),
        "open": lambda: (tmp_path / "written").write_text("x"),
        "sqlite3.connect": lambda: optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db"),
        "exec": execute_code,
        "os.system": lambda: os.system("true"),
        "os.mkdir": lambda: (tmp_path / "folder").mkdir(),
    }
    for kind, action in deed.items():
        lines = deeds(action, tmp_path, [])
        assert any(line.startswith(kind) for line in lines), f"{kind} is not among {lines}"
