"""Executors: compute tasks in this process or in worker processes of this machine; `cluster` has the one for Ray."""

import itertools
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar, Protocol, Self

from negbench.machine.signals import APART, Stopped, check_stopped, stop_on_signals

Notify = Callable[[str], None]
Function = Callable[[Any, Notify], Any]

GRACE = 15.0  # seconds for tasks to end cleanly: on a busy machine, closing an MLflow run takes time; Slurm kills at 30


@dataclass(frozen=True)
class Event:
    """What happened to task `index`: 'note' (text), 'done' (value), 'failed' (one line, and the traceback)."""

    index: int
    kind: str
    value: Any = None
    detail: str = ""


class Executor(Protocol):
    """Interface that computes tasks, `workers` at a time."""

    @property
    def elsewhere(self) -> bool:
        """Whether tasks run on other machines, which then also do heavy preparation such as encoding."""

    @property
    def workers(self) -> int:
        """Number of tasks computed at a time."""

    def run(self, function: Function, tasks: Sequence[Any]) -> Iterator[Event]:
        """Compute ``function(task, notify)`` for every task; of a cell it is `negbench.grid.cell_task.compute_task`.

        Args:
            function: importable by name; `notify(text)` sends a note while it runs.
            tasks: picklable.

        Yields:
            Events as they come; each task ends with one 'done' or 'failed', and a failed task does not stop others.
        """


@dataclass(frozen=True)
class InProcess:
    """Computes tasks in this process, in the order given."""

    workers: ClassVar[int] = 1
    elsewhere: ClassVar[bool] = False

    def run(self, function: Function, tasks: Sequence[Any]) -> Iterator[Event]:
        """See `Executor`; a task's notes are yielded when it ends."""
        for index, task in enumerate(tasks):
            notes: list[Event] = []
            event = last_event(function, index, task, notes.append)
            yield from notes
            yield event


@dataclass(frozen=True)
class Processes:
    """Computes tasks in worker processes, one task at a time in each.

    A process computes many tasks, also those of later calls of `run` with the same function, so that they share what it
    has loaded; it ends with the `with` block of this object. A process that dies (kill -9, out of memory) is replaced
    and its task retried; a task whose process dies more than `retries` times fails.

    Args:
        workers: number of processes.
        retries: how often a task is retried after its process died.
        grace: seconds for processes to end cleanly when `run` stops early.
        preload: modules that tasks import late; workers share them in memory. They must not start a Python thread.
        devices: GPUs, as CUDA_VISIBLE_DEVICES names them; each worker sees one of them, by turns.
    """

    workers: int
    retries: int = 1
    grace: float = GRACE
    preload: tuple[str, ...] = field(default=(), compare=False)
    devices: tuple[str, ...] = ()
    idle: "list[_Worker]" = field(default_factory=list, init=False, repr=False, compare=False)
    elsewhere: ClassVar[bool] = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        _end(self.idle)

    def prepare(self, function: Function) -> None:
        """Start importing what `function` needs in the fork server while this process continues, to speed up `run`."""
        _context(function, self.preload)

    def run(self, function: Function, tasks: Sequence[Any]) -> Iterator[Event]:
        """See `Executor`; tasks start in the order given."""
        pending = deque(enumerate(tasks))
        deaths: Counter[int] = Counter()
        active: dict[Connection, _Worker] = {}
        # An idle worker sends nothing: a readable pipe is a closed one. `process.is_alive` learns of a death later.
        if any(worker.function is not function or worker.pipe.poll() for worker in self.idle):
            _end(self.idle)
        try:
            for _ in range(min(self.workers, len(pending))):
                self._start_task(function, pending, active)
            while active:
                check_stopped()
                for pipe in wait(list(active), timeout=1.0):
                    worker = active[pipe]  # type: ignore[index]
                    event = worker.receive()
                    if event is None:  # its process has died
                        del active[worker.pipe]
                        index = worker.index
                        deaths[index] += 1
                        event = death(index, f"its worker process {worker.end()}", deaths[index], self.retries)
                        if event.kind == "note":
                            pending.appendleft((index, tasks[index]))
                        yield event
                        if pending:
                            self._start_task(function, pending, active)
                    else:
                        yield event
                        if event.kind != "note":  # its task has ended
                            if pending:
                                worker.take(pending)
                            else:
                                self.idle.append(active.pop(worker.pipe))
        finally:
            _terminate(active.values(), self.grace)

    def _start_task(
        self, function: Function, pending: deque[tuple[int, Any]], active: "dict[Connection, _Worker]"
    ) -> None:
        """Give the next pending task to an idle worker or else to a new one, which is then active."""
        worker = self.idle.pop() if self.idle else self._new_worker(function, active.values())
        worker.take(pending)
        active[worker.pipe] = worker

    def _new_worker(self, function: Function, active: "Iterable[_Worker]") -> "_Worker":
        """Start a worker in the lowest slot that no active one has, and with the device of that slot."""
        used_slots = {worker.slot for worker in active}
        slot = next(slot for slot in itertools.count() if slot not in used_slots)
        environment = dict(os.environ)
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[slot % len(self.devices)]
        return _Worker.start(function, self.preload, slot, environment)


