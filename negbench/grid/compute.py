"""Compute cells for a command: encode first, show progress, estimate the rest after one cell, report failures."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch

from negbench.contracts import HoldsFeatures
from negbench.display import Advance, Display, log, notes, progress, progress_console
from negbench.errors import OptionError, UnknownNameError, install_line
from negbench.grid.cell_task import Task, compute_task
from negbench.grid.cells import Cell, Outcome, first_cells, titles_of
from negbench.grid.cluster import Ray
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.executors import Event, Executor, InProcess, Processes
from negbench.grid.forecast import Forecast
from negbench.grid.jobs import Jobs
from negbench.loop.runs import DATA, open_run, started_precision
from negbench.machine import files
from negbench.machine.grouping import group_by
from negbench.plugins.registry import registry
from negbench.settings.command_options import Claims
from negbench.settings.layers import parse_plugin
from negbench.settings.options import Compare, Study

_TRACKING = ("mlflow.tracking", "mlflow.store.tracking.sqlalchemy_store")  # what runs import for an MLflow store


@dataclass(frozen=True)
class Execution:
    """How cells are computed.

    Args:
        executor: computes them.
        tracking_uri: MLflow store.
        forecast: what the command still needs; its parts refine it.
    """

    executor: Executor
    tracking_uri: str | None = None
    forecast: Forecast = field(default_factory=Forecast, compare=False)

    @classmethod
    def of(cls, options: Compare | Study | Claims) -> Self:
        """Return what a command's options ask for; nothing is started yet.

        Raises:
            NegbenchError: as `executor_of`; OptionError: the runs folder is a file.
        """
        runs = files.runs_dir(options.runs_dir)
        uri = options.tracking_uri
        if runs.exists() and not runs.is_dir():  # planning may take long
            raise OptionError(f"--runs-dir {runs} is not a folder: name another one")
        advice = install_line("mlflow") if uri != "none" else None
        if advice:
            notes([f"no copy in MLflow: {advice} (or say --tracking-uri none)"])
        executor = executor_of(options.executor, options.address, options.workers, runs, uri)
        if isinstance(executor, Jobs) and (isinstance(options, Study) or getattr(options, "tuned", None)):
            raise OptionError("--executor jobs computes cells, and trials follow from each other: use pool or ray")
        return cls(executor, uri)

    def open(self) -> AbstractContextManager[object]:
        """Return the context of one command; at its end no worker is left."""
        return self.executor if isinstance(self.executor, AbstractContextManager) else nullcontext()


def compute_and_log(
    folder: ComparisonFolder, cells: Sequence[Cell], execution: Execution, before: Sequence[Outcome] = ()
) -> list[Outcome]:
    """Compute the cells that are not finished, and write comparison.json after every one; log progress and failures.

    Args:
        folder: folder of the comparison. In MLflow, the cells are children of one run of the comparison's experiment.
        cells: cells from `plan_cells`.
        execution: how they are computed.
        before: outcomes of other cells, which stay in comparison.json.

    Returns:
        One outcome per cell, in order. A failing cell does not stop the others.
    """
    runs = folder.path.parent
    distinct = first_cells(cells)  # each run is computed once, and labelled as its first cell
    todo: list[Cell] = []
    by_hash: dict[str, Outcome] = {}
    for cell in distinct:
        if cell.action(runs) == "reuse":
            by_hash[cell.hash] = Outcome(cell, cell.folder, None, True)
        else:
            todo.append(cell)
    notes(_remarks(distinct))

    def outcomes() -> list[Outcome]:
        """Return the outcomes so far; cells of one run share its outcome."""
        return [replace(by_hash[cell.hash], cell=cell) for cell in cells if cell.hash in by_hash]

    if not todo and folder.lists([*before, *outcomes()]):
        return outcomes()  # nothing to compute, and nothing to write
    _prepare(todo, runs, execution.executor)
    titles = titles_of(distinct)
    parent = folder.parent(execution.tracking_uri)
    parent.open()
    files.seal(folder.path)
    folder.write([*before, *outcomes()])
    tags = {"experiment": folder.path.name, "negbench.kind": "cell", "comparison": folder.path.name}
    tasks = [Task(cell.run, runs, execution.tracking_uri, tags | cell.labels) for cell in todo]
    with progress("compute") as display, display.stage("cells", total=len(distinct)) as advance, parent.working():
        show_progress = _progress(runs, titles, todo, execution, advance)
        for event in execution.executor.run(compute_task, tasks):
            cell = todo[event.index]
            if event.kind == "note":
                log.warning("%s: %s", titles[cell.hash], event.value)
                continue
            by_hash[cell.hash] = _outcome(cell, event)
            if event.detail:  # the traceback, for a bug report
                files.write_text(folder.path / f"fault-{cell.hash[:8]}.txt", event.detail)
            folder.write([*before, *outcomes()])
            show_progress(by_hash[cell.hash], len(by_hash))
    for outcome in failures(by_hash.values()):
        log.error("FAILED %s: %s", titles[outcome.cell.hash], outcome.error)
    return outcomes()


def _remarks(cells: Iterable[Cell]) -> list[str]:
    """Return what a reader must know about these cells, each remark once."""
    remarks: dict[str, None] = {}
    for cell in cells:
        remarks |= dict.fromkeys(cell.remarks)
    return list(remarks)


def _prepare(cells: Sequence[Cell], runs: Path, executor: Executor) -> None:
    """Encode what these cells read, unless other machines do, and free what only workers need."""
    if cells and isinstance(executor, Processes):
        executor.prepare(compute_task)  # takes as long as everything before the first cell
    if not executor.elsewhere:  # else the first worker that asks encodes; the others wait for the store's lock
        with progress("prepare") as display:
            encode_cells(cells, runs, display)
    if executor.elsewhere or executor.workers > 1:
        DATA.clear()  # free a large backbone here, as the workers load their own


def _outcome(cell: Cell, event: Event) -> Outcome:
    """Return what became of a cell from the last event of its task."""
    if event.kind == "done":
        run_id, reused = event.value
        return Outcome(cell, run_id, None, reused)
    return Outcome(cell, None, event.value, False)


def encode_cells(cells: Sequence[Cell], runs: Path, display: Display) -> None:
    """Encode the images that the feature store lacks, once for each data set, frozen backbone and precision of cells.

    Args:
        cells: that are not finished.
        runs: folder of the runs; a cell that was started there, on another device, keeps its precision.
        display: progress.

    Raises:
        NegbenchError: images that cannot be read, a full disk.
    """

    def features_of(cell: Cell) -> str:
        """Name the stored features that a cell reads."""
        brings_features = issubclass(registry.get("backbones", cell.config.backbone.name), HoldsFeatures)
        if brings_features:  # it stores none: check one cell per data set label
            return f"{cell.labels['backbone']} {cell.labels['dataset']}"
        precision = started_precision(cell.run, runs) or cell.config.train.precision
        return f"{cell.run.data} {precision}"

    for first, *_ in group_by(cells, features_of).values():
        open_run(first.run, display, DATA, runs)


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return one outcome of each failed run."""
    return list({outcome.cell.hash: outcome for outcome in outcomes if outcome.error}.values())


