"""Where tasks are computed: here, or in worker processes of this machine; a cluster engine is one more `Executor`."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar, Protocol

Report = Callable[[str], None]
Function = Callable[[Any, Report], Any]


@dataclass(frozen=True)
class Event:
    """What happened to task `index`: 'note' (text), 'done' (value) or 'failed' (one line, and the traceback)."""

    index: int
    kind: str
    value: Any = None
    detail: str = ""


class Executor(Protocol):
    """Computes tasks somewhere, so many at a time."""

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


def executor_of(workers: int) -> Executor:
    """One worker computes here; several are processes."""
    return Here() if workers == 1 else Processes(workers)


@dataclass(frozen=True)
class Here:
    """In this process, in the order given."""

    workers: ClassVar[int] = 1

    def run(self, function: Function, tasks: Sequence[Any]) -> Iterator[Event]:
        """See `Executor`; notes come with their task's end."""
        for index, task in enumerate(tasks):
            notes: list[Event] = []
            event = _outcome(function, index, task, lambda text, i=index, n=notes: n.append(Event(i, "note", text)))  # type: ignore[misc]
            yield from notes
            yield event


@dataclass(frozen=True)
class Processes:
    """In so many worker processes, a task at a time each.

    A process serves many tasks, so that they share what it has loaded. One that dies (kill -9, out of memory) fails its
    task and is replaced.
    """

    workers: int

    def run(self, function: Function, tasks: Sequence[Any]) -> Iterator[Event]:
        """See `Executor`; tasks start in the order given."""
        context = multiprocessing.get_context("spawn")
        pending = list(enumerate(tasks))[::-1]
        active: dict[Connection, tuple[Any, int]] = {}

        def start() -> None:
            index, task = pending.pop()
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(function, theirs), daemon=True)  # a daemon dies with us
            process.start()
            theirs.close()
            ours.send((index, task))
            active[ours] = (process, index)

        try:
            for _ in range(min(self.workers, len(pending))):
                start()
            while active:
                for ready in wait(list(active)):
                    assert isinstance(ready, Connection)
                    process, index = active[ready]
                    try:
                        event: Event = ready.recv()
                    except (EOFError, OSError):  # a worker that dies at its start may reset the pipe
                        process.join()
                        del active[ready]
                        code = process.exitcode
                        why = f"killed by signal {-code}" if code and code < 0 else f"exit code {code}"
                        yield Event(index, "failed", f"its worker process died ({why})")
                        if pending:
                            start()
                        continue
                    yield event
                    if event.kind != "note":
                        if pending:
                            index, task = pending.pop()
                            active[ready] = (process, index)
                            ready.send((index, task))
                        else:
                            ready.send(None)
                            process.join()
                            del active[ready]
        finally:
            for process, _ in active.values():
                process.terminate()


def _outcome(function: Function, index: int, task: Any, report: Report) -> Event:
    try:
        return Event(index, "done", function(task, report))
    except Exception as error:
        return Event(index, "failed", *told_of(error))


def told_of(error: Exception) -> tuple[str, str]:
    """One line, and the traceback where it is a fault of ours."""
    from negbench.errors import NegbenchError

    if isinstance(error, NegbenchError):
        return str(error), ""
    return f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))


def _serve(function: Function, pipe: Connection) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it ends us
    while (message := pipe.recv()) is not None:
        index, task = message
        pipe.send(_outcome(function, index, task, lambda text, i=index: pipe.send(Event(i, "note", text))))  # type: ignore[misc]
