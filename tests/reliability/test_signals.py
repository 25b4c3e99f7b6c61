"""SIGTERM, SIGHUP and Ctrl-C, once and twice, to a run and to a comparison with workers; repair after kill -9."""

import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow.tracking import MlflowClient

from negbench.cli.main import main
from negbench.cli.main import run as negbench
from negbench.grid.executors import GRACE, Processes
from negbench.loop.runs import RunContext, compute_or_reuse
from negbench.machine.signals import Stopped, stop_on_signals
from negbench.store.parents import Parent
from negbench.store.runfolder import RunFolder
from negbench.store.tracking import Tracker
from tests.cluster_tasks import Deaf, fall_asleep, lose_a_signal
from tests.reliability.attack import hear, living
from tests.runs import config_of, flags_of, run

LONG = ("train.epochs=2000",)
GRID = ("compare", "--lr=fixed", "--strategies", "qure", "--losses", "bradley-terry", "--name", "duel")


@pytest.fixture
def start(start_command: Callable[[list[str]], Any], vector_sets: list[str], tmp_path: Path) -> Callable[..., Any]:
    """Return a function that starts a long command with its runs in the test's folder."""
    sets = flags_of([*vector_sets, *LONG])

    def start_long(*arguments: str) -> Any:
        return start_command([*arguments, *sets, "--runs-dir", str(tmp_path)])

    return start_long


def wait_for_checkpoints(runs: Path, count: int, process: Any) -> list[RunFolder]:
    deadline = time.monotonic() + 200
    checkpoints: list[Path] = []
    while len(checkpoints) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
        checkpoints = list(runs.glob("*/checkpoint.pt"))
    return [RunFolder(path.parent) for path in checkpoints]


def wait_and_close(**options: Any) -> None:
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        time.sleep(0.5)  # what is closed in order takes a moment
        print("closed", flush=True)


FIRST = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}
CASES = list(itertools.product(FIRST, [None, *FIRST]))


def run_and_hear() -> None:
    """Run a command that gets the signals hidden from the suite by nohup or a background shell."""
    hear()
    os.dup2(1, 2)
    main(["--json"])


def test_exit_codes_and_a_second_signal(forked, monkeypatch):
    """All run at once, because each mostly waits."""
    monkeypatch.setattr("negbench.cli.main.app", wait_and_close)
    processes = [forked(run_and_hear) for _ in CASES]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * len(CASES)
    for process, (number, _) in zip(processes, CASES, strict=True):
        os.kill(process.pid, number)
    time.sleep(0.1)
    for process, (_, again) in zip(processes, CASES, strict=True):
        if again is not None:
            os.kill(process.pid, again)
    for process, (number, again) in zip(processes, CASES, strict=True):
        closed, *document, line = process.communicate().splitlines()
        assert closed == "closed", number
        assert line.startswith(f"negbench: stopped by {number.name}; finished work is kept: "), number
        error = {"error": line.removeprefix("negbench: "), "exit_code": FIRST[number]}
        assert (process.returncode, json.loads("".join(document))) == (FIRST[number], error), (number, again)


@pytest.fixture
def listening() -> Iterator[None]:
    """Handle signals in this process as a command does, for as long as the test runs."""
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in FIRST}
    stop_on_signals()
    yield
    stop_on_signals()  # forgets the test's signals
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_got_lost_ends_a_run_at_its_next_step(statuses, listening, vector_sets, tmp_path, watch_epochs):
    epochs = list[int]()

    def watch(epoch: int) -> None:
        epochs.append(epoch)
        if epoch == 1:
            Deaf()

    watch_epochs(watch)
    with pytest.raises(Stopped):
        compute_or_reuse(config_of(vector_sets, "qure", "train.epochs=50"), RunContext.open(tmp_path))
    assert max(epochs) == 1
    assert statuses(tmp_path) == {"KILLED": 1}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_got_lost_ends_the_executor(listening):
    events = Processes(1).run(fall_asleep, [600])
    assert next(events).value == "asleep"
    Deaf()
    begun = time.monotonic()
    with pytest.raises(Stopped):
        next(events)
    assert time.monotonic() - begun < GRACE