def _progress(
    runs: Path, titles: Mapping[str, str], todo: Sequence[Cell], execution: Execution, advance: Advance
) -> Callable[[Outcome, int], None]:
    """Return a callback for every cell: it moves the bar or logs a line, and estimates the rest now and then."""
    console = progress_console()
    started = time.monotonic()
    executor = execution.executor
    total = len(titles)
    unfinished = {cell.hash: cell for cell in todo}
    bar = console.is_terminal or console.is_jupyter
    if bar:
        advance(total - len(todo))

    def show_progress(outcome: Outcome, done: int) -> None:
        cell = unfinished.pop(outcome.cell.hash)
        if bar:
            advance(1)
        if outcome.reused:
            return
        if not console.is_terminal:
            line = titles[cell.hash]
            if outcome.error:
                line += f" FAILED: {outcome.error}"
            log.info("[%d/%d] %6.1f s  %s", done, total, time.monotonic() - started, line)
        if outcome.run_id is None:
            return
        forecast = execution.forecast
        is_due = forecast.add_computed(cell, runs / outcome.run_id)
        _, most_later_epochs = forecast.later
        if is_due and (unfinished or most_later_epochs):
            log.info(forecast.text(unfinished.values(), executor.workers, elsewhere=executor.elsewhere))

    return show_progress


