"""Executors: failing tasks, dead workers, worker reuse and shutdown."""

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil  # type: ignore[import-untyped]
import pytest

from negbench.grid.compute import executor_of, gpus
from negbench.grid.executors import GRACE, Function, InProcess, Processes
from negbench.machine.signals import stop_on_signals
from tests.cluster_tasks import cling, close, close_at_once, device_of, parent_of, pid_of, task


@pytest.mark.parametrize("workers", [1, 2])
def test_failures_stop_nothing(workers):
    tasks: list[int | str] = [1, "mistake", 2, "fault", 3]
    if workers > 1:
        tasks += ["die", 4, "die", 5]
    with nullcontext(InProcess()) if workers == 1 else Processes(workers) as executor:
        events = list(executor.run(task, tasks))
    ends = {event.index: event for event in events if event.kind != "note"}
    assert len(ends) == len(tasks)
    done = {tasks[index]: event.value[0] for index, event in ends.items() if event.kind == "done"}
    assert done == {number: 2 * number for number in tasks if isinstance(number, int)}
    assert ends[1].value == "mend this"
    assert ends[3].value == "ValueError: ours"
    assert "Traceback" in ends[3].detail
    if workers > 1:
        assert ends[5].value == ends[7].value == "its worker process died (killed by signal 9), 2 times"
    notes = [event.value for event in events if event.kind == "note"]
    retries = [note for note in notes if "tried again" in note]
    assert len(retries) == (2 if workers > 1 else 0)
    reports = [note for note in notes if note not in retries]
    assert sorted(reports) == sorted(f"at {number}" for number in tasks if isinstance(number, int))
    assert len(events) == len(tasks) + len(notes)


def test_a_worker_that_leaves_without_an_error_is_one():
    with Processes(1, retries=0) as worker:
        (event,) = worker.run(task, ["leave"])
    assert (event.kind, event.value) == ("failed", "its worker process died (exit code 0)")


@pytest.mark.parametrize(
    ("visible", "count", "want"), [(None, 3, ("0", "1", "2")), ("4, 6", 9, ("4", "6")), ("", 9, ()), (None, 0, ())]
)
def test_the_gpus_are_those_that_this_process_sees(visible, count, want, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    assert gpus() == want


def test_each_worker_has_a_gpu_of_its_own():
    """By turns; one that takes the place of a dead worker has its GPU."""
    with Processes(3, devices=("4", "MIG-6")) as executor:
        used = [event.value for event in executor.run(device_of, [1, 2, 3])]
        again = [event.value for event in executor.run(device_of, ["die", 2, 3]) if event.kind != "note"]
    assert sorted(used) == ["4", "4", "MIG-6"]
    assert sorted(again)[:2] != ["MIG-6", "MIG-6"]


@pytest.mark.parametrize(
    ("used_slots", "want"),
    [((), (0, "4")), ((0,), (1, "MIG-6")), ((0, 1), (2, "4")), ((1, 2), (0, "4")), ((0, 2), (1, "MIG-6"))],
)
def test_a_new_worker_takes_the_lowest_free_slot_and_its_gpu(used_slots, want, monkeypatch):
    """The worker of a lower slot may have died before one of a higher slot."""

    def start(function: object, preload: object, slot: int, environment: dict[str, str]) -> tuple[int, str]:
        return slot, environment["CUDA_VISIBLE_DEVICES"]

    monkeypatch.setattr("negbench.grid.executors._Worker.start", start)
    executor = Processes(4, devices=("4", "MIG-6"))
    active = [SimpleNamespace(slot=slot) for slot in used_slots]
    assert executor._new_worker(device_of, active) == want


@pytest.mark.parametrize(
    ("workers", "visible", "devices", "lines"),
    [
        (4, "0,1", ("0", "1"), ["note: 4 workers share 2 GPUs"]),
        (2, "0,1", ("0", "1"), []),
        (2, "0", ("0",), ["note: 2 workers share 1 GPU"]),
        (2, "", (), []),
    ],
)
def test_a_line_says_that_workers_share_gpus(workers, visible, devices, lines, monkeypatch, logged, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    executor = executor_of("pool", None, workers, tmp_path, "none")
    assert executor.devices == devices
    assert [record.getMessage() for record in logged] == lines


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


def pids_of(processes: Processes, function: Function) -> set[int]:
    events = list(processes.run(function, [1, 2, 3]))
    assert [event.kind for event in events] == ["done"] * 3
    return {event.value for event in events}


def test_processes_serve_later_calls_and_end_with_their_executor():
    with Processes(2) as processes:
        first = pids_of(processes, pid_of)
        assert len(first) == 2
        assert pids_of(processes, pid_of) == first
        os.kill(min(first), signal.SIGKILL)  # as the out-of-memory killer does
        while Path(f"/proc/{min(first)}").exists():
            pass
        second = pids_of(processes, pid_of)
        assert len(second) == 2
        assert min(first) not in second
        pids_of(processes, parent_of)
        assert [pid for pid in second if is_alive(pid)] == []
        third = pids_of(processes, pid_of)
    assert [pid for pid in third if is_alive(pid)] == []


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
