"""Where tasks are computed: here, or in worker processes of this machine; `cluster` has a cluster's."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar, Protocol

from negbench.machine.signals import Stopped, check_stopped, stop_on_signals

Report = Callable[[str], None]
Function = Callable[[Any, Report], Any]

# What tasks import late, by their module: the server imports it once, and its forks, the workers, share it in memory.
# Nothing here starts a thread of Python's.
_RUNS = ("mlflow.tracking", "mlflow.store.tracking.sqlalchemy_store", "pandas", "pyarrow.parquet")
_PRELOADED = {"negbench.grid.cells": _RUNS, "negbench.tuning.trials": _RUNS}

APART = {"PYTHONSAFEPATH": "1"}  # of a Python that we start: it imports nothing from the current folder
GRACE = 15.0  # seconds for tasks to end in order: on a busy machine an MLflow run takes some; Slurm kills after 30


@dataclass(frozen=True)
class Event:
    """What happened to task `index`: 'note' (text), 'done' (value), 'failed' (one line, and the traceback)."""

    index: int
    kind: str
    value: Any = None
    detail: str = ""


class Executor(Protocol):
    """Computes tasks somewhere, so many at a time."""

    @property
    def elsewhere(self) -> bool:
        """Whether tasks run on other machines, which are to have what is heavy."""
        ...

    @property
    def workers(self) -> int:
        """How many tasks are computed at a time."""
        ...

    def run(self, function: Function, tasks: Sequence[Any]) -> Iterator[Event]:
        """Compute ``function(task, report)`` for every task.

        Args:
            function: importable by name; `report(text)` sends a note while it runs.
            tasks: picklable.

        Yields:
            Events as they come; each task ends with one 'done' or 'failed', and none stops another.
        """
        ...


@dataclass(frozen=True)
class Here:
    """In this process, in the order given."""

    workers: ClassVar[int] = 1
    elsewhere: ClassVar[bool] = False

    def run(self, function: Function, tasks: Sequence[Any]) -> Iterator[Event]:
        """See `Executor`; notes come with their task's end."""
        for index, task in enumerate(tasks):
            notes: list[Event] = []
            event = outcome_of(function, index, task, notes.append)
            yield from notes
            yield event


@dataclass(frozen=True)
class Processes:
    """In so many worker processes, a task at a time each.

    A process serves many tasks, those of later calls of `run` with the same function among them, so that they share
    what it has loaded; it ends with this object. One that dies (kill -9, out of memory) is replaced, and its task tried
    again; a task that this happens to again fails.

    Args:
        workers: processes at once.
        retries: of a task whose process died.
        grace: seconds for processes to end in order, when this one ends early.
    """

    workers: int
    retries: int = 1
    grace: float = GRACE
    idle: list[_Worker] = field(default_factory=list, init=False, repr=False, compare=False)
    elsewhere: ClassVar[bool] = False

    def __post_init__(self) -> None:
        weakref.finalize(self, _end, self.idle)

    def prepare(self, function: Function) -> None:
        """Let the server of workers import what `function` needs, while this process goes on; `run` then finds it."""
        _context(function)

    def run(self, function: Function, tasks: Sequence[Any]) -> Iterator[Event]:
        """See `Executor`; tasks start in the order given."""
        pending = list(enumerate(tasks))[::-1]
        deaths: Counter[int] = Counter()
        active: dict[Connection, _Worker] = {}
        if any(worker.function is not function or not worker.process.is_alive() for worker in self.idle):
            _end(self.idle)

        def start() -> None:
            worker = self.idle.pop() if self.idle else _Worker.start(function)
            worker.take(pending)
            active[worker.pipe] = worker

        try:
            for _ in range(min(self.workers, len(pending))):
                start()
            while active:
                check_stopped()
                for pipe in wait(list(active), timeout=1.0):
                    worker = active[pipe]  # type: ignore[index]
                    try:
                        event: Event = worker.pipe.recv()
                    except (EOFError, OSError):  # a worker that dies at its start may reset the pipe
                        del active[worker.pipe]
                        index = worker.index
                        deaths[index] += 1
                        event = death(index, f"its worker process {worker.end()}", deaths[index], self.retries)
                        if event.kind == "note":
                            pending.append((index, tasks[index]))
                        yield event
                        if pending:
                            start()
                        continue
                    yield event
                    if event.kind == "note":
                        continue
                    if pending:
                        worker.take(pending)
                    else:
                        self.idle.append(active.pop(worker.pipe))
        finally:
            for worker in active.values():
                worker.process.terminate()
            deadline = time.monotonic() + self.grace
            for worker in active.values():
                worker.process.join(max(0.0, deadline - time.monotonic()))
                worker.process.kill()


