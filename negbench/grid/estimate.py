"""How long the rest of a grid will take and how much disk, told from a cell of it that is finished."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from negbench.display import duration
from negbench.executors import Executor
from negbench.grid.cells import Cell
from negbench.room import size


@dataclass(frozen=True)
class Estimate:
    """What computing some cells takes: seconds until all are done with so many workers, and bytes that they leave."""

    seconds: float
    workers: int
    disk_bytes: float

    def line(self) -> str:
        """One line for people."""
        many = f"{self.workers} worker{'s' * (self.workers > 1)}"
        return f"about {duration(self.seconds)} with {many}, {size(self.disk_bytes)}"


def estimate(cells: Sequence[Cell], seconds: float, folder: Path, executor: Executor) -> Estimate:
    """Every cell as the finished one.

    Args:
        cells: yet to compute.
        seconds: that the finished one took.
        folder: of the finished one.
        executor: where they are computed.
    """
    left = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    most = executor.workers if executor.elsewhere else min(executor.workers, os.cpu_count() or 1)
    used = max(1, min(most, len(cells)))
    return Estimate(seconds * len(cells) / used, executor.workers, float(left * len(cells)))
