"""Plan a comparison: resolve the cells of its axes, and look up which are finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from negbench.display import notes, stages
from negbench.errors import OptionError
from negbench.grid.axes import Axes, listed
from negbench.grid.cells import SCENES, Cell, plan
from negbench.grid.comparison import ComparisonFolder, check_place, default_name
from negbench.grid.dials import Dials, dial_cells, parse_dial
from negbench.grid.rates import Rates, at_rates
from negbench.grid.systems import system_cells
from negbench.settings.config import RunConfig
from negbench.settings.layers import read_recipe
from negbench.settings.options import Compare, parse_negatives
from negbench.systems.system import system, systems


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison before it is computed.

    Attributes:
        asked: the options, including the recipe's.
        folder: folder of the comparison.
        cells: cells to compute.
        configs: configurations as read, one per cell; empty with dials or systems.
        size: the axes in words, '2 strategies x 3 seeds'.
        rates: the learning-rate trials; None if no rate is chosen.
    """

    asked: Compare
    folder: ComparisonFolder
    cells: list[Cell]
    configs: list[RunConfig] = field(default_factory=list)
    size: str = ""
    rates: Rates | None = None

    def line(self) -> str:
        """Return a line that says how many cells there are and how many are finished."""
        runs, distinct = self.folder.path.parent, {cell.hash: cell for cell in self.cells}.values()
        steps = Counter(cell.step(runs) for cell in distinct)
        size = self.size + f"; {len(distinct)} different runs" * (len(distinct) < len(self.cells))
        resumed = f", {steps['resume']} to be resumed" if steps["resume"] else ""
        summary = f"{len(self.cells)} cells ({size}), {steps['reuse']} already finished{resumed}"
        if self.rates is None:
            return summary
        trials = {cell.hash: cell.step(runs) for cell in self.rates.cells}
        done = list(trials.values()).count("reuse")
        return f"{summary}; first {len(trials)} trials of the learning rate, {done} already finished"

    @property
    def trials(self) -> ComparisonFolder:
        """Folder of the learning-rate trials."""
        return ComparisonFolder(self.folder.path.with_name(f"{self.folder.path.name}-rates"))

    def more(self, seeds: Sequence[int]) -> list[Cell]:
        """Return the cells of other seeds."""
        asked = self.asked.model_copy(update={"seeds": list(seeds)})
        return replace(_planned(asked, self.folder.path.parent), rates=self.rates).at_best_rates().cells

    def at_best_rates(self) -> ComparisonPlan:
        """Return the plan with every cell at the rate that the finished trials chose; `self` if no rate is chosen."""
        if self.rates is None:
            return self
        runs = self.folder.path.parent
        chosen = self.rates.chosen(runs)
        about = {**self.folder.about, "rates": [asdict(each) for each in chosen.values()]}
        cells = at_rates(self.cells, chosen, runs, SCENES)
        return replace(self, cells=cells, folder=replace(self.folder, about=about))


def over_recipe(asked: Compare) -> Compare:
    """Complete the options from the recipe's table [compare]; options that were given win.

    Raises:
        NegbenchError: a recipe that cannot be read, or an unknown key in the table.
    """
    if asked.recipe is None:
        return asked
    table = read_recipe(asked.recipe).get("compare", {})
    if isinstance(table, dict) and (asked.systems or table.get("systems")):  # every system has its own loss
        table = {key: value for key, value in table.items() if key != "losses"}
    return asked.over(table, "compare")


def plan_comparison(asked: Compare, runs: Path) -> ComparisonPlan:
    """Resolve every cell of the axes and look for it among the finished runs.

    Args:
        asked: the options, including the recipe's (`over_recipe`).
        runs: runs folder.

    Raises:
        NegbenchError: axes that exclude each other, a cell that cannot run, or missing data.
    """
    planned = _planned(asked, runs)
    if not _by_grid(asked):
        return planned
    planned = replace(planned, rates=Rates.of(planned.cells, runs, SCENES))
    check_place(planned.trials.path, "comparison")
    return planned.at_best_rates()


def _planned(asked: Compare, runs: Path) -> ComparisonPlan:
    """Plan the comparison at the configured learning rates."""
    _check(asked)
    axes = Axes.of(asked)
    if asked.systems is not None:
        return _of_systems(asked, axes, runs)
    if asked.dials:
        return _of_dials(asked, axes, runs)
    remarks = list[str]()
    with stages("plan") as display:
        configs = axes.configs(remarks.append)
        settings = {"settings": "default"} if asked.tuned else {}
        labels = [{**each, **settings} for each in axes.labels(configs)]
        cells = plan(configs, runs, display, SCENES, labels)
    notes(remarks)
    return ComparisonPlan(asked, _folder(asked, runs, cells), cells, configs, _size(axes))


