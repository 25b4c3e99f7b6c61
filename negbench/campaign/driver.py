"""Carry out a course: compute the rounds that it asks for, one after another, until it returns.

A course is a generator. It yields a `Round`, is sent the outcomes of its cells, and returns `Done`. It reads finished
runs, but computes and prints nothing: a test drives it with made outcomes, and `--dry-run` shows its first round.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from negbench.campaign.forewarn import forewarn
from negbench.datasets.dataset import Dataset
from negbench.display import log
from negbench.errors import NegbenchError
from negbench.grid.cells import Cell, Outcome
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.compute import Execution, compute_and_log, failures
from negbench.grid.forecast import MANY, Forecast
from negbench.loop.run_forecast import STEPS_ALONE, forecast_lines
from negbench.loop.runs import DATA, started_precision
from negbench.machine.signals import Stopped


class Search(Protocol):
    """Work of an executor that decides by itself what it computes next, e.g. the trials of a study."""

    def run(self, execution: Execution) -> None:
        """Compute it."""
        ...

    def say_finished(self) -> str:
        """Say what is finished, after an interruption."""
        ...


@dataclass(frozen=True)
class Round:
    """Cells that a course asks for before it goes on.

    Attributes:
        folder: lists the cells.
        cells: to compute.
        before: outcomes of other cells that the folder lists.
        ahead: cells that follow whatever comes out.
        later_epochs: epochs of all other runs that may follow, at most.
        words: lines to print first.
    """

    folder: ComparisonFolder
    cells: Sequence[Cell] = ()
    before: Sequence[Outcome] = ()
    ahead: Sequence[Cell] = ()
    later_epochs: float = 0.0
    words: Sequence[str] = ()

    @property
    def command_cells(self) -> Sequence[Cell]:
        """The cells of the command itself: those ahead, if this round only prepares them."""
        return self.ahead or self.cells

    @property
    def runs(self) -> Path:
        """The runs folder."""
        return self.folder.path.parent

    def price(self, forecast: Forecast) -> list[str]:
        """Tell the forecast what follows this round, and say what all of it takes, as `Forecast.price`."""
        forecast.later = (0.0, self.later_epochs)
        return forecast.price((*self.ahead, *self.cells), self.runs)

    def say_finished(self) -> str:
        """Say what is finished, after an interruption."""
        finished = 0
        if (self.folder.path / "comparison.json").exists():
            finished = sum(row["run"] is not None for row in self.folder.cells())
        total = len(self.before) + len(self.cells)
        return f"{finished} of {total} cells are finished and kept in {self.folder.path}"

    def compute(self, execution: Execution) -> Sequence[Outcome]:
        """Compute the cells, and return their outcomes."""
        return compute_and_log(self.folder, self.cells, execution, self.before)

    def with_search(self, search: Search) -> SearchRound:
        """Return a round that computes a search instead of cells."""
        return SearchRound(**vars(self), search=search)


@dataclass(frozen=True)
class SearchRound(Round):
    """A search that a course asks for before it goes on: it has no cells, and `folder` is its study's or comparison's.

    Attributes:
        search: to compute.
    """

    search: Search = field(kw_only=True)

    def say_finished(self) -> str:
        """Say what is finished, after an interruption."""
        return self.search.say_finished()

    def compute(self, execution: Execution) -> Sequence[Outcome]:
        """Compute the search; it has no outcomes of cells."""
        self.search.run(execution)
        return ()


@dataclass(frozen=True)
class Done:
    """What a course returns.

    Attributes:
        folder: of the outcomes.
        outcomes: of all cells that the folder lists.
        trials: outcomes of cells in another folder.
        errors: why searches failed.
        words: lines to print last.
    """

    folder: ComparisonFolder
    outcomes: Sequence[Outcome] = ()
    trials: Sequence[Outcome] = ()
    errors: Sequence[str] = ()
    words: Sequence[str] = ()

    @property
    def any_finished(self) -> bool:
        """Whether there is anything to judge."""
        return any(outcome.run_id for outcome in self.outcomes)

    def check(self) -> None:
        """Raise NegbenchError if a cell or a search failed."""
        if self.errors:
            count = "1 search" if len(self.errors) == 1 else f"{len(self.errors)} searches"
            raise NegbenchError(f"{count} failed ({self.errors[0]}); rerun the command to resume")
        outcomes = [*self.trials, *self.outcomes]
        failed = failures(outcomes)
        if failed:
            total = len({outcome.cell.hash for outcome in outcomes})
            raise NegbenchError(f"{len(failed)} of {total} cells failed; rerun the command to compute them again")


Course = Generator[Round, Sequence[Outcome], Done]


@contextmanager
def carry_out(course: Course, execution: Execution, say: Callable[[str], None], margin: float = 0.0) -> Iterator[Done]:
    """Compute a course's rounds, and hold the lock of each folder that lists cells from its first round to the end.

    Args:
        course: asks for rounds.
        execution: how they are computed.
        say: prints a line.
        margin: as in `forewarn`.

    Yields:
        What the course returns, to be judged and stored in the block.

    Raises:
        NegbenchError: after the block, if a cell or a search failed.
    """
    with ExitStack() as locks:
        with execution.open():
            done = _drive(course, execution, say, margin, locks)
        yield done
    done.check()


def _drive(course: Course, execution: Execution, say: Callable[[str], None], margin: float, locks: ExitStack) -> Done:
    """Compute a course's rounds, and lock the folders that list cells, until `locks` is closed."""
    folders: dict[Path, ComparisonFolder] = {}
    current: Round = next(course)
    cells = current.command_cells
    try:
        if len(cells) >= MANY:
            for line in current.price(execution.forecast):
                say(line)
        if cells and not execution.executor.elsewhere:
            _lock(current, folders, locks)
            forewarn(cells, current.runs, margin)
        while True:
            _lock(current, folders, locks)
            outcomes = _compute(current, execution, say)
            try:
                current = course.send(outcomes)
            except StopIteration as end:
                done: Done = end.value
                break
    except (KeyboardInterrupt, Stopped):
        log.warning(current.say_finished())
        raise
    for line in done.words:
        say(line)
    if done.folder.path in folders:
        done.folder.settle(done.outcomes)  # comparison.json may name those of an earlier command
    for folder in folders.values():
        if folder.path != done.folder.path:  # e.g. that of the trials; `finish` completes the copy of the judged one
            folder.parent(execution.tracking_uri).complete()
    return done


