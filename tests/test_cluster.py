"""A grid on a two-node Ray cluster while one node is killed; errors and signals; no process is left running."""

import contextlib
import itertools
import json
import logging
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from negbench.data.scene import DataCache
from negbench.display import Display
from negbench.errors import NegbenchError, OptionError
from negbench.grid.axes import Axes
from negbench.grid.cells import Cell, plan_cells
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.compute import Execution, compute_and_log
from negbench.grid.executors import Executor, InProcess
from negbench.machine.files import SUMS
from negbench.settings.options import Compare
from negbench.store.runfolder import RunFolder

pytestmark = pytest.mark.slow
half_a_minute = pytest.mark.skipif("NEGBENCH_FAULTS" not in os.environ, reason="takes half a minute: `make faults`")
ray = pytest.importorskip("ray")

from negbench.grid import cluster  # noqa: E402
from negbench.grid.cluster import Ray  # noqa: E402
from tests.cluster_tasks import meet, span, task  # noqa: E402


@pytest.fixture(scope="module")
def two_nodes(start_command: Callable[[list[str] | None], Any]) -> Iterator[Any]:
    """Start a cluster of two nodes with one CPU each; this process stays connected until the module ends.

    The second node claims a GPU, as Ray only counts. Both ignore Ctrl-C, like background processes of a script.
    `command` is a process that waits for its command line; forked later, it would believe it is already connected.
    """
    from ray.cluster_utils import Cluster

    handler = signal.getsignal(signal.SIGTERM)
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # socket paths have a length limit
    environment = pytest.MonkeyPatch()
    environment.setenv("RAY_AUTH_MODE", "disabled")  # otherwise Ray uses the user's token
    environment.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # for the modules of the tasks
    environment.delenv("CUDA_VISIBLE_DEVICES")  # empty in tests, which a node with a GPU refuses
    environment.setenv("RAY_TMPDIR", folder)  # Ray writes the cluster's address here; the folder must exist
    (Path(folder) / "ray").mkdir()
    command = start_command(None)
    ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN)
    head = {"num_cpus": 1, "include_dashboard": False, "no_monitor": True, "temp_dir": folder}
    head["include_log_monitor"] = "NEGBENCH_FAULTS" in os.environ  # only then is what it forwards looked for
    nodes = Cluster(True, head_node_args=head)
    nodes.second = nodes.add_node(num_cpus=1, num_gpus=1)
    nodes.command = command
    signal.signal(signal.SIGINT, ctrl_c)
    try:
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()
        environment.undo()
        signal.signal(signal.SIGTERM, handler)
        deadline = time.monotonic() + 20
        survivors = living(folder)
        while survivors:
            assert time.monotonic() < deadline, survivors
            time.sleep(0.1)
            survivors = living(folder)
        shutil.rmtree(folder)


