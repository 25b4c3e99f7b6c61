"""Executors: failing tasks, dead workers, worker reuse and shutdown."""

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from negbench.grid.compute import executor_of, gpus
from negbench.grid.executors import GRACE, Function, InProcess, Processes
from negbench.machine.signals import stop_on_signals
from tests.cluster_tasks import cling, close, close_at_once, device_of, own, parent_of, task


@pytest.mark.parametrize("workers", [1, 2])
def test_failures_stop_nothing(workers):
    tasks = [1, "mistake", 2, "fault", 3] + (["die", 4, "die", 5] if workers > 1 else [])
    with nullcontext(InProcess()) if workers == 1 else Processes(workers) as executor:
        events = list(executor.run(task, tasks))
    ends = {e.index: e for e in events if e.kind != "note"}
    assert len(ends) == len(tasks)
    done = {tasks[i]: e.value[0] for i, e in ends.items() if e.kind == "done"}
    assert done == {n: 2 * n for n in tasks if isinstance(n, int)}
    assert ends[1].value == "mend this"
    assert ends[3].value == "ValueError: ours"
    assert "Traceback" in ends[3].detail
    if workers > 1:
        assert ends[5].value == ends[7].value == "its worker process died (killed by signal 9), 2 times"
    notes = [e.value for e in events if e.kind == "note" and "tried again" not in e.value]
    assert len(events) - len(notes) == len(tasks) + 2 * (workers > 1)
    assert sorted(notes) == sorted(f"at {n}" for n in tasks if isinstance(n, int))


def test_a_worker_that_leaves_without_an_error_is_one():
    with Processes(1, retries=0) as worker:
        (event,) = worker.run(task, ["leave"])
    assert (event.kind, event.value) == ("failed", "its worker process died (exit code 0)")


def test_each_worker_has_a_gpu_of_its_own(subtests, monkeypatch):
    """By turns; one that takes the place of a dead worker has its GPU."""
    for given, count, want in ((None, 3, ("0", "1", "2")), ("4, 6", 9, ("4", "6")), ("", 9, ()), (None, 0, ())):
        with subtests.test(given=given, count=count):
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            if given is not None:
                monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
            monkeypatch.setattr("torch.cuda.device_count", lambda count=count: count)
            assert gpus() == want
    with Processes(3, devices=("4", "MIG-6")) as executor:
        used = [event.value for event in executor.run(device_of, [1, 2, 3])]
        again = [event.value for event in executor.run(device_of, ["die", 2, 3]) if event.kind != "note"]
    assert sorted(used) == ["4", "4", "MIG-6"]
    assert sorted(again)[:2] != ["MIG-6", "MIG-6"]


def test_workers_that_share_gpus_are_told(subtests, monkeypatch, logged, tmp_path):
    for workers, devices, told in ((4, "0,1", "2 GPUs"), (2, "0,1", ""), (2, "0", "1 GPU"), (2, "", "")):
        with subtests.test(workers=workers, devices=devices):
            logged.clear()
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
            executor = executor_of("pool", None, workers, tmp_path, "none")
            assert executor.devices == tuple(device for device in devices.split(",") if device)
            assert [r.getMessage() for r in logged] == ([f"note: {workers} workers share {told}"] if told else [])


def test_a_server_that_was_prepared_is_the_one_that_workers_come_from(forked):
    """Runs in a separate process, because a process has a single fork server."""

    def work() -> None:
        before = {child.pid for child in psutil.Process().children()}
        Processes(2).prepare(parent_of)
        started = {child.pid for child in psutil.Process().children()} - before
        parents = {event.value for event in Processes(2).run(parent_of, [1, 2, 3])}
        assert len(parents) == 1
        assert parents <= started

    assert forked(work).wait() == 0


def served_by(processes: Processes, function: Function) -> set[int]:
    events = list(processes.run(function, [1, 2, 3]))
    assert [event.kind for event in events] == ["done"] * 3
    return {event.value for event in events}


def test_processes_serve_later_calls_and_end_with_their_executor():
    with Processes(2) as processes:
        first = served_by(processes, own)
        assert len(first) == 2
        assert served_by(processes, own) == first
        os.kill(min(first), signal.SIGKILL)  # as the out-of-memory killer does
        while Path(f"/proc/{min(first)}").exists():
            pass
        second = served_by(processes, own)
        assert len(second) == 2
        assert min(first) not in second
        served_by(processes, parent_of)
        assert not any(map(is_alive, second))
        third = served_by(processes, own)
    assert not any(map(is_alive, third))


@pytest.mark.parametrize(
    ("task", "number", "grace"),
    [(close, signal.SIGTERM, GRACE), (close_at_once, signal.SIGKILL, GRACE), (cling, signal.SIGKILL, 1.0)],
)
def test_workers_end_in_order_and_within_two_seconds_of_their_parent(tmp_path, forked, task, number, grace):
    def work() -> None:
        os.dup2(1, 2)
        stop_on_signals()
        list(Processes(1, grace=grace).run(task, [str(pid_file)]))

    pid_file = tmp_path / "pid"
    process = forked(work)
    while not (pid_file.exists() and pid_file.read_text(encoding="utf-8")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    worker = int(pid_file.read_text(encoding="utf-8"))
    os.kill(process.pid, number)
    process.wait()  # after SIGTERM it waits for its workers and kills the stubborn ones
    ended = time.monotonic()
    while is_alive(worker):
        assert time.monotonic() - ended < 2.0
        time.sleep(0.02)
    errors = process.communicate()
    assert "BrokenPipe" not in errors
    assert "Process ForkServer" not in errors  # the first words of a worker's traceback
    assert (pid_file.read_text(encoding="utf-8") == "closed") == (task is not cling)


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
