"""Comparisons: a grid of runs, computed once each, and the tables that come of it.

A comparison is a folder in the runs folder: `comparison.json` names its cells; a cell is a run like any other, found
again by its hash (full configuration, code version, data), so that the same command goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from negbench import files
from negbench.config import RunConfig, build_config, config_hash, dataset_section, resolved
from negbench.contracts import Backbone
from negbench.datasets.dataset import Dataset
from negbench.display import Display
from negbench.errors import OptionError, RunError
from negbench.grid.workers import Report, run_tasks
from negbench.loop.folder import RunFolder, runs_of
from negbench.loop.hybrid import check_hybrid
from negbench.loop.train import Scenes, open_run, resume, run_config
from negbench.scene import load_backbone, load_split
from negbench.tracking import Tracker

Overwrite = Literal["never", "failed", "always"]
KEY = ("strategy", "loss", "backbone", "dataset")


# --- the grid ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Axes of a comparison: every combination is a cell.

    Args:
        base: configuration layers below the axes (a recipe, `--set`, ...).
        strategies, losses, backbones, datasets: plug-in sections {"name": ..., option: ...}.
        seeds: of every combination.
    """

    base: tuple[Mapping[str, Any], ...]
    strategies: tuple[Mapping[str, Any], ...]
    losses: tuple[Mapping[str, Any], ...]
    backbones: tuple[Mapping[str, Any], ...]
    datasets: tuple[Mapping[str, Any], ...]
    seeds: tuple[int, ...]

    def configs(self) -> list[RunConfig]:
        """All cells; those that share a data set and a backbone stand together, so that features are loaded once."""
        axes = (self.datasets, self.backbones, self.seeds, self.losses, self.strategies)
        found = []
        for dataset, backbone, seed, loss, strategy in itertools.product(*axes):
            layer = {"dataset": dataset, "backbone": backbone, "seed": seed, "loss": loss, "strategy": strategy}
            found.append(build_config([*self.base, layer]))
        return found


def parse_plugin(text: str) -> dict[str, Any]:
    """'qure:variant=release' -> {"name": "qure", "variant": "release"}; values are read as those of --set."""
    from negbench.config import parse_set

    name, *options = text.split(":")
    section: dict[str, Any] = {"name": name.strip()}
    for option in options:
        path, value = parse_set(option)
        if len(path) != 1:
            raise OptionError(f"'{text}': want NAME:option=value:option=value")
        section[path[0]] = value
    return section


