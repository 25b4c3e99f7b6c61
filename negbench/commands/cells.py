"""What the commands that compute cells share: encoding first, progress, an estimate after the first cell, failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from negbench.display import log, notes, progress_console, stages
from negbench.errors import NegbenchError
from negbench.signals import Stopped

if TYPE_CHECKING:
    from negbench.executors import Executor
    from negbench.grid.cells import Cell, Outcome
    from negbench.grid.comparison import ComparisonFolder
    from negbench.runfolder import Overwrite


def computed(
    folder: ComparisonFolder,
    cells: Sequence[Cell],
    *,
    executor: Executor,
    tracking_uri: str | None,
    overwrite: Overwrite,
) -> list[Outcome]:
    """Compute what is not finished; tells progress and what failed. One outcome per cell."""
    from negbench.executors import Processes
    from negbench.grid.cells import SCENES, compute_task, title_of
    from negbench.grid.encoding import encode_cells

    runs = folder.path.parent
    distinct = {cell.hash: cell for cell in cells}.values()
    notes(dict.fromkeys(line for cell in distinct for line in cell.remarks))
    todo = [cell for cell in distinct if cell.step(runs, overwrite) in ("resume", "anew")]
    if todo and isinstance(executor, Processes):
        executor.prepare(compute_task)  # it takes as long as all that comes before the first cell
    with stages("prepare") as display:
        encode_cells(todo, executor, display, SCENES)
    if executor.elsewhere or executor.workers > 1:
        SCENES.clear()  # a large backbone is not to stay in memory beside those that train
    try:
        with _progress(runs, cells, todo, executor) as progress:
            outcomes = folder.compute(
                cells, executor, tracking_uri=tracking_uri, overwrite=overwrite, progress=progress
            )
    except (KeyboardInterrupt, Stopped):
        kept = sum(row["run"] is not None for row in folder.cells())
        log.warning("%d of %d cells are finished and kept in %s", kept, len(cells), folder.path)
        raise
    for outcome in _failed(outcomes):
        log.error("FAILED %s: %s", title_of(outcome.cell, cells), outcome.error)
    return outcomes


def _failed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """One outcome of each failed run."""
    return list({outcome.cell.hash: outcome for outcome in outcomes if outcome.error}.values())


def raise_failed(outcomes: Sequence[Outcome]) -> None:
    """The command's end: NegbenchError where a cell failed."""
    failed, total = _failed(outcomes), len({outcome.cell.hash for outcome in outcomes})
    if failed:
        raise NegbenchError(f"{len(failed)} of {total} cells failed; the same command computes them again")


@contextmanager
def _progress(
    runs: Path, cells: Sequence[Cell], todo: Sequence[Cell], executor: Executor
) -> Iterator[Callable[[Outcome, int], None]]:
    """What to call after every cell: a live bar on a terminal, a line elsewhere, an estimate after the first one."""
    import time

    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from negbench.grid.cells import title_of

    console = progress_console()
    started, told, total = time.monotonic(), False, len({cell.hash for cell in cells})
    columns = (
        TextColumn("cells"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal or console.quiet) as live:
        task = live.add_task("", total=total)

        def progress(outcome: Outcome, done: int) -> None:
            nonlocal told
            what = title_of(outcome.cell, cells)
            what = f"{what} FAILED: {outcome.error}" if outcome.error else what
            live.update(task, completed=done, total=total, description=what)
            if outcome.reused:
                return
            if not console.is_terminal:
                log.info("[%d/%d] %6.1f s  %s", done, total, time.monotonic() - started, what)
            if not told and outcome.run_id is not None and done < total:
                told = True
                log.info(_estimate(runs / outcome.run_id, outcome.cell, todo, executor))

        yield progress


def _estimate(folder: Path, first: Cell, todo: Sequence[Cell], executor: Executor) -> str:
    """Time and disk of the rest, from the first cell that was computed."""
    from negbench.grid.estimate import estimate
    from negbench.runfolder import RunFolder

    rest = [cell for cell in todo if cell.hash != first.hash]
    seconds = sum(RunFolder(folder).result["seconds"].values())
    return f"{len(rest)} more to compute: {estimate(rest, seconds, folder, executor).line()} (as the first one went)"


def executor_of(given: str | Executor, address: str | None, workers: int | None, runs: Path | None = None) -> Executor:
    """`--executor`, `--address` and `--workers`, checked.

    Args:
        given: 'pool', 'ray', 'ray:cpus=4:gpus=0.5', or an executor, which stays as it is.
        address: HOST:PORT of a Ray cluster's head; None: RAY_ADDRESS, else this machine alone.
        workers: tasks at a time, at most; None: 1, or with Ray as many as there is room for.
        runs: what all nodes must share beside the cache.

    Raises:
        UnknownNameError: another name, or another option.
        OptionError: an option's value, an address without Ray, or workers or an address beside an executor.
        NegbenchError: Ray is not installed, or its cluster cannot be reached.
    """
    from negbench import executors, files
    from negbench.config import parse_plugin
    from negbench.errors import OptionError, UnknownNameError

    if workers is not None and workers < 1:
        raise OptionError(f"workers must be at least 1, got {workers}")
    if not isinstance(given, str):
        if workers is not None or address is not None:
            raise OptionError("an executor of your own knows its workers and address: leave both out")
        return given
    chosen = parse_plugin(given)
    name = chosen.pop("name")
    if name not in ("pool", "ray"):
        raise UnknownNameError("executor", name, ("pool", "ray"))
    for key, value in chosen.items():
        if name == "pool" or key not in ("cpus", "gpus"):
            raise UnknownNameError("option", key, ("cpus", "gpus") if name == "ray" else (), where=f"--executor {name}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or value < 0 or (key == "cpus" and value == 0) or (value > 1 and value % 1):
            raise OptionError(f"--executor {given}: {key} must be a whole number or a fraction of one, got {value!r}")
    if name == "pool":
        if address is not None:
            raise OptionError("--address is a Ray cluster's: add --executor ray")
        return executors.executor_of(workers or 1)
    from negbench.cluster import Ray

    shared = [files.cache_dir(), *([runs] if runs is not None else [])]
    return Ray.open(shared, address, most=workers, **chosen)