@dataclass(eq=False)
class _Worker:
    """A worker process as its parent sees it."""

    process: Any
    pipe: Connection
    function: Function
    index: int = -1  # of its task

    @classmethod
    def start(cls, function: Function) -> _Worker:
        context = _context(function)
        ours, theirs = context.Pipe()
        arguments = (function, theirs, dict(os.environ))
        process = context.Process(target=_serve, args=arguments, daemon=True)  # a daemon dies with us
        process.start()
        theirs.close()
        return cls(process, ours, function)

    def take(self, pending: list[tuple[int, Any]]) -> None:
        """Hand it the last of these tasks."""
        self.index, task = pending.pop()
        with suppress(OSError):  # dead already: reading tells
            self.pipe.send((self.index, task))

    def end(self) -> str:
        """How it ended, as a sentence goes on."""
        self.process.join()
        code = self.process.exitcode
        return f"died ({f'killed by signal {-code}' if code and code < 0 else f'exit code {code}'})"


def _end(idle: list[_Worker]) -> None:
    """Let workers end that have no task."""
    for worker in idle:
        with suppress(OSError):  # dead already
            worker.pipe.send(None)
    while idle:
        idle.pop().process.join()


def _context(function: Function) -> multiprocessing.context.ForkServerContext:
    """Start the server that workers are forks of, unless it runs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__, *_PRELOADED.get(function.__module__, ())])
    added = APART.keys() - os.environ.keys()
    os.environ.update(APART)
    forkserver.ensure_running()
    for name in added:
        del os.environ[name]
    return context


def outcome_of(function: Function, index: int, task: Any, send: Callable[[Event], object]) -> Event:
    """Compute a task in this process and return how it ended; `send` takes its notes."""

    def report(text: str) -> None:
        send(Event(index, "note", text))

    try:
        return Event(index, "done", function(task, report))
    except Exception as error:
        return Event(index, "failed", *_explained(error))


def death(index: int, end: str, times: int, retries: int) -> Event:
    """Event of a task whose process died: a note that it is tried again, or its failure.

    Args:
        index: of the task.
        end: how the process ended, e.g. "its worker process died".
        times: how often that happened to this task.
        retries: how often it may happen.
    """
    if times <= retries:
        return Event(index, "note", f"{end}: tried again")
    return Event(index, "failed", f"{end}, {times} times" if times > 1 else end)


def _explained(error: Exception) -> tuple[str, str]:
    """One line, and the traceback unless it is a user's mistake."""
    from negbench.errors import NegbenchError, out_of_memory
    from negbench.plugins.registry import blamed

    if isinstance(error, NegbenchError):
        return str(error), ""
    if mend := out_of_memory(error):
        return mend, ""
    if mend := blamed(error):
        return mend, "".join(traceback.format_exception(error))
    return f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))


def _serve(function: Function, pipe: Connection, environment: dict[str, str]) -> None:
    """A worker's whole life; it ends quietly with its parent or by the parent's SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it ends us
    os.environ.clear()  # the server's are of the moment it started
    os.environ.update(environment)
    stop_on_signals(once=GRACE)  # then the parent kills
    talking = threading.Lock()

    def send(event: Event) -> None:
        with talking:
            pipe.send(event)

    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        while (message := pipe.recv()) is not None:
            index, task = message
            send(outcome_of(function, index, task, send))
            check_stopped()
    except Stopped as stopped:
        raise SystemExit(stopped.code) from None
    except (EOFError, OSError):  # the parent is gone
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    """When the parent is gone, however it ended, this process ends a second later."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)  # in order: its MLflow run is ended
    time.sleep(1.0)
    os._exit(128 + signal.SIGTERM)
