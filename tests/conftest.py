"""Fixtures shared by several test folders."""

from __future__ import annotations

import gc
import html
import importlib.util
import itertools
import json
import logging
import math
import multiprocessing.forkserver
import multiprocessing.util
import os
import re
import shutil
import signal
import sqlite3
import sys
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient
    from playwright.sync_api import Browser, Page

    from negbench.loop.runs import RunContext
    from negbench.loop.types import OpenRun
    from negbench.settings.config import RunConfig
    from negbench.store.runfolder import RunFolder
    from negbench.store.tracking import Tracker

gc.set_threshold(100_000, 1000, 1000)  # what outlives a collection, as imports do, is not walked through again
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in the Makefile: forked children hang with OpenMP threads
settings.load_profile("default" if "NEGBENCH_FUZZ" in os.environ else "ci")  # merging must not depend on chance
CHROMIUM = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # localhost only; Playwright's routes disable caching
)


def pytest_configure(config: pytest.Config) -> None:
    """Make xdist hand out files in the order below, not by their number of tests; keep all but `-m gpu` on the CPU."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests of a GPU where there is none, or where others run, too."""
    if item.get_closest_marker("gpu") and not importlib.import_module("torch").cuda.is_available():
        pytest.skip("needs a CUDA device, and `make gpu`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with the most slow tests first, so that short files remain to keep every worker busy at the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_sessionfinish() -> None:
    """Let the end of a worker of xdist, which collects garbage several times, pass over what is there."""
    if "PYTEST_XDIST_WORKER" in os.environ:  # elsewhere nanobind would list what it calls leaks
        gc.freeze()


class Forked:
    """A forked child that inherits all imports and runs one action; an interface like text-mode `subprocess.Popen`."""

    def __init__(self, action: Callable[[], object]) -> None:
        read, theirs_out = os.pipe()
        theirs_in, write = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            os.close(write)  # else its standard input would not end with this process
            self._child(action, theirs_in, theirs_out)
        os.close(theirs_in)
        os.close(theirs_out)
        self.stdin = os.fdopen(write, "w", encoding="utf-8")
        self.stdout = os.fdopen(read, encoding="utf-8")

    @staticmethod
    def _child(action: Callable[[], object], entry: int, output: int) -> None:
        """Run the action, then exit; never returns."""
        code = 1
        gc.freeze()  # what is the parent's, as a lost client of Ray, is not collected without its threads
        multiprocessing.forkserver._forkserver._forkserver_pid = None  # belongs to the parent; the child needs its own
        multiprocessing.util.spawnv_passfds = _forked_server
        try:
            os.dup2(entry, 0)
            os.dup2(output, 1)
            # a child of this child replaces these objects, whose end must not close what it has in their place
            sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
            sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
            sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)  # pytest's capture would print it twice
            action()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else bool(end.code)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        """Return the exit code, or None while the child runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        """Wait for the child and return its exit code."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def communicate(self) -> str:
        """Close standard input, wait for the child and return its remaining output."""
        self.stdin.close()
        out = self.stdout.read()
        self.wait()
        return out

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _forked_server(
    program: bytes, arguments: Sequence[str], handles: Sequence[int], spawn: Any = multiprocessing.util.spawnv_passfds
) -> int:
    """Fork a fork server, which inherits all imports, where `multiprocessing` would start an interpreter."""
    if "forkserver" not in arguments[-1]:
        return int(spawn(program, arguments, handles))
    pid = os.fork()
    if pid:
        return pid
    try:
        stay_open = sorted({0, 1, 2, *handles})
        for lower, upper in itertools.pairwise([*stay_open, os.sysconf("SC_OPEN_MAX")]):
            os.closerange(lower + 1, upper)
        exec(arguments[-1])
    except Exception:  # a server ends with SystemExit
        traceback.print_exc()
    finally:
        os._exit(0)


