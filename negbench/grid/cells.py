"""Cells: runs that belong together. One planner, one executor and one way to go on for whatever is a set of runs.

A cell is a run like any other, found again by its hash, so that the same command goes on where it stopped, and two
grids share the cells that they have in common.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from negbench.config import ResolvedConfig, RunConfig
from negbench.data.scene import Scenes
from negbench.display import Display, log
from negbench.errors import OptionError, RunError
from negbench.executors import Executor, Report, told_of
from negbench.grid.axes import labels_of, short
from negbench.loop.runs import Bench, RunResult, plan_run, run_config, run_stack
from negbench.loop.stacked import most_of, stack_key
from negbench.runfolder import Overwrite, RunFolder, Step, best_of, step_of


@dataclass(frozen=True)
class Cell:
    """One cell: its resolved configuration, hash, and the folder that holds it so far, if any.

    `data` names the data set and the frozen part of the backbone: cells of one value share features. `alone` says why
    it is trained by itself though `train.stacked` is asked for.
    """

    config: ResolvedConfig
    hash: str
    labels: dict[str, str]  # strategy, loss, backbone, dataset -> as tables print it
    data: str
    folder: str | None = None
    alone: str = ""
    remarks: tuple[str, ...] = ()  # what a reader must know of it

    @property
    def seed(self) -> int:
        """The cell's seed."""
        return self.config.seed

    def step(self, runs: Path, overwrite: Overwrite) -> Step:
        """What `compute` will do about it."""
        return step_of(RunFolder(runs / self.folder) if self.folder else None, overwrite)


def plan(
    configs: Sequence[RunConfig],
    runs: Path,
    display: Display,
    scenes: Scenes,
    labels: Sequence[Mapping[str, str]] | None = None,
) -> list[Cell]:
    """Resolve every cell and look for it among the finished runs; nothing is encoded yet.

    Args:
        configs: as read; those that share a data set and a backbone stand together.
        runs: runs folder.
        display: shows the progress.
        scenes: keeps what was loaded.
        labels: of each cell, beside or instead of those that follow from its configuration; cells that differ in them
            alone are one run with two places in the grid.

    Raises:
        NegbenchError: a configuration that cannot run, or data that are not there; nothing is computed then.
        OptionError: two cells that are the same run in the same place.
    """
    cells, seen = list[Cell](), set[tuple[str, str]]()
    with display.stage("prepare", total=len(configs)) as advance:
        for config, own in zip(configs, labels or [{}] * len(configs), strict=True):
            planned = plan_run(config, scenes)
            named = {**labels_of(planned.config), **own, "dataset": planned.splits.val.identity}
            place = (planned.hash, str(sorted(own.items())))
            if place in seen:
                raise OptionError(f"the grid holds {named['strategy']} with seed {config.seed} twice: name it once")
            seen.add(place)
            held = best_of(runs, planned.hash)
            folder = None if held is None else held.run_id
            told = (planned.data, folder, planned.alone, planned.remarks)
            cells.append(Cell(planned.config, planned.hash, named, *told))
            advance(1)
    names = {axis: short(cell.labels[axis] for cell in cells) for axis in ("strategy", "loss", "backbone")}
    return [replace(c, labels=c.labels | {axis: known[c.labels[axis]] for axis, known in names.items()}) for c in cells]


def title_of(cell: Cell, cells: Sequence[Cell]) -> str:
    """'qure bradley-terry seed 0', with backbone and data set where the cells differ in them."""
    axes = ("backbone",) if "point" in cell.labels else ("backbone", "dataset")  # a point is a data set of its own
    differ = [axis for axis in axes if len({other.labels[axis] for other in cells}) > 1]
    place = cell.labels.get("system") or cell.labels.get("point")
    return (f"[{place}] " if place else "") + " ".join(
        [*(cell.labels[axis] for axis in ("strategy", "loss", *differ)), f"seed {cell.seed}"]
    )


# --- computing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: `run_id` where it is finished, else `error`; `reused` where it was finished before."""

    cell: Cell
    run_id: str | None
    error: str | None
    reused: bool


