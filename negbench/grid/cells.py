"""Cells of a comparison, of claims or of a study's final comparison, planned and computed the same way.

A cell is a run as part of a comparison; comparisons share the runs that their cells have in common. A run is found
again by its hash: a rerun command computes only missing ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from negbench.data.scene import DataCache
from negbench.display import Display
from negbench.errors import OptionError
from negbench.grid.axes import labels_of_config
from negbench.grid.axis import AXES, Value, names_of, names_of_keys, point_text, short
from negbench.grid.setting import COMMON_SETTING, OWN_SETTING, TAU
from negbench.loop.runs import plan_run
from negbench.loop.types import PlannedRun
from negbench.settings.config import ResolvedConfig, RunConfig
from negbench.store.runfolder import Action, RunFolder, action_of, best_of


@dataclass(frozen=True)
class Cell:
    """One cell: its planned run, its values on the axes, and the folder that holds its run so far, if any.

    Attributes:
        run: the planned run.
        config_as_read: its configuration without the defaults.
        columns: of comparison.json: its value on each axis of `AXES`, as tables print it; typed ones: `plugin` (the
            strategy's), and the values of dials and numbers of negatives.
        folder: name of the run's folder.
        remarks: what a reader must know about it.
    """

    run: PlannedRun
    config_as_read: RunConfig
    columns: Mapping[str, Value]
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

    @property
    def labels(self) -> dict[str, str]:
        """Axis -> its value, as tables print it."""
        return {axis: str(value) for axis, value in self.columns.items() if axis in AXES}

    def action(self, runs: Path) -> Action:
        """Return what is left to do: reuse, resume or compute anew."""
        return action_of(RunFolder(runs / self.folder) if self.folder else None)

    def with_config(self, config: RunConfig, runs: Path, cache: DataCache, **labels: str) -> Cell:
        """Return a cell of another configuration, with the same value on each axis, apart from the given labels."""
        return _cell(plan_run(config, cache, runs), config, {**self.columns, **labels}, runs)

    def at_seed(self, seed: int, runs: Path, cache: DataCache) -> Cell:
        """Return the cell of another seed, with the same value on each axis."""
        cell = self.with_config(self.config_as_read.model_copy(update={"seed": seed}), runs, cache)
        return replace(cell, remarks=self.remarks)


def _cell(run: PlannedRun, config_as_read: RunConfig, columns: Mapping[str, Value], runs: Path) -> Cell:
    """Return the cell of a planned run, with the folder of this run if there is one."""
    folder = best_of(runs, run.hash)
    return Cell(run, config_as_read, columns, None if folder is None else folder.run_id, run.remarks)


def plan_cells(
    configs: Sequence[RunConfig],
    runs: Path,
    display: Display,
    cache: DataCache,
    columns: Sequence[Mapping[str, Value]] = (),
) -> list[Cell]:
    """Resolve every cell and look for it among the finished runs; nothing is encoded yet.

    Args:
        configs: configurations as read, ordered so that those with the same data set and backbone are adjacent.
        runs: runs folder.
        display: shows the progress.
        cache: caches loaded data and backbones.
        columns: the part of each cell's `Cell.columns` that its configuration does not tell (`cell_columns` adds the
            rest); cells that differ only in the texts among them are one run in two rows of the comparison.

    Raises:
        NegbenchError: a configuration that cannot run, or missing data; nothing is computed then.
        OptionError: two cells are the same run in the same row.
    """
    cells: list[Cell] = []
    rows: set[tuple[str, str]] = set()
    with display.stage("prepare", total=len(configs)) as advance:
        for number, config in enumerate(configs):
            values = columns[number] if columns else {}
            run = plan_run(config, cache, runs)
            cell = _cell(run, config, cell_columns(run.config, run.dataset, values), runs)
            row = (run.hash, str([(axis, values[axis]) for axis in AXES if axis in values]))
            if row in rows:
                raise OptionError(
                    f"strategy {cell.labels['strategy']} with seed {config.seed} is named twice: name it once"
                )
            rows.add(row)
            cells.append(cell)
            advance(1)
    return _shorten_labels(cells)


def cell_columns(config: ResolvedConfig, dataset: str, columns: Mapping[str, Value]) -> dict[str, Value]:
    """Return a cell's columns of comparison.json: a text for each axis of `AXES`, then typed values.

    The texts name tables and rows, and seed the intervals.

    Args:
        config: of the cell.
        dataset: name of its data.
        columns: values of the axes that the configuration does not tell: dials, budgets, numbers of negatives, system,
            settings. Texts for strategy, loss, backbone or data set replace its own.
    """
    dials = {key: value for key, value in columns.items() if "." in key}
    varied = {*dials}
    if columns.get("settings") in (COMMON_SETTING, OWN_SETTING):
        varied.add(TAU)  # which trials choose
    texts = labels_of_config(config, varied)
    if "num_negatives" in columns:
        texts["strategy"] += f" x{columns['num_negatives']}"
    if dials:
        texts["point"] = point_text(names_of_keys(list(dials)), list(dials.values()))
    texts["dataset"] = dataset
    for axis in AXES:
        if axis in columns:
            texts[axis] = str(columns[axis])
    typed = {key: value for key, value in columns.items() if key not in AXES}
    return {**texts, "plugin": config.strategy.name, **typed}


def _shorten_labels(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with paths in their labels cut to names of files."""
    strategies = short(cell.labels["strategy"] for cell in cells)
    losses = short(cell.labels["loss"] for cell in cells)
    backbones = short(cell.labels["backbone"] for cell in cells)
    shortened = []
    for cell in cells:
        columns = dict(cell.columns)
        columns["strategy"] = strategies[cell.labels["strategy"]]
        columns["loss"] = losses[cell.labels["loss"]]
        columns["backbone"] = backbones[cell.labels["backbone"]]
        shortened.append(replace(cell, columns=columns))
    return shortened


def first_cells(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells without those whose run is that of an earlier one."""
    by_hash: dict[str, Cell] = {}
    for cell in cells:
        by_hash.setdefault(cell.hash, cell)
    return list(by_hash.values())


def titles_of(cells: Iterable[Cell]) -> dict[str, str]:
    """Return each run's hash -> 'qure info-nce seed 0': its labels that differ among the cells, and its seed.

    A run that stands in several cells is named as its first one.
    """
    distinct = first_cells(cells)
    names = names_of([cell.labels for cell in distinct])
    return {cell.hash: f"{name} seed {cell.seed}" for cell, name in zip(distinct, names, strict=True)}


# --- computing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Result of a cell: `run_id` if it finished, else `error`; `reused` if it was finished before."""

    cell: Cell
    run_id: str | None
    error: str | None
    reused: bool
