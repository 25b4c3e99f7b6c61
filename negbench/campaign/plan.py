"""Plan a comparison: resolve the cells of its axes, and look up which are finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from negbench.display import notes, progress
from negbench.errors import NegbenchError, OptionError
from negbench.grid.axes import Axes, AxisValue, joined, listed
from negbench.grid.cells import Cell, plan
from negbench.grid.comparison import ComparisonFolder, check_name, default_name
from negbench.grid.dials import Dials, dial_choices, parse_dial
from negbench.grid.rates import Rates, at_rates
from negbench.grid.systems import system_choices
from negbench.loop.remarks import check_idle
from negbench.loop.runs import DATA
from negbench.settings.layers import merged, read_recipe
from negbench.settings.options import Compare
from negbench.systems.system import system, systems

_APART = (  # options that exclude each other
    ("--systems", "--dial"),
    ("--systems", "--tuned"),
    ("--systems", "--negatives"),
    ("--dial", "--tuned"),
    ("--tuned", "--epochs"),
)


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison before it is computed.

    Attributes:
        asked: the options, including the recipe's.
        folder: folder of the comparison.
        cells: cells to compute.
        size: the axes in words, '2 strategies x 3 seeds'.
        rates: the learning-rate trials; None if no rate is chosen.
    """

    asked: Compare
    folder: ComparisonFolder
    cells: list[Cell]
    size: str = ""
    rates: Rates | None = None

    def line(self) -> str:
        """Return a line that says how many cells there are and how many are finished."""
        runs = self.folder.path.parent
        distinct = {cell.hash: cell for cell in self.cells}.values()
        steps = Counter(cell.step(runs) for cell in distinct)
        size = self.size
        if len(distinct) < len(self.cells):
            size += f"; {len(distinct)} different runs"
        summary = f"{len(self.cells)} cells ({size}), {steps['reuse']} already finished"
        if steps["resume"]:
            summary += f", {steps['resume']} to be resumed"
        if self.rates is None:
            return summary
        trials = {cell.hash: cell.step(runs) for cell in self.rates.cells}
        done = list(trials.values()).count("reuse")
        return f"{summary}; first {len(trials)} trials of the learning rate, {done} already finished"

    @property
    def trials(self) -> ComparisonFolder:
        """Folder of the learning-rate trials."""
        return ComparisonFolder(self.folder.path.with_name(f"{self.folder.path.name}-rates"))

    def at_best_rates(self) -> ComparisonPlan:
        """Return the plan with every cell at the rate that the finished trials chose; `self` if no rate is chosen."""
        if self.rates is None:
            return self
        runs = self.folder.path.parent
        chosen = self.rates.chosen(runs)
        about = {**self.folder.about, "rates": [asdict(each) for each in chosen.values()]}
        cells = at_rates(self.cells, chosen, runs, DATA)
        return replace(self, cells=cells, folder=replace(self.folder, about=about))


def over_recipe(asked: Compare) -> Compare:
    """Complete the options from the recipe's table [compare]; options that were given win.

    Raises:
        NegbenchError: a recipe that cannot be read, or an unknown key in the table.
    """
    if asked.recipe is None:
        return asked
    table = read_recipe(asked.recipe).get("compare", {})
    if isinstance(table, dict):
        replaced = set()
        for text in (*asked.sets, *asked.dials):  # these replace the recipe's budgets
            key = text.partition("=")[0].strip()
            if key == "train.epochs":
                replaced.add("epochs")
            elif key == "train.num_negatives":
                replaced.add("negatives")
        if asked.systems or table.get("systems"):
            replaced.add("losses")  # every system has its own loss
        table = {key: value for key, value in table.items() if key not in replaced}
    return asked.over(table, "compare")


def plan_comparison(asked: Compare, runs: Path) -> ComparisonPlan:
    """Resolve every cell of the axes and look for it among the finished runs.

    Args:
        asked: the options, including the recipe's (`over_recipe`).
        runs: runs folder.

    Raises:
        NegbenchError: axes that exclude each other, a cell that cannot run, or missing data.
    """
    _check(asked)
    axes = Axes.of(asked)
    found = _cells(asked, axes, runs)
    rows = [(f"{cell.labels['strategy']} {cell.labels.get('point', '')}".strip(), cell) for cell in found.cells]
    idle = check_idle([(name, cell.given, cell.config) for name, cell in rows], (*asked.sets, *asked.dials), DATA)
    remarks = list(dict.fromkeys([*found.remarks, *idle]))
    about: dict[str, Any] = {}
    if asked.dials:
        about["dials"] = Dials.parsed(asked.dials).plain()
    if found.left_out:
        about["left_out"] = found.left_out
    if remarks:
        about["remarks"] = remarks
    folder = _folder(asked, runs, found.cells, about)
    notes([*remarks, *(_skipped(place) for place in found.left_out)])
    planned = ComparisonPlan(asked, folder, found.cells, size=_size(axes, found.cells))
    if asked.lr not in (None, "grid") or _searches_rates(asked):
        return planned
    planned = replace(planned, rates=Rates.of(planned.cells, runs, DATA, asked.metric))
    check_name(planned.trials.path, "comparison")
    return planned.at_best_rates()


