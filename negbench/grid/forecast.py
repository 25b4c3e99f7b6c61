"""Forecast what a command still needs: from finished runs of the same group, else from timing their parts."""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from negbench.display import duration
from negbench.grid.axis import GroupKey, group_key
from negbench.grid.cells import Cell
from negbench.loop.record import peak_memory_mib
from negbench.loop.run_timer import RunTimer
from negbench.loop.runs import DATA
from negbench.machine.free_memory import size
from negbench.store.runfolder import RunFolder

MANY = 20  # runs from which a command times their parts before it starts: of fewer, the first tells soon enough


@dataclass
class Forecast:
    """Time, memory and disk space of the rest of a command, refined by every run.

    A run takes as long as finished ones of its group, whatever their rate; else as timed; else what all
    finished ones took for each step of training and, besides, for each epoch: with other batch sizes, the number of
    steps differs.

    Attributes:
        later: epochs of all runs that follow the cells that are being computed, at least and at most.
        finished, timed: seconds of finished runs by group, and of a run whose parts were timed; 0 if they cannot be.
        epochs, steps, training, stored: of the finished runs in total: epochs, steps for each train query, seconds of
            training, and bytes.
        memory: the most MiB that a process of a finished run took.
        computed: number of runs that this command computed.
    """

    later: tuple[float, float] = (0.0, 0.0)
    finished: dict[GroupKey, list[float]] = field(default_factory=dict)
    timed: dict[GroupKey, float] = field(default_factory=dict)
    epochs: int = 0
    steps: float = 0.0
    training: float = 0.0
    stored: int = 0
    memory: float = 0.0
    computed: int = 0

    def add(self, cell: Cell, folder: Path) -> None:
        """Add a finished run."""
        result = RunFolder(folder).result
        self.finished.setdefault(_group_of_any_rate(cell), []).append(sum(result["seconds"].values()))
        self.epochs += cell.config.train.epochs
        self.steps += _steps(cell)
        self.training += result["seconds"]["train"]
        self.stored += sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        self.memory = max(self.memory, result["peak_memory_mib"]["process"])

    def add_computed(self, cell: Cell, folder: Path) -> bool:
        """Add a run that was just computed; return whether to tell the estimate: after 1, 4, 16, ... of them."""
        self.add(cell, folder)
        self.computed += 1
        return self.computed in (1, 4, 16, 64, 256)

    def seconds(self, cells: Collection[Cell]) -> tuple[float, float]:
        """Return what these cells and all that follows take, at least and at most; zeros if that is unknown."""
        times = [self._seconds_of(cell) for cell in cells]
        if not all(times):
            return 0.0, 0.0
        epochs = sum(cell.config.train.epochs for cell in cells)
        if epochs:
            per_epoch = sum(times) / epochs
        else:
            per_epoch = self._total_seconds() / max(1, self.epochs)
        least, most = self.later
        return per_epoch * (epochs + least), per_epoch * (epochs + most)

    def _seconds_of(self, cell: Cell) -> float:
        """Return what one cell takes: as finished runs of its group, as timed, or by steps and epochs."""
        finished = self.finished.get(_group_of_any_rate(cell))
        if finished:
            return fmean(finished)
        timed = self.timed.get(_group_of_any_rate(cell))
        if timed:
            return timed
        if not self.epochs:
            return 0.0
        per_step = self.training / self.steps
        per_epoch = (self._total_seconds() - self.training) / self.epochs
        return per_step * _steps(cell) + per_epoch * cell.config.train.epochs

    def _total_seconds(self) -> float:
        """Return what all finished runs took in total."""
        return sum(sum(seconds) for seconds in self.finished.values())

    def text(self, todo: Collection[Cell], workers: int, *, elsewhere: bool = False) -> str:
        """Say how long the rest takes.

        Args:
            todo: runs that are still to be computed now.
            workers: number of runs at a time, at most.
            elsewhere: whether workers may be on other machines, so that this one's cores are no limit.
        """
        least, most = self.later
        used = workers if elsewhere else min(workers, os.cpu_count() or 1)
        if not least:
            used = min(used, len(todo))
        used = max(1, used)
        runs = f"{len(todo)} more to compute"
        if most > 0:
            runs += ", then the rest of the command"
        time = _range_text(seconds / used for seconds in self.seconds(todo))
        epochs = sum(cell.config.train.epochs for cell in todo) + least
        disk = size(int(self.stored / self.epochs * epochs))
        source = "one" if self.computed == 1 else str(self.computed)
        with_workers = f"with {workers} {'worker' if workers == 1 else 'workers'}"
        return f"{runs}: about {time} {with_workers}, {disk} (estimated after the first {source})"

    def price(self, cells: Iterable[Cell], runs: Path) -> list[str]:
        """Read the finished ones of these cells, time the others' groups, and say what is left.

        Returns:
            A line; none if no run is left, or if the time of some can be known from neither.
        """
        missing = []
        for cell in {cell.hash: cell for cell in cells}.values():
            if cell.action(runs) == "reuse":
                self.add(cell, runs / str(cell.folder))
            else:
                missing.append(cell)
        timer = RunTimer(DATA)
        for cell in missing:
            group = _group_of_any_rate(cell)
            if group not in self.finished and group not in self.timed:
                self.timed[group] = timer.seconds(cell.run)
        seconds = self.seconds(missing)
        if not seconds[0]:
            return []
        count = f"the other {len(missing)} runs" if self.finished else f"the {len(missing)} runs"
        memory = self.memory or peak_memory_mib()["process"]
        source = self._source_text(missing)
        return [f"{count}: {_range_text(seconds)} of computing; {memory:,.0f} MiB of memory for each worker{source}"]

    def _source_text(self, cells: Iterable[Cell]) -> str:
        """Say from what the time of cells is estimated whose group has no finished run; nothing if each has one."""
        groups = [_group_of_any_rate(cell) for cell in cells]
        timed = [self.timed[group] for group in groups if group not in self.finished]
        sources = []
        if any(timed):
            sources.append("timed on this machine")
        if not all(timed):
            sources.append("from runs with other settings")
        return f" ({', or '.join(sources)})" if sources else ""


def _range_text(seconds: Iterable[float]) -> str:
    """Return '10 min to 15 min', or '10 min' if both ends read the same."""
    return " to ".join(dict.fromkeys(duration(value) for value in seconds))


def _group_of_any_rate(cell: Cell) -> GroupKey:
    return group_key({**cell.labels, "settings": ""})


def _steps(cell: Cell) -> float:
    """Return a run's number of optimiser steps for each train query."""
    return cell.config.train.epochs / cell.config.train.batch_size