@pytest.fixture(scope="module")
def forked() -> Iterator[Callable[[Callable[[], object]], Forked]]:
    """Return a function that starts a `Forked` child; surviving children are killed when the fixture ends."""
    children: list[Forked] = []

    def start(action: Callable[[], object]) -> Forked:
        children.append(Forked(action))
        return children[-1]

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
            child.wait()
        with suppress(OSError):  # the child closed its end
            child.stdin.close()
        child.stdout.close()


def _command(arguments: list[str] | None) -> None:
    from negbench.cli.main import main

    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # pytest may ignore them: nohup, a shell's `&`
        signal.signal(number, signal.SIG_DFL)
    os.dup2(1, 2)
    main(json.loads(sys.stdin.readline()) if arguments is None else arguments)


@pytest.fixture(scope="module")
def start_command(forked: Callable[[Callable[[], object]], Forked]) -> Callable[[list[str] | None], Forked]:
    """Return a function that starts `negbench ARGUMENTS` as a process group leader, with stderr merged into stdout.

    Without arguments, the process first reads them as a line of JSON from standard input.
    """

    def start(arguments: list[str] | None) -> Forked:
        return forked(partial(_command, arguments))

    return start


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Undo the test's plug-in registrations when it ends, and whenever the function that this returns is called."""
    from negbench.plugins.registry import registry

    files = dict(registry._files)
    classes = dict(registry._classes)

    def restore() -> None:
        monkeypatch.setattr(registry, "_files", dict(files))
        monkeypatch.setattr(registry, "_classes", dict(classes))

    restore()
    return restore


@pytest.fixture(scope="session")
def strangers() -> Callable[[Path], Path]:
    """Return a function that makes a folder of modules named as libraries; each leaves a mark when it is imported."""

    def fill(folder: Path) -> Path:
        folder.mkdir()
        for name in ("mlflow", "torch", "numpy", "pandas", "negbench", "selectors", "uvicorn"):
            mark = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()"
            (folder / f"{name}.py").write_text(f"{mark}\nraise SystemExit('{name} ran')\n", encoding="utf-8")
        return folder

    return fill


@pytest.fixture
def set_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Return a function that sets this machine's memory, and the free space of its disks if given, in bytes."""
    from negbench.machine import free_memory as machine

    def limit(memory: int, disk: int | None = None) -> None:
        monkeypatch.setattr(machine, "machine_memory", lambda: memory)
        if disk is not None:
            usage = SimpleNamespace(total=2 * disk, used=disk, free=disk)
            monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)

    return limit


@pytest.fixture
def expect_error(capsys: pytest.CaptureFixture[str]) -> Callable[[Sequence[str], str], str]:
    """Return a check that a command exits with code 2 and a one-line error that contains a text; gives the line."""
    from negbench.cli.main import run

    def check(arguments: Sequence[str], text: str) -> str:
        capsys.readouterr()
        assert run([*arguments]) == 2, arguments
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("negbench: error: "), arguments
        assert text in line, arguments
        return line

    return check


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that runs a command, checks its exit code, and returns what it printed: `out` and `err`."""

    from negbench.cli.main import run

    def command(*arguments: object, code: int = 0) -> Any:
        capsys.readouterr()
        exit_code = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert exit_code == code, printed
        return printed

    return command


@pytest.fixture
def document(run_command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs a command with --json and returns its output, a single document."""

    def read(*arguments: object) -> Any:
        return json.loads(run_command(*arguments, "--json").out)

    return read