def _check(asked: Compare) -> None:
    """Refuse options and axes that exclude each other."""
    used = {
        "--systems": asked.systems is not None,
        "--dial": bool(asked.dials),
        "--tuned": asked.tuned is not None,
        "--negatives": bool(parse_negatives(asked.negatives)),
    }
    if asked.lr not in (None, "fixed") and _searches_rates(asked):
        raise OptionError("--tuned and --dial train.lr already search the learning rate: leave out --lr")
    first = next((flag for flag in ("--systems", "--dial") if used[flag]), None)
    others = [flag for flag, given in used.items() if given and flag != first]
    if first is not None and others:
        raise OptionError(f"{first} and {others[0]} cannot be combined: use one at a time")


def _searches_rates(asked: Compare) -> bool:
    """Whether --tuned or --dial train.lr already searches the learning rate."""
    return asked.tuned is not None or any(parse_dial(text).key == "train.lr" for text in asked.dials)


def _by_grid(asked: Compare) -> bool:
    """Whether each group's learning rate is first chosen from a grid."""
    return asked.lr in (None, "grid") and not _searches_rates(asked)


def _folder(asked: Compare, runs: Path, cells: Sequence[Cell], **about: Any) -> ComparisonFolder:
    name = default_name(cells)
    if asked.until is not None:  # not the folder of a comparison of the first look's seeds
        name = name.replace("compare", asked.until)
    if asked.lr not in (None, "grid"):
        name += f"-lr-{asked.lr}"
    if asked.tuned is not None:  # not the folder of the plain comparison
        name += "-tuned"
    folder = runs / (asked.name or name)
    check_place(folder, "comparison")
    return ComparisonFolder(folder, about)


def _size(axes: Axes, **more: int) -> str:
    counts = more | {
        "numbers of negatives": len(axes.negatives) or 1,
        "strategies": len(axes.strategies),
        "losses": len(axes.losses),
        "backbones": len(axes.backbones),
        "data sets": len(axes.datasets),
        "seeds": len(axes.seeds),
    }
    return " x ".join(f"{count} {what}" for what, count in counts.items() if count > 1) or "1 strategy x 1 seed"


def _single(axes: Axes, flag: str, *names: str) -> None:
    """Refuse a second loss, backbone or data set."""
    for name in names:
        if len(getattr(axes, name)) > 1:
            raise OptionError(f"{flag} and several {name} do not go together: give one")


def _of_dials(asked: Compare, axes: Axes, runs: Path) -> ComparisonPlan:
    _single(axes, "--dial", "losses", "backbones", "datasets")
    dials = Dials.parsed(asked.dials)
    with stages("plan") as display:
        cells, undefined = dial_cells(dials, axes, runs=runs, display=display, scenes=SCENES)
    notes(f"point {label} skipped: {reason}" for label, reason in undefined.items())
    undefined_rows = [{"point": label, "strategy": "all", "reason": why} for label, why in undefined.items()]
    about = {"dials": dials.plain(), "undefined": undefined_rows}
    size = _size(axes, points=len(dials.points) - len(undefined))
    return ComparisonPlan(asked, _folder(asked, runs, cells, **about), cells, size=size)


def _of_systems(asked: Compare, axes: Axes, runs: Path) -> ComparisonPlan:
    if asked.losses is not None:
        raise OptionError("--systems uses each system's own loss: leave out --losses")
    _single(axes, "--systems", "backbones", "datasets")
    names = listed(asked.systems, "systems")
    chosen = list(systems()) if names == ["all"] else [name.strip() for name in names if name.strip()]
    for name in chosen:
        system(name, "--systems")  # raises
    recipe, *overrides = axes.base
    base = [recipe, {"backbone": axes.backbones[0], "dataset": axes.datasets[0]}, *overrides]
    with stages("plan") as display:
        matrix = system_cells(base, chosen, axes.strategies, axes.seeds, runs=runs, display=display, scenes=SCENES)
    notes(matrix.remarks)
    about = {"systems": matrix.plain(), "undefined": matrix.undefined}
    size = _size(axes, systems=len(chosen)) + ", and the corners between each system and the plain one"
    return ComparisonPlan(asked, _folder(asked, runs, matrix.cells, **about), matrix.cells, size=size)
