"""Terminal output: live progress, and tables that fit the width of the terminal."""

import io
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rich import progress as bars
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

Advance = Callable[[int], None]
EVERY = 30.0  # seconds between lines of progress where none is drawn

NOTE_FORMAT = "note: %s"  # what `notes` logs with
log = logging.getLogger("negbench")  # everything printed besides the result: notes are warnings, progress is INFO


def progress_console() -> Console:
    """Return the console for progress: standard error, silent if the logger `negbench` does not log INFO.

    In a notebook it is silent only if this logger has a level of its own above INFO.
    """
    console = Console(stderr=True)
    console.quiet = not (log.isEnabledFor(logging.INFO) or (console.is_jupyter and log.level == logging.NOTSET))
    return console


def notes(remarks: Iterable[str]) -> None:
    """Log remarks that a reader of the result should know, one line each."""
    for remark in remarks:
        log.warning(NOTE_FORMAT, remark)


def duration(seconds: float) -> str:
    """Format seconds as '40 s', '12 min' or '3.5 h'."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class _NotebookProgress(bars.Progress):
    """A bar in the output of a notebook's cell, at most five times a second; rich's own needs ipywidgets."""

    def start(self) -> None:
        """Show an empty line, unless the cell has one."""
        from IPython import get_ipython

        self._line = _line_of(get_ipython().execution_count)
        self._drawn = 0.0

    def stop(self) -> None:
        """Empty the line."""
        self._line.update({"text/plain": ""}, raw=True)

    def refresh(self) -> None:
        """Draw the bar again."""
        if time.monotonic() - self._drawn > 0.2:
            text = io.StringIO()
            Console(file=text, force_jupyter=False, width=100).print(self.get_renderable())
            self._line.update({"text/plain": text.getvalue().rstrip()}, raw=True)
            self._drawn = time.monotonic()


def _join(parts: Iterable[str | None], between: str) -> str:
    """Join the parts that are not empty."""
    return between.join(part for part in parts if part)


@lru_cache(maxsize=1)
def _line_of(cell: int) -> Any:
    """Show an empty line in the output of the notebook's cell of this number; return its handle."""
    from IPython.display import display

    return display({"text/plain": ""}, raw=True, display_id=True)


@contextmanager
def progress(title: str) -> "Iterator[Display]":
    """Show a live line for the stages of one part of a command."""
    display = Display(progress_console())
    with display.live(title):
        yield display