@pytest.fixture(scope="session")
def mistakes() -> dict[str, Any]:
    """Return, by command, what a user gives it wrongly -> the line that says so, or a part of it."""
    return tomllib.loads((Path(__file__).parent / "golden" / "mistakes.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def spelled() -> dict[str, Any]:
    """Return the texts, and what is made of each, by kind."""
    return tomllib.loads((Path(__file__).parent / "golden" / "spelled.toml").read_text(encoding="utf-8"))


@pytest.fixture
def spy_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[object, str], list[tuple[Any, ...]]]:
    """Return a function that lets a module, class or object note the calls of one of its functions.

    It returns a list that gets the positional arguments of each call; those of a class's method begin with `self`.
    """
    from tests.spies import spy

    def watch(owner: object, name: str) -> list[tuple[Any, ...]]:
        calls = list[tuple[Any, ...]]()
        monkeypatch.setattr(owner, name, spy(getattr(owner, name), calls))
        return calls

    return watch


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """Collect negbench's log records during the test, from level INFO up."""
    records = list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("negbench")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield records
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.fixture(scope="session")
def count_opened() -> Callable[[Path], AbstractContextManager[Counter[str]]]:
    """Return a context manager that counts, by name, how often the files of a folder are opened in its block."""
    watched: dict[str, Counter[str]] = {}

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and watched and isinstance(arguments[0], str | os.PathLike):
            folder, name = os.path.split(arguments[0])
            if folder in watched:
                watched[folder][name] += 1

    @contextmanager
    def counting(folder: Path) -> Iterator[Counter[str]]:
        watched[str(folder)] = Counter()
        try:
            yield watched[str(folder)]
        finally:
            del watched[str(folder)]

    sys.addaudithook(note)  # for good: Python removes none
    return counting


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of the real annotation files; skip the test if it is missing."""
    path = Path(os.environ.get("NEGBENCH_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (path / "fashioniq").is_dir():
        pytest.skip(f"no real annotation files at {path} (set NEGBENCH_SHARED_DATA)")
    return path


@pytest.fixture(scope="session")
def toy_root(shared_folder: Path) -> Path:
    """Write a tiny synthetic data set: three categories, each with 32 training images and 24 training queries."""
    from negbench.worlds._synthesis import Spec, ensure

    spec = Spec(world=1, twins=2, train_images=32, train_queries=24, val_images=16, val_queries=12)
    return ensure(shared_folder / "toy", spec)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the suite's processes share, for what takes seconds to make."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session", autouse=True)
def own_cache(shared_folder: Path, pytestconfig: pytest.Config) -> Path:
    """Keep data and features out of the user's cache; subprocesses inherit the setting.

    Machine code of the compiled passes stays in pytest's own cache, if it has one; numba renews it when their source
    changes.
    """
    from negbench.machine.files import lock_file

    path = shared_folder / "cache"
    with lock_file(shared_folder / "cache.lock"):
        if not path.exists():
            path.mkdir()
            if pytestconfig.pluginmanager.has_plugin("cacheprovider"):  # not with -p no:cacheprovider
                (path / "numba").symlink_to(pytestconfig.cache.mkdir("numba"))  # type: ignore[union-attr]
    os.environ["NEGBENCH_CACHE"] = str(path)
    os.environ.pop("NEGBENCH_RUNS", None)
    os.environ.pop("NEGBENCH_DATA", None)
    return path


@pytest.fixture(scope="session", autouse=True)
def fast_mode(shared_folder: Path) -> Iterator[Callable[[Tracker], MlflowClient]]:
    """Change what would make the tests slow or dependent on speed; this is all that they change for every test.

    - `os.fsync` does nothing and SQLite does not sync: tests kill processes, never the machine.
    - A run writes a checkpoint after its first epoch, and after each with `every_epoch`; time has no part in it.
    - A new MLflow store is a copy of the first one, as creating its tables takes seconds.
    - The command line's parser is made once.

    tests/loop/test_protocol.py tests fsync and the pauses between checkpoints as users have them;
    tests/test_tracking.py creates stores, with the original method, which this yields.
    """
    import typer.main

    from negbench.display import notes
    from negbench.loop import checkpoint
    from negbench.machine.files import lock_file
    from negbench.store.tracking import Tracker, default_uri

    connect = sqlite3.dbapi2.connect
    client = Tracker.client
    first = shared_folder / "store"

    def connect_without_sync(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        with suppress(sqlite3.Error):  # the file may not be a database
            connection.execute("PRAGMA synchronous = OFF")
        return connection

    def copy_first_store(tracker: Tracker, database: Path) -> None:
        with tracker.guard():
            notes(tracker._set_aside())  # marks the folder as the store's own; an unmarked one is taken for moved
        if not database.exists():
            with lock_file(first / "made.lock"):
                if not (first / database.name).exists():
                    client(Tracker.open(first)).search_experiments()
        with tracker.guard():
            try:
                if not database.exists():  # check again under the lock
                    shutil.copy(first / database.name, database)
            except OSError:  # disk full: create the store without the copy
                database.unlink(missing_ok=True)

    def client_of_a_copy(self: Tracker) -> MlflowClient:
        if self.uri == default_uri(self.root):
            copy_first_store(self, self.root / "mlflow.db")
        return client(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        for module in (sqlite3, sqlite3.dbapi2):  # SQLAlchemy uses the second
            patch.setattr(module, "connect", connect_without_sync)
        patch.setattr(checkpoint, "PAUSE", math.inf)
        patch.setattr(Tracker, "client", client_of_a_copy)
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield client


@pytest.fixture
def every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of the test and of its forked children write a checkpoint after every epoch."""
    monkeypatch.setattr("negbench.loop.checkpoint.PAUSE", 0)


@pytest.fixture(scope="session")
def statuses() -> Callable[..., Counter[str]]:
    """Return a function that counts the statuses of all MLflow runs in a runs folder's store."""
    from negbench.store.tracking import Tracker

    def count(runs: Path, uri: str | None = None) -> Counter[str]:
        client = Tracker.open(runs, uri).client()
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        return Counter(run.info.status for run in client.search_runs(experiments))

    return count


@pytest.fixture(scope="session")
def vector_sets(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """`--set` values for a 0.1 s run on vectors: two groups, each with 20 images and 24 training queries.

    It takes two epochs of two steps; pools are defined after the first.
    """
    from tests.vector_files import write_vectors

    training = ["train.epochs=2", "train.batch_size=24", "train.lr=0.03", "schedule.n_def=2"]
    return [*write_vectors(tmp_path_factory.mktemp("vectors")), *training]


@pytest.fixture(scope="session")
def longer(vector_sets: list[str]) -> list[str]:
    """`vector_sets` for a longer run: four epochs of three steps; pools are defined after two."""
    return [*vector_sets[:-4], "train.epochs=4", "train.batch_size=16", "train.lr=0.03", "schedule.n_def=2"]


@pytest.fixture(scope="module")
def vector_flags(vector_sets: list[str]) -> list[str]:
    """`vector_sets` as arguments of a command; of a module, as tests/loop and others have their own `vector_sets`."""
    from tests.runs import flags_of

    return flags_of(vector_sets)


@pytest.fixture(scope="session")
def toy_sets(toy_root: Path) -> list[str]:
    """`--set` values for a run of half a second on `toy_root`."""
    training = ["train.epochs=2", "train.batch_size=36", "schedule.n_def=2"]
    return [f"dataset.root='{toy_root}'", "backbone.weights='random'", *training]


@pytest.fixture(scope="session")
def finished(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunFolder]:
    """Return a function that gives a run, computed once, by a setting of `eval`; tests change only copies."""
    from negbench.loop.runs import RunContext, compute_or_reuse
    from negbench.systems.system import load_config

    context = RunContext.open(tmp_path_factory.mktemp("finished"), "none")

    def compute(setting: str, strategy: str = "qure") -> RunFolder:
        sets = [*vector_sets, f"eval.{setting}", "eval.dev_fraction=0.2"]
        return compute_or_reuse(load_config(flags={"strategy": {"name": strategy}}, sets=sets), context).folder

    return compute


@pytest.fixture
def ui_commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """Collect the servers' commands and environments that `negbench ui` would replace its process with."""
    started = list[tuple[list[str], dict[str, str]]]()

    def execve(program: str, command: list[str], environment: dict[str, str]) -> None:
        started.append((command, environment))

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr("negbench.cli.ui._SAY", "")
    return started


@pytest.fixture(scope="session")
def interrupted() -> Callable[[RunConfig, Path, int], RunContext]:
    """Return a function that interrupts a run by Ctrl-C in the first step of an epoch; returns what resumes it."""
    from negbench.loop.runs import DATA, RunContext, compute_or_reuse
    from negbench.loop.types import Callbacks, State

    def compute(config: RunConfig, where: Path, epoch: int) -> RunContext:
        def stop(parts: object, state: State, batch: object) -> None:
            if state.epoch == epoch:
                raise KeyboardInterrupt

        context = replace(RunContext.open(where, "none"), cache=DATA)
        with pytest.raises(KeyboardInterrupt):
            compute_or_reuse(config, replace(context, callbacks=Callbacks(stepped=stop)))
        return context

    return compute


@pytest.fixture
def watch_epochs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], None]], None]:
    """Return a function that installs a callback on the epoch of every recorded point; its errors fail the run."""
    from negbench.loop.types import State

    wrap_recorder = State.wrap_recorder

    def start(watch: Callable[[int], None]) -> None:
        def wrap_and_watch(self: State, record_point: Any) -> Any:
            record = wrap_recorder(self, record_point)

            def record_and_watch(values: Any, step: int, epoch: int) -> None:
                record(values, step, epoch)
                if epoch >= 0:
                    watch(epoch)

            return record_and_watch

        monkeypatch.setattr(State, "wrap_recorder", wrap_and_watch)

    return start


