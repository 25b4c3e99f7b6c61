"""Plan a comparison: resolve the cells of its axes, and look up which are finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from negbench.display import notes, progress
from negbench.errors import NegbenchError, OptionError, short_repr
from negbench.grid.axes import Axes, Choice, plugin_sections, split_list
from negbench.grid.axis import OWN_STRATEGY, Axis, plain_dials, point_text, points_of, short_names
from negbench.grid.cells import Cell, plan_cells
from negbench.grid.comparison import RATES, ComparisonFolder, check_name, default_name
from negbench.grid.setting import TAU
from negbench.grid.setting_trials import SettingGrid, SettingTrials
from negbench.grid.systems import system_choices
from negbench.loop.remarks import check_idle
from negbench.loop.runs import DATA
from negbench.settings.config import OWN_TEMPERATURES
from negbench.settings.layers import read_recipe
from negbench.settings.options import Compare
from negbench.systems.system import system, systems

_FLAGS = {  # column of an axis -> its option
    "system": "--systems",
    "settings": "--tuned",
    "num_negatives": "--negatives",
    "epochs": "--epochs",
    "loss": "--losses",
    "backbone": "--backbones",
    "dataset": "--datasets",
}
_APART = {  # option of an axis -> those of others that it does not go with
    "--systems": ("--dial", "--tuned", "--negatives", "--backbones", "--datasets"),
    "--dial": ("--tuned", "--losses", "--backbones", "--datasets"),
    "--tuned": ("--epochs",),
}
_OF_ALL = ("loss", "backbone", "dataset")  # axes that every comparison has: two values make one of them vary


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison before it is computed.

    Attributes:
        options: of the command, including the recipe's.
        folder: folder of the comparison.
        cells: cells to compute.
        size: the axes in words, '2 strategies x 3 seeds'.
        trials: choose learning rates and temperatures; None if neither is chosen.
    """

    options: Compare
    folder: ComparisonFolder
    cells: list[Cell]
    size: str = ""
    trials: SettingTrials | None = None

    def line(self) -> str:
        """Return a line that says how many cells there are and how many are finished."""
        runs = self.folder.path.parent
        distinct = {cell.hash: cell for cell in self.cells}.values()
        actions = Counter(cell.action(runs) for cell in distinct)
        size = self.size
        if len(distinct) < len(self.cells) and not self.settings_open:
            size += f"; {len(distinct)} different runs"
        summary = f"{len(self.cells)} cells ({size}), {actions['reuse']} already finished"
        if actions["resume"]:
            summary += f", {actions['resume']} to be resumed"
        if self.trials is None:
            return summary
        trial_actions = {cell.hash: cell.action(runs) for cell in self.trials.cells}
        finished = list(trial_actions.values()).count("reuse")
        return f"{summary}; first {len(trial_actions)} trials of {self.trials.grid.words}, {finished} already finished"

    @property
    def settings_open(self) -> bool:
        """Whether groups that are alike so far may still get settings of their own."""
        if self.trials is None or not self.trials.grid.temperatures:
            return False
        runs = self.folder.path.parent
        return any(cell.action(runs) != "reuse" for cell in self.trials.cells)

    @property
    def trials_folder(self) -> ComparisonFolder:
        """Folder of the trials."""
        return ComparisonFolder(self.folder.path.with_name(f"{self.folder.path.name}{RATES}"))

    def at_best_settings(self) -> ComparisonPlan:
        """Return the plan with every cell at the setting that the finished trials chose; `self` if none is chosen."""
        if self.trials is None:
            return self
        runs = self.folder.path.parent
        chosen_settings = self.trials.choose(runs)
        about = {**self.folder.about, "rates": [chosen.plain() for chosen in chosen_settings]}
        cells = self.trials.apply(self.cells, chosen_settings, runs, DATA)
        return replace(self, cells=cells, folder=replace(self.folder, about=about))


def with_recipe(options: Compare) -> Compare:
    """Complete the options from the recipe's table [compare]; options that were given win.

    Raises:
        NegbenchError: a recipe that cannot be read, or an unknown key in the table.
    """
    if options.recipe is None:
        return options
    table = read_recipe(options.recipe).get("compare", {})
    if isinstance(table, dict):
        replaced = set()
        for text in (*options.sets, *options.dials):  # these replace the recipe's budgets
            key = text.partition("=")[0].strip()
            if key == "train.epochs":
                replaced.add("epochs")
            elif key == "train.num_negatives":
                replaced.add("negatives")
        if options.systems or table.get("systems"):
            replaced.add("losses")  # every system has its own loss
        table = {key: value for key, value in table.items() if key not in replaced}
    return options.over(table, "compare")