def living(text: str) -> list[str]:
    """Return the command lines of other processes that contain a text."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().decode(errors="replace")
            if text in line and int(path.parent.name) != os.getpid():
                lines.append(line.replace("\0", " "))
    return lines


def open_ray(two_nodes: Any, *shared: Path, **options: Any) -> Ray:
    return Ray.open(shared, two_nodes.address, **{"gpus": 0.0, **options})


# --- tasks ---------------------------------------------------------------------------------------------------------


def test_failures_stop_nothing(subtests, two_nodes, tmp_path, monkeypatch):
    monkeypatch.setenv("NEGBENCH_TOKEN", "of the driver")
    tasks = [1, "mistake", 2, "fault", "die", 3]
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    executor = open_ray(two_nodes, tmp_path)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert (executor.workers, executor.elsewhere) == (2, True)
    events = list(Ray(executor.shared, 1, 0, executor.room, retries=1).run(task, tasks))
    ends = {event.index: event for event in events if event.kind != "note"}
    assert len(ends) == len(tasks)
    done = {tasks[index]: event.value for index, event in ends.items() if event.kind == "done"}
    assert done == {n: (2 * n, "of the driver", "", str(Path.cwd())) for n in (1, 2, 3)}
    assert ends[1].value == "mend this"
    assert (ends[3].value, "Traceback" in ends[3].detail) == ("ValueError: ours", True)
    assert ends[4].value == "its worker process died, 2 times"
    notes = [(event.index, event.value) for event in events if event.kind == "note"]
    assert sorted(notes) == [(0, "at 1"), (2, "at 2"), (4, "its worker process died: tried again"), (5, "at 3")]
    for index in (0, 2, 5):  # a task's note precedes its end
        with subtests.test(index=index):
            assert [event.kind for event in events if event.index == index] == ["note", "done"]
    assert list(tmp_path.iterdir()) == []  # no marker file is left


def test_as_many_at_a_time_as_is_said(two_nodes, tmp_path):
    executor = open_ray(two_nodes, tmp_path, most=1)
    spans = sorted(event.value for event in executor.run(span, [0.3] * 3))
    assert len(spans) == 3
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start, spans


# --- a grid --------------------------------------------------------------------------------------------------------


def plan(vector_sets: list[str], runs: Path) -> list[Cell]:
    options = Compare(strategies="qure,in-batch", seeds=2, sets=(*vector_sets, "train.epochs=40"))
    return plan_cells(Axes.of(options).configs(), runs, Display(), DataCache())


def compute(vector_sets: list[str], runs: Path, executor: Executor) -> dict[str, RunFolder]:
    """Compute the grid; return the folders of its runs by the hashes of its cells."""
    folders = {}
    cells = plan(vector_sets, runs)
    for outcome in compute_and_log(ComparisonFolder(runs / "c"), cells, Execution(executor, "none")):
        assert outcome.error is None, outcome.cell.labels
        assert outcome.cell.hash not in folders, outcome.cell.labels
        folders[outcome.cell.hash] = RunFolder(runs / outcome.run_id)
    return folders


def kill_when_busy(two_nodes: Any, runs: Path, done: list[float]) -> None:
    """Kill all processes of the second node by SIGKILL once both nodes are computing a cell."""
    while sum(RunFolder(path.parent).status == "interrupted" for path in runs.glob("*/checkpoint.pt")) < 2:
        time.sleep(0.02)
    two_nodes.remove_node(two_nodes.second, allow_graceful=False)
    done.append(time.monotonic())


@half_a_minute
def test_a_grid_survives_a_killed_node_and_equals_one_machines(two_nodes, vector_sets, tmp_path, logged, capfd):
    runs = tmp_path / "of two nodes"
    runs.mkdir()
    killed: list[float] = []
    killer = threading.Thread(target=kill_when_busy, args=(two_nodes, runs, killed), daemon=True)
    executor = open_ray(two_nodes, runs)
    (tmp_path / "met").mkdir()
    list(executor.run(meet, [tmp_path / "met"] * 2))
    capfd.readouterr()
    killer.start()
    try:
        folders = compute(vector_sets, runs, executor)
    finally:
        two_nodes.second = two_nodes.add_node(num_cpus=1, num_gpus=1)
    assert killed
    warnings = [r.getMessage().partition(": ")[2] for r in logged if r.levelno >= logging.WARNING]
    assert warnings == ["its node died: tried again"]
    assert capfd.readouterr().out == ""  # Ray's output stays out of standard output
    alone = compute(vector_sets, tmp_path / "alone", InProcess())
    assert folders.keys() == alone.keys()
    assert len(folders) == 4
    assert len(list(runs.glob("*/config.json"))) == 4  # no cell has two folders
    for key, folder in folders.items():
        written = (folder.path / SUMS).read_text(encoding="utf-8").splitlines()
        assert sum(line.endswith("  result.json") for line in written) == 1, key  # and none was finished twice
        assert folder.result["metrics"] == alone[key].result["metrics"], key
        assert (folder.path / "ranks.parquet").read_bytes() == (alone[key].path / "ranks.parquet").read_bytes(), key
        for name, weights in folder.weights().items():
            assert weights.equal(alone[key].weights()[name]), key


def test_a_node_that_would_compute_another_run_says_so(two_nodes, vector_sets, tmp_path):
    from dataclasses import replace

    (cell, *_) = plan(vector_sets, tmp_path)
    cells = [replace(cell, run=replace(cell.run, host="other", data="other"))]
    execution = Execution(open_ray(two_nodes, tmp_path), "none")
    (outcome,) = compute_and_log(ComparisonFolder(tmp_path / "c"), cells, execution)
    assert "has different code, data or weights than the planning machine" in str(outcome.error)
    assert not list(tmp_path.glob("*/config.json"))


# --- what stops a command ------------------------------------------------------------------------------------------


def test_a_folder_that_is_not_shared_is_noticed(two_nodes, tmp_path, monkeypatch):
    executor = open_ray(two_nodes, tmp_path)
    monkeypatch.setattr(cluster, "lock_file", contextlib.nullcontext)  # no file comes of it
    with pytest.raises(NegbenchError, match=r"does not share .* with this machine \(No such file.*--runs-dir"):
        list(executor.run(task, [1, 2]))
    (tmp_path / "mark").touch()
    assert re.search("its locks are not.*mount it with locks", str(cluster._wrong(tmp_path / "mark")))


@half_a_minute
def test_a_signal_ends_tasks_in_order(two_nodes, vector_flags, tmp_path, statuses):
    grid = ["compare", "--lr=fixed", "--strategies", "qure", "--losses", "bradley-terry", "--seeds", "3"]
    more = ["--executor", "ray:gpus=0", "--address", two_nodes.address, "--runs-dir", str(tmp_path)]
    process = two_nodes.command
    print(json.dumps([*grid, *more, *vector_flags, "--set", "train.epochs=20000"]), file=process.stdin, flush=True)
    checkpoints: list[Path] = []
    while len(checkpoints) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
        checkpoints = list(tmp_path.glob("*/checkpoint.pt"))
    os.kill(process.pid, signal.SIGTERM)
    output = process.communicate()
    assert process.returncode == 143, output
    assert "Traceback" not in output
    assert "0 of 3 cells are finished and kept" in output
    for path in checkpoints:  # unlocked and resumable
        with RunFolder(path.parent).lock():
            assert RunFolder(path.parent).status == "interrupted", path
    assert len(list(tmp_path.glob("*/config.json"))) == 2
    assert statuses(tmp_path) == {"KILLED": 3}  # two cells and their parent run


def test_an_address_that_leads_nowhere_is_one_line(subtests, expect_error, monkeypatch):
    def refuse(address: str, *_: Any, **options: Any) -> None:
        raise ConnectionError(f"nobody answers at {address}\nat all")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    without_password = {"head": "head", "me:PW/@x@head:1": "***:***/@***@head:1", "ray://me:PW@head:1": "ray://head:1"}
    for address, safe in without_password.items():
        with subtests.test(address=address):
            message = f"--address {safe}: cannot join a Ray cluster there (nobody answers at {safe}); give HOST:PORT"
            assert "PW" not in expect_error(["compare", "--executor", "ray", "--address", address], message)


def test_a_task_that_no_node_can_hold_is_refused(two_nodes, tmp_path):
    with pytest.raises(OptionError, match=r"ray:cpus=2:gpus=0: no node .* the largest of 2 has 1 CPUs and 1 GPUs"):
        open_ray(two_nodes, tmp_path, cpus=2.0)
    with pytest.raises(OptionError, match=r"ray:cpus=1:gpus=2: no node has room for such a task"):
        open_ray(two_nodes, tmp_path, gpus=2.0)
    assert open_ray(two_nodes, tmp_path, cpus=0.5).workers == 4