def test_a_worker_that_lost_a_signal_ends_after_its_task():
    with Processes(1, retries=0) as worker:
        events = list(worker.run(lose_a_signal, [None, None]))
    assert [event.kind for event in events] == ["done", "failed"]
    assert events[-1].value == "its worker process died (exit code 143)"


class Deafer:
    def __del__(self) -> None:
        print("ready", flush=True)
        time.sleep(600)


def block_twice(**options: Any) -> None:
    Deafer()
    print("lost", flush=True)
    try:
        time.sleep(600)
    finally:
        time.sleep(600)


def test_a_later_signal_ends_the_process_whatever_it_does(forked, monkeypatch):
    monkeypatch.setattr("negbench.cli.main.app", block_twice)
    process = forked(run_and_hear)
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGTERM)
    assert process.stdout.readline() == "lost\n"
    time.sleep(1.1)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 130


def test_workers_end_with_a_comparison_and_nothing_stays_running(statuses, start, tmp_path):
    process = start(*GRID, "--seeds", "2", "--workers", "2")
    wait_for_checkpoints(tmp_path, 2, process)
    os.kill(process.pid, signal.SIGTERM)
    output = process.communicate()
    assert process.returncode == 143
    assert "Traceback" not in output
    deadline = time.monotonic() + 2
    while living(process.pid):
        assert time.monotonic() < deadline, living(process.pid)
        time.sleep(0.05)
    assert statuses(tmp_path) == {"KILLED": 3}  # two cells and their parent


def test_what_kill_9_left_running_is_ended_by_the_next_command(statuses, start, vector_flags, tmp_path):
    process = start(*GRID, "--seeds", "1")
    (folder,) = wait_for_checkpoints(tmp_path, 1, process)
    process.kill()
    process.wait()
    assert statuses(tmp_path) == {"RUNNING": 2}
    with folder.lock():  # another process computes it
        Parent(Tracker.open(tmp_path), tmp_path / "another").open()  # as a comparison does
    assert statuses(tmp_path) == {"RUNNING": 2, "KILLED": 1}
    assert negbench(["run", "--strategy", "qure", *vector_flags, "--runs-dir", str(tmp_path)]) == 0
    assert statuses(tmp_path) == {"RUNNING": 1, "KILLED": 2, "FINISHED": 1}
    assert not (tmp_path / "mlflow-moved.db").exists()  # in fast mode, too, a new store is no moved one


def test_a_copy_that_was_cut_off_is_made_again(statuses, vector_flags, tmp_path):
    assert negbench(["run", "--strategy", "qure", *vector_flags, "--runs-dir", str(tmp_path)]) == 0
    tracker = Tracker.open(tmp_path)
    folder = RunFolder(next(tmp_path.glob("qure-*")))
    client = tracker.client()
    (copied_run,) = client.search_runs(["1"])
    client.update_run(copied_run.info.run_id, status="RUNNING")
    shutil.rmtree(tmp_path / "artifacts")
    assert tracker.end_abandoned() == [folder.run_id]
    assert statuses(tmp_path) == {"FINISHED": 1}
    assert list((tmp_path / "artifacts").rglob("result.json"))
    (folder.path / "mlflow.json").write_bytes(b"{")  # a damaged note costs a second copy, never a run
    assert tracker.export(folder)


def test_a_signal_while_the_copy_is_made_ends_it(statuses, vector_sets, tmp_path, monkeypatch):
    def cut_off(*_: Any) -> None:
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr("negbench.store.tracking.log_values", cut_off)
    with pytest.raises(Stopped):
        compute_or_reuse(config_of(vector_sets, "all-corpus"), RunContext.open(tmp_path))
    assert statuses(tmp_path) == {"KILLED": 1}


