"""Cells: the runs of a comparison, claims or a study's final comparison, planned and computed the same way.

A cell is an ordinary run, found again by its hash: a rerun command computes only missing cells, and comparisons share
the cells that they have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from negbench.data.scene import DataCache
from negbench.display import Display
from negbench.errors import OptionError
from negbench.grid.axes import AxisValue, Fact, labels_of, short
from negbench.grid.executors import Notify
from negbench.loop.runs import DATA, Bench, plan_run, run_config
from negbench.loop.types import PlannedRun
from negbench.settings.config import ResolvedConfig, RunConfig
from negbench.store.runfolder import RunFolder, Step, best_of, step_of


@dataclass(frozen=True)
class Cell:
    """One cell: its planned run, its place in the grid, and the folder that holds its run so far, if any.

    Attributes:
        run: the planned run.
        given: its configuration as read, without the defaults.
        labels: strategy, loss, backbone, dataset (and settings, system or point) -> as tables print it.
        facts: typed columns beside the labels: `plugin` (the strategy's), and those of its choices.
        folder: name of the run's folder.
        remarks: what a reader must know about it.
    """

    run: PlannedRun
    given: RunConfig
    labels: dict[str, str]
    facts: Mapping[str, Fact] = field(default_factory=dict)
    folder: str | None = None
    remarks: tuple[str, ...] = ()

    @property
    def config(self) -> ResolvedConfig:
        """The resolved configuration."""
        return self.run.config

    @property
    def hash(self) -> str:
        """The run's hash."""
        return self.run.hash

    @property
    def seed(self) -> int:
        """The cell's seed."""
        return self.config.seed

    def step(self, runs: Path) -> Step:
        """Return what is left to do: reuse, resume or compute anew."""
        return step_of(RunFolder(runs / self.folder) if self.folder else None)

    def with_config(self, config: RunConfig, runs: Path, cache: DataCache, **labels: str) -> Cell:
        """Return a cell of another configuration in this place of the grid, apart from the given labels."""
        return _cell(plan_run(config, cache, runs), config, {**self.labels, **labels}, self.facts, runs)

    def at_seed(self, seed: int, runs: Path, cache: DataCache) -> Cell:
        """Return the cell of another seed in this place of the grid."""
        cell = self.with_config(self.given.model_copy(update={"seed": seed}), runs, cache)
        return replace(cell, remarks=self.remarks)


def _cell(run: PlannedRun, given: RunConfig, labels: dict[str, str], facts: Mapping[str, Fact], runs: Path) -> Cell:
    held = best_of(runs, run.hash)
    return Cell(run, given, labels, facts, None if held is None else held.run_id, run.remarks)


def plan(
    configs: Sequence[RunConfig], runs: Path, display: Display, cache: DataCache, choices: Sequence[AxisValue] = ()
) -> list[Cell]:
    """Resolve every cell and look for it among the finished runs; nothing is encoded yet.

    Args:
        configs: configurations as read, ordered so that those with the same data set and backbone are adjacent.
        runs: runs folder.
        display: shows the progress.
        cache: caches loaded data and backbones.
        choices: labels and facts of each cell. Labels are added to or replace those that follow from its configuration;
            cells that differ only in them are one run with two places in the grid.

    Raises:
        NegbenchError: a configuration that cannot run, or missing data; nothing is computed then.
        OptionError: two cells are the same run in the same place.
    """
    cells, seen = list[Cell](), set[tuple[str, str]]()
    with display.stage("prepare", total=len(configs)) as advance:
        for config, choice in zip(configs, choices or [AxisValue()] * len(configs), strict=True):
            run = plan_run(config, cache, runs)
            labels = {**_labels(run.config, choice.facts), **choice.labels, "dataset": run.dataset}
            place = (run.hash, str(sorted(choice.labels.items())))
            if place in seen:
                raise OptionError(f"strategy {labels['strategy']} with seed {config.seed} is named twice: name it once")
            seen.add(place)
            cells.append(_cell(run, config, labels, {"plugin": run.config.strategy.name, **choice.facts}, runs))
            advance(1)
    names = {axis: short(cell.labels[axis] for cell in cells) for axis in ("strategy", "loss", "backbone")}
    return [replace(c, labels=c.labels | {axis: known[c.labels[axis]] for axis, known in names.items()}) for c in cells]


def _labels(config: ResolvedConfig, facts: Mapping[str, Fact]) -> dict[str, str]:
    """Return strategy, loss and backbone as tables print them, with the number of negatives where it is an axis.

    A loss or backbone that a dial varies has its plain name: all points of the dial share a table and a line.
    """
    labels = labels_of(config)
    varied = {key.partition(".")[0] for key in facts if "." in key}
    labels |= {section: getattr(config, section).name for section in ("loss", "backbone") if section in varied}
    if "num_negatives" in facts:
        labels["strategy"] += f" x{facts['num_negatives']}"
    return labels


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
        planned: the cell's run.
        runs: runs folder.
        uri: MLflow store, as `Tracker.open` takes it.
        tags: tags of the MLflow run.
    """

    planned: PlannedRun
    runs: Path
    uri: str | None
    tags: Mapping[str, str]


def compute_task(task: Task, notify: Notify) -> tuple[str, bool]:
    """Compute, resume or reuse one cell; return its run id and whether it was finished before.

    Raises:
        RunError: this process would compute a different run than planned.
    """
    result = run_config(task.planned, replace(Bench.open(task.runs, task.uri), cache=DATA, tags=task.tags))
    torch.cuda.empty_cache()  # an idle worker returns the memory that torch only caches
    return result.run_id, result.reused
