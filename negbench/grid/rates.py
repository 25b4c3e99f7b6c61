"""Choose each group's learning rate on a part of train, with the first seed.

A rate that suits one strategy or loss may handicap another. Unless `--lr` says otherwise, every group gets the same
small grid around its configured rate. The trials are ordinary runs in a comparison of their own, found again by their
hashes; the choice depends only on the finished ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from negbench.data.scene import Scenes
from negbench.grid.cells import Cell
from negbench.grid.comparison import place_of
from negbench.settings.config import ResolvedConfig
from negbench.store.runfolder import best_of

FACTORS = (1.0, 0.3, 3.0)  # multiples of the configured rate, which wins ties
DEV_FRACTION = 0.2  # of train, or more if configured: a tenth would rank trials by chance
Place = tuple[str, ...]


@dataclass(frozen=True)
class ChosenRate:
    """One group's learning rate; comparison.json holds them under `rates`.

    Attributes:
        labels: labels of the group.
        seed: seed of the trials.
        lr: the rate of the best trial, or the configured one if no trial is finished.
        tried: (rate, main metric on the dev part) of each trial, lowest rate first; None if it is not finished.
    """

    labels: Mapping[str, str]
    seed: int
    lr: float
    tried: tuple[tuple[float, float | None], ...]

    @property
    def at_an_end(self) -> bool:
        """Whether the best rate is the lowest or highest of the grid, so that a better one may lie outside."""
        return self.lr in (self.tried[0][0], self.tried[-1][0])


@dataclass(frozen=True)
class Rates:
    """Learning-rate trials of a comparison.

    Args:
        trials: trials of each group, in the order of `FACTORS`; their label `settings` names the rate.
        labels: labels of each group.
    """

    trials: Mapping[Place, tuple[Cell, ...]]
    labels: Mapping[Place, Mapping[str, str]]

    @classmethod
    def of(cls, cells: Sequence[Cell], runs: Path, scenes: Scenes) -> Rates:
        """Plan each group's trials from its first cell."""
        first = dict[Place, Cell]()
        for cell in cells:
            first.setdefault(place_of(cell.labels), cell)
        trials = {place: tuple(_trial(cell, by, runs, scenes) for by in FACTORS) for place, cell in first.items()}
        return cls(trials, {place: cell.labels for place, cell in first.items()})

    @property
    def cells(self) -> list[Cell]:
        """All trials."""
        return [cell for trials in self.trials.values() for cell in trials]

    def chosen(self, runs: Path) -> dict[Place, ChosenRate]:
        """Return each group's rate, chosen from the trials finished so far."""
        rates = {}
        for place, trials in self.trials.items():
            tried = [(cell.config.train.lr, _score(runs, cell)) for cell in trials]
            known = [(value, rate) for rate, value in tried if value is not None]
            best = max(known, key=lambda each: each[0], default=(0.0, tried[0][0]))[1]
            rates[place] = ChosenRate(self.labels[place], trials[0].seed, best, tuple(sorted(tried)))
        return rates


def at_rates(cells: Sequence[Cell], chosen: Mapping[Place, ChosenRate], runs: Path, scenes: Scenes) -> list[Cell]:
    """Return the cells, each at its group's rate."""
    with_rates = []
    for cell in cells:
        lr = chosen[place_of(cell.labels)].lr
        if lr != cell.config.train.lr:
            cell = cell.with_config(_with_rate(cell.config, lr), runs, scenes)
        with_rates.append(replace(cell, remarks=()))  # the trials have the same remarks
    return with_rates


def _trial(cell: Cell, factor: float, runs: Path, scenes: Scenes) -> Cell:
    """Return a cell at another rate, scored on a part of train."""
    rate = float(f"{factor * cell.config.train.lr:.6g}")  # so that 0.3 x 0.003 is the same run as 0.0009
    chosen = cell.config.eval
    fraction = max(chosen.dev_fraction, DEV_FRACTION)
    select = "dev" if chosen.select == "val" else chosen.select
    closed = chosen.model_copy(update={"reported": False, "dev_fraction": fraction, "select": select})
    config = _with_rate(cell.config, rate).model_copy(update={"eval": closed})
    return cell.with_config(config, runs, scenes, settings=f"lr={rate:g}")


def _with_rate(config: ResolvedConfig, rate: float) -> ResolvedConfig:
    return config.model_copy(update={"train": config.train.model_copy(update={"lr": rate})})


def _score(runs: Path, cell: Cell) -> float | None:
    held = best_of(runs, cell.hash)
    if held is None or held.status != "finished":
        return None
    return float(held.result["metrics"][held.result["main_metric"]])
