"""Tasks in worker processes, one at a time each: a task that fails, or a worker that dies, stops no other task."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

Report = Callable[[str], None]


@dataclass(frozen=True)
class Event:
    """What happened to task `index`: 'note' (text), 'done' (value) or 'failed' (one line, and the traceback)."""

    index: int
    kind: str
    value: Any = None
    detail: str = ""


def run_tasks(function: Callable[[Any, Report], Any], tasks: Sequence[Any], workers: int) -> Iterator[Event]:
    """Compute ``function(task, report)`` for every task, in the order given, `workers` at a time.

    Args:
        function: importable by name; `report(text)` sends a note while it runs.
        tasks: picklable.
        workers: processes; 0 computes here, without any.

    Yields:
        Events as they come; each task ends with one 'done' or 'failed'. A worker that dies (kill -9, out of memory)
        fails its task and is replaced.
    """
    if workers == 0:
        yield from _here(function, tasks)
        return
    context = multiprocessing.get_context("spawn")
    pending = list(enumerate(tasks))[::-1]
    active: dict[Connection, tuple[Any, int]] = {}

    def start() -> None:
        index, task = pending.pop()
        ours, theirs = context.Pipe()
        # a daemon dies with us; one process serves many tasks, so that what it has loaded is shared by them
        process = context.Process(target=_serve, args=(function, theirs), daemon=True)
        process.start()
        theirs.close()
        ours.send((index, task))
        active[ours] = (process, index)

    try:
        for _ in range(min(workers, len(pending))):
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


def _here(function: Callable[[Any, Report], Any], tasks: Sequence[Any]) -> Iterator[Event]:
    for index, task in enumerate(tasks):
        notes: list[Event] = []
        event = _outcome(function, index, task, lambda text, i=index, n=notes: n.append(Event(i, "note", text)))  # type: ignore[misc]
        yield from notes
        yield event


def _outcome(function: Callable[[Any, Report], Any], index: int, task: Any, report: Report) -> Event:
    from negbench.errors import NegbenchError

    try:
        return Event(index, "done", function(task, report))
    except NegbenchError as error:
        return Event(index, "failed", str(error))
    except Exception as error:
        return Event(index, "failed", f"{type(error).__name__}: {error}", traceback.format_exc())


def _serve(function: Callable[[Any, Report], Any], pipe: Connection) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it ends us
    while (message := pipe.recv()) is not None:
        index, task = message
        pipe.send(_outcome(function, index, task, lambda text, i=index: pipe.send(Event(i, "note", text))))  # type: ignore[misc]