def plan_comparison(options: Compare, runs: Path) -> ComparisonPlan:
    """Resolve every cell of the axes and look for it among the finished runs; plan the trials that choose settings.

    Args:
        options: the options, including the recipe's (`with_recipe`).
        runs: runs folder.

    Returns:
        The plan; its cells are at the learning rates and temperatures that the trials finished so far choose.

    Raises:
        NegbenchError: axes that exclude each other, a cell that cannot run, or missing data.
    """
    axes = Axes.of(options)
    _check_axes(options, axes)
    planned_cells = _plan_combinations(options, axes, runs)
    cells = planned_cells.cells
    remarks = list(dict.fromkeys([*planned_cells.remarks, *_idle_settings(options, cells)]))
    about: dict[str, Any] = {}
    if axes.dials:
        about["dials"] = plain_dials(axes.dials)
    if planned_cells.left_out:
        about["left_out"] = planned_cells.left_out
    if remarks:
        about["remarks"] = remarks
    folder = _folder(options, runs, cells, about)
    notes([*remarks, *(_skip_text(left_out) for left_out in planned_cells.left_out)])
    planned = ComparisonPlan(options, folder, cells, size=_size(axes, cells))
    return _plan_trials(planned, axes, runs)


@dataclass(frozen=True)
class _PlannedCells:
    """The cells of a comparison's axes; the points or strategies left out, with the reason; and remarks on systems."""

    cells: list[Cell]
    left_out: list[dict[str, str]]
    remarks: list[str]


def _plan_combinations(options: Compare, axes: Axes, runs: Path) -> _PlannedCells:
    """Plan the cells of all combinations; a point or a system's strategy that cannot be planned is left out.

    Raises:
        NegbenchError: a combination that cannot be left out, or nothing that can be planned.
    """
    outer_choices, axes = _outer_choices(options, axes)
    inner_choices = axes.without(*outer_choices[0]).combinations()  # all outer choices are of the same axes
    cells: dict[tuple[str, ...], Cell] = {}
    left_out: list[dict[str, str]] = []
    remarks: list[str] = []
    failure: NegbenchError | None = None
    with progress("plan") as display:
        for outer in outer_choices:
            choices = [{**inner, **outer} for inner in inner_choices]
            columns = [axes.columns(choice) for choice in choices]
            try:
                cells_of_outer = plan_cells(axes.configs(choices, DATA, remarks.append), runs, display, DATA, columns)
            except NegbenchError as error:
                # without its own strategy, the baseline, a system cannot be compared; an empty choice is of all cells
                if not outer or outer.get("is_own_strategy"):
                    raise
                failure = error
                left_out.append(_describe_left_out(axes, outer, error))
                continue
            for cell in cells_of_outer:
                cells.setdefault(_cell_key(cell), cell)  # a system's own strategy may be named again
    if not cells:
        assert failure is not None  # every combination failed
        raise failure
    return _PlannedCells(list(cells.values()), left_out, remarks)


def _outer_choices(options: Compare, axes: Axes) -> tuple[Sequence[Choice], Axes]:
    """Return the choices (points, or systems with strategies) whose cells are planned or left out together; all axes.

    Without dials and systems it is one empty choice: all cells.
    """
    if options.systems is None:
        keys = [dial.key for dial in axes.dials]
        points = [dict(zip(keys, point, strict=True)) for point in points_of(axes.dials)]
        return points or [{}], axes
    names = [name.strip() for name in split_list(options.systems, "systems")]
    if names == ["all"]:
        names = list(systems())
    for name in names:
        system(name, "--systems")  # raises
    base = [*axes.base, {"dataset": axes.values("dataset")[0], "backbone": axes.values("backbone")[0]}]
    choices = system_choices(names, axes.values("strategy"), base, DATA)
    system_axes = (Axis("system", tuple(names), "system"), Axis("is_own_strategy", (True, False), OWN_STRATEGY))
    return choices, Axes(axes.base, (*system_axes, *axes.without("loss", "strategy").axes))


def _idle_settings(options: Compare, cells: Sequence[Cell]) -> list[str]:
    """Return a remark on each setting that does nothing in some cells.

    Raises:
        OptionError: a setting does nothing in any cell.
    """
    rows = []
    for cell in cells:
        name = " ".join(cell.labels[axis] for axis in ("strategy", "point") if axis in cell.labels)
        rows.append((name, cell.config_as_read, cell.config))
    return check_idle(rows, (*options.sets, *options.dials), DATA)


def _plan_trials(planned: ComparisonPlan, axes: Axes, runs: Path) -> ComparisonPlan:
    """Add the trials that choose learning rates and temperatures, unless the options fix both.

    Returns:
        The plan with its trials; its cells have the settings that the finished ones chose.
    """
    options = planned.options
    rates = options.lr in (None, "grid", "common") and not _searches_rates(axes)
    grid = SettingGrid(rates, temperatures=options.temperature == "grid")
    if not (grid.rates or grid.temperatures):
        return planned
    if grid.temperatures:
        _check_temperatures(planned.cells)
    trials = SettingTrials.of(planned.cells, runs, DATA, options.metric, common=options.lr == "common", grid=grid)
    planned = replace(planned, trials=trials)
    check_name(planned.trials_folder.path, "comparison")
    return planned.at_best_settings()


def _cell_key(cell: Cell) -> tuple[str, ...]:
    """Return what distinguishes a cell: its run, and its labels on axes that may give two cells the same run."""
    return (*(cell.labels.get(axis, "") for axis in ("system", "point", "settings")), cell.hash)