@pytest.mark.parametrize("kind", ["cell", "comparison", "summary"])
def test_a_kill_right_after_mlflow_made_a_run_leaves_none_running(statuses, kind, vector_flags, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def create_and_die(client: MlflowClient, *arguments: Any, tags: dict[str, str], **more: Any) -> Any:
        new_run = create(client, *arguments, tags=tags, **more)
        if tags["negbench.kind"] == kind:
            raise Killed
        return new_run

    create = MlflowClient.create_run
    command = [*GRID, "--seeds", "1", *vector_flags, "--runs-dir", str(tmp_path), "--no-report"]
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "create_run", create_and_die)
        with pytest.raises(Killed):
            negbench(command)
    assert statuses(tmp_path)["RUNNING"] >= 1
    assert negbench(command) == 0
    assert statuses(tmp_path) == {"FINISHED": 3}  # cell, comparison and summary


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Stopped(signal.SIGTERM)])
def test_a_signal_while_a_checkpoint_is_written_is_no_failure(stop, vector_sets, tmp_path, monkeypatch):
    """The run is interrupted, not failed, though torch's cut-off zip writer hides the signal behind its own error."""

    def broken(self: RunFolder, state: Any) -> None:
        try:
            raise stop
        finally:
            raise RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 14272 vs 14166")

    config = config_of(vector_sets, "all-corpus", "train.epochs=2")
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_checkpoint", broken)
        with pytest.raises(type(stop)):
            run(config, tmp_path)
    (folder,) = tmp_path.glob("all-corpus*")
    assert RunFolder(folder).status == "interrupted"
    assert run(config, tmp_path).details["steps"] > 0


def end(way: str, process: Any) -> None:
    """End a run of two processes."""
    children = psutil.Process(process.pid).children()
    (helper,) = [child for child in children if "negbench.loop.helper" in child.cmdline()]
    if way == "the first is killed":
        process.kill()
    elif way == "the second is killed":
        helper.kill()
    else:
        helper.send_signal(signal.SIGTERM)
        os.kill(process.pid, signal.SIGTERM)


ENDS = {  # exit code
    "the first is killed": -9,
    "the second is killed": 2,
    "a scheduler signals both": 143,
    "its time is up": 124,
}


@pytest.mark.skipif("NEGBENCH_FAULTS" not in os.environ, reason="takes a minute: `make faults`")
@pytest.mark.parametrize("way", ENDS)
def test_a_run_of_two_processes_ends_in_both_and_resumes_bit_for_bit(
    way, start_command, vector_sets, tmp_path, every_epoch
):
    """The second process is an interpreter of its own; samples in tests/loop/test_team.py."""
    sets = flags_of([*vector_sets, "train.epochs=40", "compute.processes=2"])
    command = ["run", "--strategy=in-batch+qure", *sets, "--tracking-uri=none", "--runs-dir"]
    whole = start_command([*command, str(tmp_path / "whole")])
    assert whole.communicate()
    assert whole.returncode == 0
    limit = []
    if way == "its time is up":
        limit = ["--max-hours=1e-9"]
    process = start_command([*command, str(tmp_path / "parts"), *limit])
    if not limit:
        wait_for_checkpoints(tmp_path / "parts", 1, process)
        end(way, process)
    output = process.communicate()  # until both processes have ended, as both may write there
    assert process.returncode == ENDS[way], output
    assert "Traceback" not in output
    again = start_command([*command, str(tmp_path / "parts")])
    output = again.communicate()
    assert again.returncode == 0, output
    (one,) = (RunFolder(file.parent) for file in (tmp_path / "whole").glob("*/result.json"))
    (other,) = (RunFolder(file.parent) for file in (tmp_path / "parts").glob("*/result.json"))
    assert other.metrics() == one.metrics()
    assert other.ranks().equals(one.ranks())
    weights = one.weights()
    for name, value in other.weights().items():
        assert value.equal(weights[name]), name
