"""Estimate what a command still needs: from the runs that it has computed, or from rehearsals before there are any."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from negbench.display import duration
from negbench.grid.cells import SCENES, Cell
from negbench.grid.comparison import place_of
from negbench.loop.record import peak_memory_mib
from negbench.loop.rehearsal import Rehearsals
from negbench.machine.room import size
from negbench.store.runfolder import RunFolder

MANY = 20  # runs from which a command rehearses before it starts: of fewer, the first tells soon enough


@dataclass
class Estimate:
    """Time and disk space of the rest of a command; a run is expected to take as long per epoch as those so far.

    Attributes:
        later: epochs of all runs that follow the cells that are being computed, at least and at most.
        runs, epochs, seconds, stored: number of the runs computed so far, and their sums; `stored` in bytes.
    """

    later: tuple[float, float] = (0.0, 0.0)
    runs: int = 0
    epochs: float = 0.0
    seconds: float = 0.0
    stored: int = 0

    def add(self, folder: Path, epochs: int) -> bool:
        """Add a computed run; return whether the estimate is news: after 1, 4, 16, ... runs."""
        self.runs += 1
        self.epochs += epochs
        self.seconds += sum(RunFolder(folder).result["seconds"].values())
        self.stored += sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        return self.runs in (1, 4, 16, 64, 256)

    def text(self, todo: Iterable[int], workers: int, *, elsewhere: bool = False) -> str:
        """Say how long the rest takes.

        Args:
            todo: epochs of each run that is still to be computed now.
            workers: number of runs at a time, at most.
            elsewhere: whether workers may be on other machines, so that this one's cores are no limit.
        """
        epochs = list(todo)
        used = max(1, workers if elsewhere else min(workers, os.cpu_count() or 1))
        used = used if self.later[0] else max(1, min(used, len(epochs)))
        ends = [duration(self.seconds / self.epochs * (sum(epochs) + more) / used) for more in self.later]
        what = f"{len(epochs)} more to compute" + ", then the rest of the command" * (self.later[1] > 0)
        took = f"about {' to '.join(dict.fromkeys(ends))} with {workers} worker{'s' * (workers > 1)}"
        disk = size(int(self.stored / self.epochs * (sum(epochs) + self.later[0])))
        source = "one" if self.runs == 1 else str(self.runs)
        return f"{what}: {took}, {disk} (estimated from the first {source})"


def price(cells: Iterable[Cell], runs: Path, later: float = 0.0) -> list[str]:
    """Say what the runs that are left take: as long as finished ones in their place of the grid, or else as rehearsed.

    Args:
        cells: planned.
        runs: runs folder.
        later: epochs of all runs that may follow.

    Returns:
        A line; none if no run is left, or if some can be known from neither.
    """
    distinct = {cell.hash: cell for cell in cells}.values()
    left = [cell for cell in distinct if cell.step(runs) != "reuse"]
    done = [(cell, RunFolder(runs / str(cell.folder)).result) for cell in distinct if cell.step(runs) == "reuse"]
    known = dict[tuple[str, ...], list[float]]()  # by place, whatever the rate
    for cell, result in done:
        known.setdefault(_place(cell), []).append(sum(result["seconds"].values()))
    each = sum(map(sum, known.values())) / max(1, sum(cell.config.train.epochs for cell, _ in done))
    rehearsals = Rehearsals(SCENES)

    def seconds(cell: Cell) -> float:
        own = known.get(_place(cell))
        return fmean(own) if own else rehearsals.seconds(cell.run) or each * cell.config.train.epochs

    times = [seconds(cell) for cell in left]
    if not left or not all(times):
        return []
    more = later / sum(cell.config.train.epochs for cell in left)
    time = " to ".join(dict.fromkeys(map(duration, (sum(times), sum(times) * (1 + more)))))
    memory = max([result["peak_memory_mib"]["process"] for _, result in done] or [peak_memory_mib()["process"]])
    what = (
        f"the {'other ' * bool(done)}{len(left)} runs: {time} of computing; {memory:,.0f} MiB of memory for each worker"
    )
    return [what + ("" if {*map(_place, left)} <= known.keys() else " (rehearsed on this machine)")]


def _place(cell: Cell) -> tuple[str, ...]:
    return place_of({**cell.labels, "settings": ""})