@dataclass(frozen=True)
class _Planned:
    """The cells of a comparison's axes; the places that cannot be planned, with the reason; and remarks on systems."""

    cells: list[Cell]
    left_out: list[dict[str, str]]
    remarks: list[str]


def _cells(asked: Compare, axes: Axes, runs: Path) -> _Planned:
    """Plan the cells of all combinations; a point or a system's strategy that cannot be planned is left out.

    Raises:
        NegbenchError: a combination that cannot be left out, or nothing that can be planned.
    """
    wholes, others = _choices(asked, axes)
    cells: list[Cell] = []
    seen: set[tuple[str, str]] = set()
    left_out: list[dict[str, str]] = []
    remarks: list[str] = []
    failure: NegbenchError | None = None
    with progress("plan") as display:
        for whole in wholes:
            choices = [joined([*each, whole]) for each in product(*others)]
            try:
                found = plan(axes.configs(choices, DATA, remarks.append), runs, display, DATA, choices)
            except NegbenchError as error:
                if whole.required:
                    raise
                failure = error
                left_out.append(_left_out(whole, error))
                continue
            for cell in found:  # a system's own strategy may be named again
                if (str(whole.labels), cell.hash) not in seen:
                    cells.append(cell)
            seen |= {(str(whole.labels), cell.hash) for cell in found}
    if not cells:
        assert failure is not None  # every combination failed
        raise failure
    return _Planned(cells, left_out, remarks)


def _left_out(whole: AxisValue, error: NegbenchError) -> dict[str, str]:
    """Return a place that cannot be planned, in the form of comparison.json."""
    place = dict(whole.labels)
    strategy = merged(whole.layers).get("strategy")
    if strategy:
        place["strategy"] = strategy["name"]
    return {**place, "reason": str(error)}


def _skipped(place: Mapping[str, str]) -> str:
    """'point twins=60 skipped: twins must be in 1..30'."""
    where = ", ".join(f"{axis} {value}" for axis, value in place.items() if axis != "reason")
    return f"{where} skipped: {place['reason']}"


def _choices(asked: Compare, axes: Axes) -> tuple[list[AxisValue], Sequence[list[AxisValue]]]:
    """Return what is planned at a time, and left out where one of its cells cannot be planned; and the axes within."""
    if asked.systems is not None:
        if asked.losses is not None:
            raise OptionError("--systems uses each system's own loss: leave out --losses")
        _single(axes, "--systems", "backbones", "datasets")
        names = listed(asked.systems, "systems")
        chosen = list(systems()) if names == ["all"] else [name.strip() for name in names if name.strip()]
        for name in chosen:
            system(name, "--systems")  # raises
        base = [*axes.base, {"dataset": axes.datasets[0], "backbone": axes.backbones[0]}]
        return system_choices(chosen, axes.strategies, base, DATA), replace(axes, losses=(), strategies=()).choices()
    if asked.dials:
        _single(axes, "--dial", "losses", "backbones", "datasets")
    settings = [AxisValue(labels={"settings": "default"})] if asked.tuned else [AxisValue()]
    return dial_choices(Dials.parsed(asked.dials)), [*axes.choices(), settings]


def _check(asked: Compare) -> None:
    """Refuse options and axes that exclude each other."""
    if asked.lr not in (None, "fixed") and _searches_rates(asked):
        raise OptionError("--tuned and --dial train.lr already search the learning rate: leave out --lr")
    given = []
    if asked.systems is not None:
        given.append("--systems")
    if asked.dials:
        given.append("--dial")
    if asked.tuned is not None:
        given.append("--tuned")
    if asked.negatives:
        given.append("--negatives")
    if asked.epochs:
        given.append("--epochs")
    for flag, other in _APART:
        if flag in given and other in given:
            raise OptionError(f"{flag} and {other} cannot be combined: use one at a time")


def _searches_rates(asked: Compare) -> bool:
    """Whether --tuned or --dial train.lr already searches the learning rate."""
    return asked.tuned is not None or any(parse_dial(text).key == "train.lr" for text in asked.dials)


def _folder(asked: Compare, runs: Path, cells: Sequence[Cell], about: dict[str, Any]) -> ComparisonFolder:
    name = default_name(cells)
    if asked.until is not None:  # not the folder of a comparison of the first look's seeds
        name = name.replace("compare", asked.until)
    if asked.lr not in (None, "grid"):
        name += f"-lr-{asked.lr}"
    if asked.tuned is not None:  # not the folder of the plain comparison
        name += "-tuned"
    folder = runs / (asked.name or name)
    check_name(folder, "comparison")
    return ComparisonFolder(folder, about)


def _size(axes: Axes, cells: Sequence[Cell]) -> str:
    """Say how many values each axis has, '2 strategies x 3 seeds'."""
    counts = {f"{axis}s": len({cell.labels.get(axis) for cell in cells}) for axis in ("system", "point")}
    counts |= {
        "training budgets": len(axes.epochs) or 1,
        "numbers of negatives": len(axes.num_negatives) or 1,
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
