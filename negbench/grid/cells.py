"""Cells: the runs of a comparison, claims or a study's final comparison, planned and computed the same way.

A cell is an ordinary run, found again by its hash: a rerun command computes only missing cells, and comparisons share
the cells that they have in common.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.errors import OptionError, RunError
from negbench.grid.axes import labels_of, short
from negbench.grid.executors import Report
from negbench.loop.runs import Bench, plan_run, run_config
from negbench.loop.types import PlannedRun
from negbench.settings.config import ResolvedConfig, RunConfig
from negbench.store.runfolder import RunFolder, Step, best_of, step_of


@dataclass(frozen=True)
class Cell:
    """One cell: its resolved configuration, hash, and the folder that holds it so far, if any.

    `data` names the data set and the frozen part of the backbone: cells with the same value share features.
    """

    config: ResolvedConfig
    hash: str
    labels: dict[str, str]  # strategy, loss, backbone, dataset (and settings, system or point) -> as tables print it
    data: str
    folder: str | None = None
    remarks: tuple[str, ...] = ()  # what a reader must know about it

    @property
    def seed(self) -> int:
        """The cell's seed."""
        return self.config.seed

    def step(self, runs: Path) -> Step:
        """Return what is left to do: reuse, resume or compute anew."""
        return step_of(RunFolder(runs / self.folder) if self.folder else None)


def cell_of(planned: PlannedRun, labels: Mapping[str, str], runs: Path) -> Cell:
    """Return the cell of a planned run, with its best folder so far."""
    held = best_of(runs, planned.hash)
    folder = None if held is None else held.run_id
    return Cell(planned.config, planned.hash, dict(labels), planned.data, folder, planned.remarks)


def plan(
    configs: Sequence[RunConfig],
    runs: Path,
    display: Display,
    scenes: Scenes,
    labels: Sequence[Mapping[str, str]] | None = None,
) -> list[Cell]:
    """Resolve every cell and look for it among the finished runs; nothing is encoded yet.

    Args:
        configs: configurations as read, ordered so that those with the same data set and backbone are adjacent.
        runs: runs folder.
        display: shows the progress.
        scenes: caches loaded data and backbones.
        labels: labels of each cell, added to or replacing those that follow from its configuration; cells that differ
            only in them are one run with two places in the grid.

    Raises:
        NegbenchError: a configuration that cannot run, or missing data; nothing is computed then.
        OptionError: two cells are the same run in the same place.
    """
    cells, seen = list[Cell](), set[tuple[str, str]]()
    with display.stage("prepare", total=len(configs)) as advance:
        for config, own in zip(configs, labels or [{}] * len(configs), strict=True):
            planned = plan_run(config, scenes)
            val, pinned = planned.splits.val, config.dataset.options.get("world") is not None
            named = {**labels_of(planned.config), **own, "dataset": val.identity if pinned else val.kind}
            place = (planned.hash, str(sorted(own.items())))
            if place in seen:
                raise OptionError(f"strategy {named['strategy']} with seed {config.seed} is named twice: name it once")
            seen.add(place)
            cells.append(cell_of(planned, named, runs))
            advance(1)
    names = {axis: short(cell.labels[axis] for cell in cells) for axis in ("strategy", "loss", "backbone")}
    return [replace(c, labels=c.labels | {axis: known[c.labels[axis]] for axis, known in names.items()}) for c in cells]


def title_of(cell: Cell, cells: Sequence[Cell]) -> str:
    """Return 'qure bradley-terry seed 0', with backbone and data set if the cells differ in them."""
    axes = ("backbone",) if "point" in cell.labels else ("backbone", "dataset")  # each point has its own data set
    differ = [axis for axis in axes if len({other.labels[axis] for other in cells}) > 1]
    place = cell.labels.get("system") or cell.labels.get("point") or cell.labels.get("settings")
    return (f"[{place}] " if place else "") + " ".join(
        [*(cell.labels[axis] for axis in ("strategy", "loss", *differ)), f"seed {cell.seed}"]
    )


# --- computing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Result of a cell: `run_id` if it finished, else `error`; `reused` if it was finished before."""

    cell: Cell
    run_id: str | None
    error: str | None
    reused: bool


@dataclass(frozen=True)
class Task:
    """Picklable description of one cell for a worker.

    Args:
        config: configuration of the cell.
        hash: hash of the run, as planned.
        runs: runs folder.
        uri: MLflow store, as `Tracker.open` takes it.
        tags: tags of the MLflow run.
    """

    config: ResolvedConfig
    hash: str
    runs: Path
    uri: str | None
    tags: Mapping[str, str]


SCENES = Scenes()  # one per process: a worker's cells share what the first one loaded


def compute_task(task: Task, report: Report) -> tuple[str, bool]:
    """Compute, resume or reuse one cell; return its run id and whether it was finished before.

    Raises:
        RunError: this machine would compute a different run than planned.
    """
    if plan_run(task.config, SCENES).hash != task.hash:
        host = socket.gethostname()
        raise RunError(f"node {host} has different code, data or weights than the planning machine: sync them")
    bench = Bench.open(task.runs, task.uri, scenes=SCENES, tags=task.tags)
    run = run_config(task.config, bench)
    torch.cuda.empty_cache()  # an idle worker returns the memory that torch only caches
    return run.run_id, run.reused