@dataclass(eq=False)
class _Worker:
    """A worker process, as seen by its parent."""

    process: Any
    pipe: Connection
    function: Function
    slot: int  # the lowest that no other worker has
    index: int = -1  # index of its task

    @classmethod
    def start(cls, function: Function, preload: Sequence[str], slot: int, environment: Mapping[str, str]) -> Self:
        context = _context(function, preload)
        parent_end, worker_end = context.Pipe()
        arguments = (function, worker_end, environment)
        process = context.Process(target=_serve, args=arguments, daemon=True)  # a daemon dies with us
        process.start()
        worker_end.close()
        return cls(process, parent_end, function, slot)

    def take(self, pending: deque[tuple[int, Any]]) -> None:
        """Remove the next pending task and send it to the worker."""
        self.index, task = pending.popleft()
        with suppress(OSError):  # already dead: the next read shows it
            self.pipe.send((self.index, task))

    def receive(self) -> Event | None:
        """Wait for the next event; None: the process has died."""
        try:
            event: Event = self.pipe.recv()
        except (EOFError, OSError):  # a worker that dies at its start may reset the pipe
            return None
        return event

    def end(self) -> str:
        """Wait for the process and describe its end, e.g. 'died (exit code 1)'."""
        self.process.join()
        code = self.process.exitcode
        if code and code < 0:
            return f"died (killed by signal {-code})"
        return f"died (exit code {code})"


def _end(idle: list[_Worker]) -> None:
    """End idle workers and wait for them."""
    for worker in idle:
        with suppress(OSError):  # dead already
            worker.pipe.send(None)
    while idle:
        idle.pop().process.join()


def _terminate(workers: Iterable[_Worker], grace: float) -> None:
    """Ask workers to end, and kill what is left after `grace` seconds."""
    workers = list(workers)
    for worker in workers:
        worker.process.terminate()
    deadline = time.monotonic() + grace
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        worker.process.kill()


def _context(function: Function, preload: Sequence[str]) -> multiprocessing.context.ForkServerContext:
    """Start the server that forks workers, unless it runs, and return its context."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__, *preload])
    added = APART.keys() - os.environ.keys()
    os.environ.update(APART)
    forkserver.ensure_running()
    for name in added:
        del os.environ[name]
    return context


def last_event(function: Function, index: int, task: Any, send: Callable[[Event], object]) -> Event:
    """Compute a task in this process and return its last event; `send` receives its notes."""

    def notify(text: str) -> None:
        send(Event(index, "note", text))

    try:
        return Event(index, "done", function(task, notify))
    except Exception as error:
        return Event(index, "failed", *_explain(error))


def death(index: int, end: str, times: int, retries: int) -> Event:
    """Return the event of a task whose process died: a note that it is tried again, or its failure.

    Args:
        index: index of the task.
        end: how the process ended, e.g. "its worker process died".
        times: how often that happened to this task.
        retries: how often it may happen.
    """
    if times <= retries:
        return Event(index, "note", f"{end}: tried again")
    return Event(index, "failed", f"{end}, {times} times" if times > 1 else end)


def _explain(error: Exception) -> tuple[str, str]:
    """Return a one-line message, and the traceback unless the user can fix the error."""
    from negbench.errors import NegbenchError, out_of_memory
    from negbench.plugins.registry import blame

    line = str(error) if isinstance(error, NegbenchError) else out_of_memory(error)
    if line:
        return line, ""
    line = blame(error) or f"{type(error).__name__}: {error}"
    return line, "".join(traceback.format_exception(error))


def _serve(function: Function, pipe: Connection, environment: dict[str, str]) -> None:
    """Main loop of a worker; it exits quietly when its parent ends or sends SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends us
    os.environ.clear()  # the fork server's are from when it started
    os.environ.update(environment)
    stop_on_signals(once=GRACE)  # then the parent kills
    talking = threading.Lock()

    def send(event: Event) -> None:
        with talking:
            pipe.send(event)

    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        for index, task in iter(pipe.recv, None):  # None: the end
            send(last_event(function, index, task, send))
            check_stopped()
    except Stopped as stopped:
        raise SystemExit(stopped.code) from None
    except (EOFError, OSError):  # the parent is gone
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    """Wait for the parent to end, for whatever reason, and end this process within a second."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)  # a clean exit, which closes the MLflow run
    time.sleep(1.0)
    os._exit(128 + signal.SIGTERM)