def _describe_left_out(axes: Axes, outer: Choice, error: NegbenchError) -> dict[str, str]:
    """Return an outer choice whose cells cannot be planned, in the form of comparison.json."""
    labels = {}
    if "system" in outer:
        labels["system"] = outer["system"]
    else:
        values = [dial.table_value(outer[dial.key]) for dial in axes.dials]
        labels["point"] = point_text(short_names(axes.dials), values)
    if "strategy" in outer:
        labels["strategy"] = outer["strategy"]["name"]
    return {**labels, "reason": str(error)}


def _skip_text(left_out: Mapping[str, str]) -> str:
    """'point twins=60 skipped: twins must be in 1..30'."""
    labels = ", ".join(f"{axis} {value}" for axis, value in left_out.items() if axis != "reason")
    return f"{labels} skipped: {left_out['reason']}"


def _check_axes(options: Compare, axes: Axes) -> None:
    """Refuse options and axes that exclude each other."""
    if options.lr not in (None, "fixed") and _searches_rates(axes):
        raise OptionError("--tuned and --dial train.lr already search the learning rate: leave out --lr")
    if options.temperature == "grid":
        _check_temperature_grid(options, axes)
    flags = []
    if options.systems is not None:
        flags.append("--systems")
    if options.tuned is None:
        axes = axes.without("settings")  # those of --temperature grid
    for axis in axes.axes:
        if axis.column not in _OF_ALL or len(axis.values) > 1:
            flags.append("--dial" if axis.is_dial else _FLAGS.get(axis.column, ""))
    for flag, others in _APART.items():
        for other in others:
            if flag in flags and other in flags:
                if other in [_FLAGS.get(column) for column in _OF_ALL]:
                    raise OptionError(f"{flag} and several {other} cannot be combined: give one")
                raise OptionError(f"{flag} and {other} cannot be combined: use one at a time")
    if options.systems is not None and options.losses is not None:
        raise OptionError("--systems uses each system's own loss: leave out --losses")


def _check_temperature_grid(options: Compare, axes: Axes) -> None:
    """Refuse what chooses or fixes the temperature beside `--temperature grid`."""
    if options.tuned is not None:
        raise OptionError("--tuned and --temperature grid cannot be combined: use one at a time")
    if options.lr == "common":
        raise OptionError("--temperature grid shows the common rate and temperature, too: leave out --lr common")
    if axes.values(TAU):
        raise OptionError(f"--dial {TAU} and --temperature grid set the same key: leave one of them out")
    if options.losses is not None and any("tau" in loss for loss in plugin_sections("losses", options.losses)):
        raise OptionError("--losses with their own tau and --temperature grid set the same key: leave out tau")


def _check_temperatures(cells: Sequence[Cell]) -> None:
    """Refuse cells whose loss reads no temperature that `--temperature grid` could choose."""
    for cell in cells:
        loss = short_repr(cell.config.loss.name)
        if cell.config.divisor == "none":
            raise OptionError(f"--temperature grid: loss {loss} has no temperature: leave out one of them")
        if cell.config.divisor == OWN_TEMPERATURES:
            raise OptionError(
                f"--temperature grid: loss {loss} and the hybrid terms learn temperatures of their own: leave it out, "
                "or --set hybrid.temperature=backbone"
            )


def _searches_rates(axes: Axes) -> bool:
    """Whether --tuned or --dial train.lr already searches the learning rate."""
    return axes.values("settings") == ("default",) or bool(axes.values("train.lr"))


def _folder(options: Compare, runs: Path, cells: Sequence[Cell], about: dict[str, Any]) -> ComparisonFolder:
    """Return the comparison's folder: of the name that was given, or of one that its cells and options determine."""
    name = default_name(cells)
    if options.until is not None:  # not the folder of a comparison of the first look's seeds
        name = name.replace("compare", options.until)
    if options.lr not in (None, "grid"):
        name += f"-lr-{options.lr}"
    if options.tuned is not None:  # not the folder of the plain comparison
        name += "-tuned"
    if options.temperature == "grid":
        name += "-temperature-grid"
    folder = runs / (options.name or name)
    check_name(folder, "comparison")
    return ComparisonFolder(folder, about)


_SIZES = {  # column of an axis -> what its values are called
    "system": "systems",
    "point": "points",
    "epochs": "training budgets",
    "num_negatives": "numbers of negatives",
    "strategy": "strategies",
    "loss": "losses",
    "backbone": "backbones",
    "dataset": "data sets",
    "seed": "seeds",
    "settings": "settings",
}


def _size(axes: Axes, cells: Sequence[Cell]) -> str:
    """Say how many values each axis has, '2 strategies x 3 seeds'."""
    counts = {axis.column: len(axis.values) for axis in axes.axes}
    for column in ("system", "point"):  # without those that are left out
        counts[column] = len({cell.labels.get(column) for cell in cells})
    sizes = [f"{counts[column]} {noun}" for column, noun in _SIZES.items() if counts.get(column, 0) > 1]
    return " x ".join(sizes) or "1 strategy x 1 seed"