def executor_of(
    executor: str | Executor, address: str | None, workers: int | None, runs: Path, uri: str | None
) -> Executor:
    """Check `--executor`, `--address` and `--workers`, and return the executor.

    Args:
        executor: 'pool', 'ray', 'ray:cpus=4:gpus=0.5', 'jobs:FOLDER', or an executor, which is returned as it is.
        address: HOST:PORT of a Ray cluster's head; None: RAY_ADDRESS, else this machine alone.
        workers: maximum number of tasks at a time; None: 1, or with Ray as many as fit.
        runs: runs folder, which all nodes must share, like the cache.
        uri: MLflow store; "none": none.

    Raises:
        UnknownNameError: an unknown executor or option.
        OptionError: an invalid value, an address without Ray, or workers or an address with an executor object.
        NegbenchError: Ray is not installed, or its cluster cannot be reached.
    """
    if not isinstance(executor, str):
        if workers is not None or address is not None:
            raise OptionError("an executor object has its own workers and address: leave both out")
        return executor
    if executor.partition(":")[0] == "jobs":
        folder = executor.removeprefix("jobs").removeprefix(":")
        if workers is not None or address is not None or not folder:
            raise OptionError("--executor jobs:FOLDER takes the folder, and neither --workers nor --address")
        return Jobs(Path(folder))
    options = parse_plugin(executor)
    name = options.pop("name")
    if name == "ray":
        _check_ray(executor, options)
        return Ray.open([files.cache_dir(), runs], address, most=workers, **options)
    if name != "pool":
        raise UnknownNameError("executor", name, ("pool", "ray", "jobs"))
    for key in options:
        raise UnknownNameError("option", key, (), where="--executor pool")
    if address is not None:
        raise OptionError("--address needs --executor ray")
    return _pool(1 if workers is None else workers, uri)


def _pool(workers: int, uri: str | None) -> Executor:
    """Return the executor of one process or of several; a note says if workers share GPUs."""
    if workers == 1:
        return InProcess()
    devices = gpus()
    if 0 < len(devices) < workers:
        shared = "1 GPU" if len(devices) == 1 else f"{len(devices)} GPUs"
        notes([f"{workers} workers share {shared}"])
    preload: tuple[str, ...] = ("pandas", "pyarrow.parquet")
    if uri != "none":
        preload += _TRACKING
    return Processes(workers, preload=preload, devices=devices)


def _check_ray(executor: str, options: Mapping[str, Any]) -> None:
    """Refuse options of `--executor ray` that are none, or no number of CPUs or GPUs."""
    for key, value in options.items():
        if key not in ("cpus", "gpus"):
            raise UnknownNameError("option", key, ("cpus", "gpus"), where="--executor ray")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or value < 0 or (key == "cpus" and value == 0) or (value > 1 and value % 1):
            problem = f"{key} must be a whole number or a fraction of one, got {value!r}"
            raise OptionError(f"--executor {executor}: {problem}")


def gpus() -> tuple[str, ...]:
    """Return the GPUs of this process, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(str(number) for number in range(torch.cuda.device_count()))
    return tuple(name.strip() for name in visible.split(",") if name.strip())