@pytest.fixture
def before_training(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[OpenRun], object]], None]:
    """Return a function that installs a callback on every run that is to be trained; its errors fail the run."""
    from negbench.loop import runs

    train = runs.train

    def start(check: Callable[[OpenRun], object]) -> None:
        def check_and_train(run: OpenRun, *arguments: Any) -> Any:
            check(run)
            return train(run, *arguments)

        monkeypatch.setattr(runs, "train", check_and_train)

    return start


@pytest.fixture
def golden() -> Callable[[str, Mapping[str, Sequence[str]]], None]:
    """Return a check of the lines of answers, by case, against tests/golden/KIND.txt; NEGBENCH_GOLDEN=1 writes it."""

    def check(kind: str, answers: Mapping[str, Sequence[str]]) -> None:
        path = Path(__file__).with_name("golden") / f"{kind}.txt"
        text = "\n".join("\n".join([f"# {case}", *lines, ""]) for case, lines in answers.items())
        if "NEGBENCH_GOLDEN" in os.environ:
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium, restricted to servers on localhost; skip the test if it is not installed."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium: `make system` installs one")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=CHROMIUM)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def words_of() -> Callable[[Path], str]:
    """Return a function that reads a page's text without `wbr` and `span` tags and with characters unescaped."""

    def read(page: Path) -> str:
        return html.unescape(re.sub(r"<wbr>|</?span[^>]*>", "", page.read_text(encoding="utf-8"))).replace("\xa0", " ")

    return read


