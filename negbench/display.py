"""Progress: one live line per stage with its time, on a terminal; nothing but the stage times elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

Advance = Callable[[int], None]


class Display:
    """Shows what is being done and adds up how long each stage takes.

    Args:
        console: where to draw; None draws nothing and only measures.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._progress: Progress | None = None
        if console is not None and console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[note]}"),
                console=console,
                transient=True,
            )
        self._task: TaskID | None = None
        self._title = ""
        self._open: list[str] = []

    @contextmanager
    def live(self, title: str = "") -> Iterator[None]:
        """Draw while the block runs; nested calls share one drawing."""
        if self._progress is None or self._task is not None:
            yield
            return
        self._title = title
        with self._progress:
            self._task = self._progress.add_task(title, total=None, note="")
            try:
                yield
            finally:
                self._task = None

    @contextmanager
    def stage(self, name: str, *, total: int | None = None, note: str = "") -> Iterator[Advance]:
        """Time the block under `name` (the time of a stage within a stage counts for the inner one only)."""
        outer = self._open[-1] if self._open else None
        self._open.append(name)
        done = 0
        started = time.perf_counter()

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, completed=done)

        if self._progress is not None and self._task is not None:
            label = f"{self._title} {name}".strip()
            self._progress.reset(self._task, description=label, total=total, note=note)
        try:
            yield advance
        finally:
            self._open.pop()
            spent = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            if outer is not None:
                self.seconds[outer] = self.seconds.get(outer, 0.0) - spent