def _lock(current: Round, folders: dict[Path, ComparisonFolder], locks: ExitStack) -> None:
    """Lock the folder of a round's cells, unless an earlier round has; it is added to `folders`."""
    if not isinstance(current, SearchRound) and current.folder.path not in folders:
        locks.enter_context(current.folder.lock())
        folders[current.folder.path] = current.folder


def _compute(current: Round, execution: Execution, say: Callable[[str], None]) -> Sequence[Outcome]:
    """Print a round's lines, tell the forecast what follows, and compute the round."""
    for line in current.words:
        say(line)
    epochs_ahead = {}  # by hash: a run of several cells is computed once
    for cell in current.ahead:
        if cell.action(current.runs) != "reuse":
            epochs_ahead[cell.hash] = cell.config.train.epochs
    least = sum(epochs_ahead.values())
    execution.forecast.later = (least, least + current.later_epochs)
    return current.compute(execution)


# --- --dry-run -----------------------------------------------------------------------------------------------------


def foresee(first: Round) -> list[str]:
    """Say what a course reads, and what it takes from its first round on."""
    cells = list({cell.hash: cell for cell in (*first.ahead, *first.cells)}.values())
    by_data: dict[tuple[str, str], Cell] = {}
    for cell in reversed(cells):  # the first cell stays
        by_data[cell.labels["dataset"], cell.labels["backbone"]] = cell
    lines = list(first.words)
    for cell in by_data.values():
        lines.append(_data_text(cell))
        if cell.action(first.runs) != "reuse":
            lines += forecast_lines(cell.config, DATA, started_precision(cell.run, first.runs))
    price = first.price(Forecast())
    is_missing = any(cell.action(first.runs) != "reuse" for cell in cells)
    is_timed = any(line.startswith(STEPS_ALONE) for line in lines)
    if is_missing and not price and not is_timed:
        price = [
            "how long it takes is unknown: no such run is finished, and it cannot be timed here; "
            "`negbench run --epochs 1` with one strategy and your other settings prints an epoch's seconds and memory"
        ]
    return [*dict.fromkeys(lines), *price]


def _data_text(cell: Cell) -> str:
    """Say which data and backbone a cell reads: how many queries and images."""
    splits = DATA.splits(cell.config)
    counts = f"{_queries_text(splits.train)} train and {_queries_text(splits.val)} scored queries"
    if splits.train.partial or splits.val.partial:
        counts += " are left"
    counts += f", {len({*splits.train.all_images, *splits.val.all_images}):,} images"
    if splits.also is not None:
        counts += f"; at each point {splits.also.identity}, {len(splits.also.queries):,} queries"
    return f"reads {cell.labels['dataset']} ({counts}), backbone {cell.labels['backbone']}"


def _queries_text(dataset: Dataset) -> str:
    """Count the queries of a split; where images are missing, 'those that are left of those that it has'."""
    count = len(dataset.queries)
    return f"{count:,} of {round(count / dataset.share):,}" if dataset.share < 1 else f"{count:,}"