@pytest.fixture(scope="session")
def axe() -> Callable[..., list[str]]:
    """Return a function that lists axe-core's violations in an open page or selector: rule, problem and elements.

    Only violations are collected: most of the time would go into listing every element that passed.
    """
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        pytest.skip("axe is not installed: pip install '.[dev]'")
    script = (Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8")

    def violations(page: Page, part: str = "html") -> list[str]:
        page.evaluate(script)
        options = "{resultTypes: ['violations']}"
        rules = page.evaluate(f"part => axe.run(part, {options}).then(found => found.violations)", part)
        lines = []
        for rule in rules:
            elements = [node["target"] for node in rule["nodes"][:5]]
            lines.append(f"{rule['id']}: {rule['help']}: {elements}")
        return lines

    return violations


@pytest.fixture(scope="session")
def load_file() -> Callable[[Path], ModuleType]:
    """Return a function that imports a Python file outside any package, such as a test helper or an example."""

    def load(path: Path) -> ModuleType:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # dataclasses look up their types here
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def standin(load_file: Callable[[Path], ModuleType]) -> ModuleType:
    """Import `standin.py`, which writes annotation files with stand-in pictures."""
    return load_file(Path(__file__).with_name("standin.py"))


@pytest.fixture(scope="session")
def toys(load_file: Callable[[Path], ModuleType], standin: ModuleType) -> ModuleType:
    """Import `datasets/toys.py`, which writes a small copy of every data set with pictures from `standin`."""
    return load_file(Path(__file__).parent / "datasets" / "toys.py")