@dataclass(frozen=True)
class Task:
    """A cell as a worker is told it; picklable.

    Args:
        config: of the cell.
        hash: of the run, as planned.
        runs: runs folder.
        uri: MLflow store, as `Tracker.open` takes it.
        tags: of the MLflow run.
        overwrite: see `negbench.runfolder.Overwrite`.
    """

    config: ResolvedConfig
    hash: str
    runs: Path
    uri: str | None
    tags: Mapping[str, str]
    overwrite: Overwrite


SCENES = Scenes()  # of this process: the cells of a worker share what the first one loaded


@dataclass(frozen=True)
class Done:
    """What became of a task: as `Outcome`, and the traceback of a fault of ours."""

    run_id: str | None
    reused: bool
    error: str | None = None
    detail: str = ""


def compute_tasks(tasks: Sequence[Task], report: Report) -> list[Done]:
    """Compute one cell, or several as a stack; go on with them, or find them finished.

    Raises:
        RunError: this machine would compute another run than was planned.
    """
    for task in tasks:
        if plan_run(task.config, SCENES).hash != task.hash:
            host = socket.gethostname()
            raise RunError(f"node {host} has other code, data or weights than planned with: make it as the others are")
    benches = [Bench.open(task.runs, task.uri, scenes=SCENES, tags=task.tags) for task in tasks]
    if len(tasks) == 1:
        only = run_config(tasks[0].config, benches[0], overwrite=tasks[0].overwrite)
        return [Done(only.run_id, only.reused)]
    return [
        Done(found.run_id, found.reused) if isinstance(found, RunResult) else Done(None, False, *told_of(found))
        for found in run_stack([task.config for task in tasks], benches, overwrite=tasks[0].overwrite)
    ]


def stacks(cells: Sequence[Cell], workers: int) -> list[list[Cell]]:
    """The cells that are computed together, in the order of the first of each; enough of them for all workers."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        key = stack_key(cell.config, cell.data) if cell.config.train.stacked else cell.hash
        groups.setdefault(key, []).append(cell)
    found = list[list[Cell]]()
    for group in groups.values():
        size = min(most_of(group[0].config), -(-len(group) // workers))
        if size < len(group):  # runs of one seed share what they have in common
            group = sorted(group, key=lambda cell: cell.seed)
        found += [group[start : start + size] for start in range(0, len(group), size)]
    return found


def compute(
    cells: Sequence[Cell],
    executor: Executor,
    *,
    runs: Path,
    tracking_uri: str | None = None,
    tags: Mapping[str, str] | None = None,
    overwrite: Overwrite = "failed",
) -> Iterator[tuple[Outcome, str]]:
    """Compute what is not finished; a failing cell does not stop the others.

    Args:
        cells: of `plan`.
        executor: where.
        runs: runs folder.
        tracking_uri: MLflow store.
        tags: of every cell's MLflow run, beside its labels.
        overwrite: see `negbench.runfolder.Overwrite`.

    Yields:
        The outcome of each run once, however many cells it stands for, finished ones first; with the traceback of a
        fault of ours, else "".
    """
    todo: list[Cell] = []
    first: dict[str, Cell] = {}  # a run is named by its first place
    for cell in cells:
        first.setdefault(cell.hash, cell)
    for cell in first.values():
        step = cell.step(runs, overwrite)
        if step == "reuse":
            yield Outcome(cell, cell.folder, None, True), ""
        elif step == "leave":
            status = RunFolder(runs / str(cell.folder)).status
            yield Outcome(cell, None, f"{status} before, and --overwrite never", False), ""
        else:
            todo.append(cell)
    together = stacks(todo, executor.workers)
    tasks = [
        [Task(cell.config, cell.hash, runs, tracking_uri, {**(tags or {}), **cell.labels}, overwrite) for cell in group]
        for group in together
    ]
    for event in executor.run(compute_tasks, tasks):
        group = together[event.index]
        if event.kind == "done":
            for cell, done in zip(group, event.value, strict=True):
                yield Outcome(cell, done.run_id, done.error, done.reused), done.detail
        elif event.kind == "note":
            log.warning("%s: %s", title_of(group[0], cells), event.value)
        else:
            for cell in group:
                yield Outcome(cell, None, event.value, False), event.detail