class Display:
    """Shows the current stage and adds up the time that each stage takes.

    Args:
        console: where to draw, or else, if it is no terminal, log a line now and then; None only measures.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._logged = math.inf if console is None or console.quiet else time.monotonic()  # when a line was logged last
        self._progress: bars.Progress | None = None
        if console is not None and (console.is_terminal or console.is_jupyter) and not console.quiet:
            self._progress = (_NotebookProgress if console.is_jupyter else bars.Progress)(
                bars.TextColumn("{task.description}"),
                bars.BarColumn(bar_width=24),
                bars.MofNCompleteColumn(),
                bars.TaskProgressColumn(),
                bars.TimeRemainingColumn(compact=True),
                bars.TextColumn("{task.fields[note]}"),
                console=console,
                transient=True,
            )
        self._task: bars.TaskID | None = None
        self._title = ""
        self._more = ""  # shown beside the progress of the stage
        self._open: list[str] = []

    @contextmanager
    def live(self, title: str = "") -> Iterator[None]:
        """Draw while the block runs; nested calls share one drawing."""
        if self._task is None:
            self._title = title
        if self._progress is None or self._task is not None:
            yield
            return
        with self._progress:
            self._task = self._progress.add_task(title, total=None, note="")
            try:
                yield
            finally:
                self._task = None

    def add(self, text: str) -> None:
        """Show this beside the progress of the current stage."""
        self._more = text
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, note=text)

    @contextmanager
    def stage(self, name: str, *, total: int | None = None, note: str = "") -> Iterator[Advance]:
        """Time the block as stage `name`; time in a nested stage counts for the nested stage only."""
        outer = self._open[-1] if self._open else None
        self._open.append(name)
        done = 0
        self._more = ""
        started = time.perf_counter()

        def log_line() -> None:
            if self._progress is None and time.monotonic() - self._logged >= EVERY:
                self._logged = time.monotonic()
                count = f"{done:,} of {total:,}" if total else ""
                log.info("%s", _join((self._title, name, note, count, self._more), " "))

        def advance(count: int) -> None:
            nonlocal done
            done += count
            log_line()
            if self._progress is not None and self._task is not None:
                redraw = isinstance(self._progress, _NotebookProgress)  # any other draws itself in a thread
                self._progress.update(self._task, completed=done, refresh=redraw)

        if self._progress is not None and self._task is not None:
            self._progress.reset(self._task, description=f"{self._title} {name}".strip(), total=total, note=note)
        log_line()
        try:
            yield advance
        finally:
            self._open.pop()
            spent = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            log.debug("%s %.2f s", f"{self._title} {name}".strip(), spent)
            if outer is not None:
                self.seconds[outer] = self.seconds.get(outer, 0.0) - spent


NUMBER = re.compile(r"^<?([+-]?[\d,]*\.?\d+(e[+-]?\d+)?)(?=$|\s|%)", re.IGNORECASE)  # at the start of a cell


def is_number(values: Sequence[object]) -> bool:
    """Whether a column holds only numbers (and gaps)."""
    texts = [str(value).strip() for value in values]
    return any(NUMBER.match(text) for text in texts) and all(NUMBER.match(t) or t in ("-", "") for t in texts)


@dataclass(frozen=True, eq=False)
class Grid:
    """A table for `console.print`, most important columns first; columns of numbers are flush right.

    On a terminal it shows the columns that fit, and its last line names those left out. In a pipe or a file it is plain
    text with every column and unwrapped lines.

    Args:
        frame: what to show, written as `str` does.
        title: printed above the table.
        caption: printed below the table.
        rest: where to find the columns that do not fit, e.g. a file name.
        bold: first-column values of the rows printed in bold.
    """

    frame: "pd.DataFrame"
    title: str = ""
    caption: str = ""
    rest: str = ""
    bold: tuple[str, ...] = ()

    def _cells(self) -> list[list[str]]:
        """Return each column as its header followed by its values."""
        columns = []
        for index, name in enumerate(self.frame.columns):
            values = [str(value) for value in self.frame.iloc[:, index]]
            columns.append([str(name), *values])
        return columns

    def _is_word(self, index: int) -> bool:
        return index == 0 or not is_number(self.frame.iloc[:, index].tolist())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table on a terminal, else print it as text."""
        if not console.is_terminal:
            yield Segment(self.text())
            return
        columns = self._cells()
        width = 1
        fitting = 0
        for column in columns:
            width += max(len(cell) for cell in column) + 3
            if width <= options.max_width:
                fitting += 1
        fitting = max(1, fitting)
        folded = [name for name, *_ in columns[fitting:]]
        note = ""
        if folded:
            note = f"no room for {', '.join(folded)}"
            if self.rest:
                note += f": see {self.rest}"
        below = _join((self.caption, note), "\n")
        table = Table(title=self.title or None, caption=below or None, title_justify="left", caption_justify="left")
        values_by_column = []
        for index, (name, *values) in enumerate(columns[:fitting]):
            table.add_column(Text(name), justify="left" if self._is_word(index) else "right", no_wrap=True)
            values_by_column.append(values)
        for row in zip(*values_by_column, strict=True):
            style = "bold" if row[0] in self.bold else ""
            table.add_row(*(Text(cell) for cell in row), style=style)
        yield table

    def text(self) -> str:
        """Return plain text, columns separated by two spaces."""
        padded = []
        for index, column in enumerate(self._cells()):
            width = max(len(cell) for cell in column)
            if self._is_word(index):
                padded.append([value.ljust(width) for value in column])
            else:
                padded.append([value.rjust(width) for value in column])
        lines = ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]
        return _join((self.title, *lines, self.caption), "\n") + "\n"