def expand(kind: str, given: str | Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """'all' or 'a,b:k=1' (a flag), or a list of names and tables (a recipe) -> plug-in sections."""
    from negbench.registry import registry

    if isinstance(given, str):
        given = [part for part in given.split(",") if part.strip()]
    sections: list[dict[str, Any]] = []
    for item in given:
        if item == "all":
            sections.extend({"name": name} for name in registry.plugins(kind))
        else:
            section = dict(item) if isinstance(item, Mapping) else parse_plugin(str(item))
            sections.append({**section, **dataset_section(section["name"])} if kind == "datasets" else section)
    for section in sections:
        registry.find(kind, str(section.get("name")))
    return tuple(sections)


def parse_seeds(text: str) -> tuple[int, ...]:
    """'3' -> 0, 1, 2; '0,5,7' -> as listed."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise OptionError(f"--seeds {text!r}: want a count (3) or a list (0,1,2)") from error
    if len(numbers) == 1 and "," not in text:
        numbers = list(range(numbers[0]))
    if not numbers or min(numbers) < 0 or len(set(numbers)) != len(numbers):
        raise OptionError(f"--seeds {text!r}: want a count (3) or a list of different seeds (0,1,2)")
    return tuple(numbers)


def label(section: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Name of a plug-in in a table: 'qure', or 'qure(variant=release)' where it differs from the defaults."""
    options = {k: v for k, v in section.items() if k != "name" and defaults.get(k) != v}
    inside = ", ".join(f"{k}={v}" for k, v in options.items())
    return f"{section['name']}({inside})" if inside else str(section["name"])


# --- cells -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One cell of a comparison: its resolved configuration, hash, and the folder that holds it so far, if any.

    `data` names the data set and the frozen part of the backbone: cells of one value share features.
    """

    config: RunConfig
    hash: str
    labels: dict[str, str]  # strategy, loss, backbone, dataset -> as tables print it
    data: str
    folder: str | None = None

    @property
    def seed(self) -> int:
        """The cell's seed."""
        return self.config.seed


class Parts:
    """Data sets and backbones of a grid, loaded once each; of the backbones only the last is kept."""

    def __init__(self) -> None:
        self._splits: dict[str, tuple[Dataset, Dataset]] = {}
        self._backbone: tuple[str, Backbone] | None = None

    def splits(self, config: RunConfig) -> tuple[Dataset, Dataset]:
        """Train and val as a run on them has them: train without its dev part where epochs are chosen on one."""
        provided = self.backbone(config).provides_features
        key = f"{provided} {config.dataset.model_dump_json()}"
        if key not in self._splits:
            train, val = (load_split(config.dataset, name, images=not provided) for name in ("train", "val"))
            self._splits[key] = (train, val)
        train, val = self._splits[key]
        if config.eval.select == "dev":
            train, _ = train.split_dev(config.eval.dev_fraction, config.seed)
        return train, val

    def backbone(self, config: RunConfig) -> Backbone:
        """The backbone with its initial weights, on the CPU."""
        key = f"{config.seed} {config.backbone.model_dump_json()}"
        if self._backbone is None or self._backbone[0] != key:
            self._backbone = (key, load_backbone(config.backbone, config.seed))
        return self._backbone[1]


def plan(grid: Grid, runs: Path, display: Display, parts: Parts | None = None) -> list[Cell]:
    """Resolve every cell and look for it among the finished runs; nothing is encoded yet.

    Args:
        grid: the axes.
        runs: runs folder.
        display: shows the progress.
        parts: keeps what was loaded, for `negbench.grid.estimate`.

    Raises:
        NegbenchError: a configuration that cannot run, or data that are not there; nothing is computed then.
        OptionError: two cells that are the same run.
    """
    parts, cells, configs = parts or Parts(), list[Cell](), grid.configs()
    with display.stage("prepare", total=len(configs)) as advance:
        for config in configs:
            cell = _cell(resolved(config), parts)
            if any(cell.hash == other.hash for other in cells):
                raise OptionError(f"the grid holds {cell.labels['strategy']} with seed {cell.seed} twice: name it once")
            found = runs_of(runs, cell.hash)
            best = next((f for f in found if f.status == "finished"), found[-1] if found else None)
            cells.append(replace(cell, folder=None if best is None else best.run_id))
            advance(1)
    return cells


def _cell(config: RunConfig, parts: Parts) -> Cell:
    train, val = parts.splits(config)
    backbone = parts.backbone(config)
    check_hybrid(config.hybrid, backbone, train)
    # as `Scene.identity`, which is there only when all is encoded
    data = f"{train.identity} {val.identity} {backbone.feature_key}"
    return Cell(config, config_hash(config, data=data), _labels(config, val.identity), data)


def encode(cells: Sequence[Cell], display: Display) -> None:
    """Encode the images that the feature store lacks, once for each data set and frozen backbone of the cells.

    Raises:
        NegbenchError: images that cannot be read, a full disk, a train split without targets.
    """
    for data in dict.fromkeys(cell.data for cell in cells):
        open_run(next(cell for cell in cells if cell.data == data).config, display, _scenes)


def _labels(config: RunConfig, dataset: str) -> dict[str, str]:
    from negbench.registry import constructor_of, option_defaults, registry

    labels = {"dataset": dataset}
    for section, kind in (("strategy", "strategies"), ("loss", "losses"), ("backbone", "backbones")):
        plugin = getattr(config, section)
        defaults = option_defaults(constructor_of(kind, registry.get(kind, plugin.name)))
        labels[section] = label({"name": plugin.name, **plugin.options}, defaults)
    return labels


# --- computing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    config: RunConfig
    runs: Path
    uri: str | None
    tags: dict[str, str]
    resume: str | None
    plugins: tuple[str, ...]


_scenes = Scenes()  # of this process: a worker's cells share what the first one prepared


def compute_cell(task: _Task, report: Report) -> str:
    """Compute or resume one cell; returns its run id. Runs in a worker process or here."""
    from negbench.registry import registry

    for path in task.plugins:
        registry.add_file(Path(path))
    if task.resume is not None:
        found = resume(task.resume, runs_dir=task.runs, tracking_uri=task.uri, scenes=_scenes, tags=task.tags)
    else:
        found = run_config(task.config, runs_dir=task.runs, tracking_uri=task.uri, scenes=_scenes, tags=task.tags)
    return found.run_id


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: `run_id` where it is finished, else `error`; `reused` where it was finished before."""

    cell: Cell
    run_id: str | None
    error: str | None
    reused: bool


Step = Literal["reuse", "leave", "resume", "anew"]


def step_of(cell: Cell, runs: Path, overwrite: Overwrite) -> Step:
    """What becomes of a cell: its finished run is reused, it is left as it is, resumed, or computed anew."""
    status = RunFolder(runs / cell.folder).status if cell.folder else "new"
    if status == "finished" and overwrite != "always":
        return "reuse"
    if overwrite == "never" and status != "new":
        return "leave"
    return "resume" if status == "interrupted" and overwrite != "always" else "anew"


Progress = Callable[[int, int, str], None]  # cells done, cells in all, what happened


def compute(
    cells: Sequence[Cell],
    *,
    name: str,
    runs: Path,
    tracking_uri: str | None = None,
    workers: int = 1,
    overwrite: Overwrite = "failed",
    progress: Progress | None = None,
) -> list[Outcome]:
    """Compute what is not finished, and write the comparison's folder after every cell.

    Args:
        cells: of `plan`.
        name: of the comparison: its folder, and the MLflow experiment.
        runs: runs folder.
        tracking_uri: MLflow store.
        workers: processes; 1 computes here.
        overwrite: 'failed' computes failed cells again and goes on with interrupted ones, 'never' leaves both,
            'always' computes every cell anew.
        progress: called after every cell.

    Returns:
        One outcome per cell, in order. A failing cell does not stop the others.
    """
    tracker = Tracker.open(runs, tracking_uri)
    book = ComparisonFolder(runs / name)
    parent = book.parent(tracker, name)
    outcomes: dict[int, Outcome] = {}
    todo: list[tuple[int, _Task]] = []
    for index, cell in enumerate(cells):
        step = step_of(cell, runs, overwrite)
        if step == "reuse":
            outcomes[index] = Outcome(cell, cell.folder, None, True)
        elif step == "leave":
            status = RunFolder(runs / str(cell.folder)).status
            outcomes[index] = Outcome(cell, None, f"{status} before, and --overwrite never", False)
        else:
            goes_on = cell.folder if step == "resume" else None
            tags = {"experiment": name, "negbench.kind": "cell", "comparison": name, **cell.labels}
            tags |= {"mlflow.parentRunId": parent} if parent else {}
            todo.append((index, _Task(cell.config, runs, tracking_uri, tags, goes_on, cell.config.plugins)))
    book.write(outcomes.values())
    for event in run_tasks(compute_cell, [task for _, task in todo], 0 if workers == 1 else workers):
        index = todo[event.index][0]
        if event.kind == "done":
            outcomes[index] = Outcome(cells[index], event.value, None, False)
        elif event.kind == "failed":
            outcomes[index] = Outcome(cells[index], None, event.value, False)
            if event.detail:
                book.write_fault(cells[index], event.detail)
        else:
            continue
        book.write(outcomes.values())
        if progress is not None:
            what = title_of(cells[index], cells)
            progress(len(outcomes), len(cells), what if event.kind == "done" else f"{what} FAILED: {event.value}")
    return [outcomes[index] for index in range(len(cells))]


def title_of(cell: Cell, cells: Sequence[Cell]) -> str:
    """'qure bradley-terry seed 0', with backbone and data set where the cells differ in them."""
    differ = [axis for axis in ("backbone", "dataset") if len({other.labels[axis] for other in cells}) > 1]
    return " ".join([*(cell.labels[axis] for axis in ("strategy", "loss", *differ)), f"seed {cell.seed}"])


@dataclass(frozen=True)
class ComparisonFolder:
    """A comparison's folder."""

    path: Path

    def write(self, outcomes: Iterable[Outcome]) -> None:
        """comparison.json: which run holds which cell."""
        rows = [
            {**o.cell.labels, "seed": o.cell.seed, "hash": o.cell.hash, "run": o.run_id, "error": o.error}
            for o in outcomes
        ]
        rows.sort(key=lambda row: [str(row[k]) for k in KEY] + [f"{row['seed']:09d}"])
        files.write_json(self.path / "comparison.json", {"cells": rows})

    def write_fault(self, cell: Cell, traceback: str) -> None:
        """The traceback of a fault of ours, for a report of it."""
        with files.atomic_write(self.path / f"fault-{cell.hash[:8]}.txt") as file:
            file.write(traceback)

    def cells(self) -> list[dict[str, Any]]:
        """Rows of comparison.json."""
        rows: list[dict[str, Any]] = files.read_json(self.path / "comparison.json")["cells"]
        return rows

    def parent(self, tracker: Tracker, name: str) -> str | None:
        """MLflow run that the cells hang under; made once per store, and found again when the comparison goes on."""
        return tracker.parent(self.path / "mlflow.json", name, {"negbench.kind": "comparison", "comparison": name})


def default_name(cells: Sequence[Cell]) -> str:
    """Name of a comparison that was given none: the same grid gets the same name, whatever the code's version."""
    grid = sorted(json.dumps(cell.config.identity(), sort_keys=True) for cell in cells)
    digest = hashlib.sha256("".join(grid).encode()).hexdigest()
    return f"compare-{digest[:8]}"


# --- results -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """All seeds of one (strategy, loss, backbone, dataset)."""

    labels: dict[str, str]
    runs: tuple[RunFolder, ...]  # by seed

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        """result.json of each."""
        return [run.result for run in self.runs]

    def values(self, *path: str) -> list[float]:
        """One number of every run's result that has it, e.g. ("metrics", "average/recall_at_10")."""
        found = []
        for result in self.results:
            value: Any = result
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                found.append(float(value))
        return found


def groups_of(runs: Path, name: str) -> list[Group]:
    """Finished cells of a comparison, seed by seed within their group.

    Raises:
        RunError: no comparison of that name, or one without any finished cell.
    """
    book = ComparisonFolder(runs / name)
    if not (book.path / "comparison.json").exists():
        known = sorted(p.parent.name for p in runs.glob("*/comparison.json"))
        raise RunError(f"there is no comparison '{name}' in {runs}: known are {', '.join(known) or 'none'}")
    found: dict[tuple[str, ...], list[tuple[int, RunFolder]]] = {}
    for row in book.cells():
        if row["run"] is not None and (runs / row["run"] / "result.json").exists():
            found.setdefault(tuple(row[k] for k in KEY), []).append((row["seed"], RunFolder(runs / row["run"])))
    if not found:
        raise RunError(f"comparison '{name}' has no finished cell yet")
    return [
        Group(dict(zip(KEY, key, strict=True)), tuple(folder for _, folder in sorted(cells, key=lambda c: c[0])))
        for key, cells in found.items()
    ]


__all__ = [
    "Cell",
    "ComparisonFolder",
    "Grid",
    "Group",
    "Outcome",
    "Parts",
    "compute",
    "default_name",
    "encode",
    "expand",
    "groups_of",
    "parse_plugin",
    "parse_seeds",
    "plan",
    "step_of",
    "title_of",
]
