"""A task: one cell, as it is handed to a worker, and what the worker does with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from negbench.grid.executors import Notify
from negbench.loop.runs import DATA, RunContext, compute_or_reuse
from negbench.loop.types import PlannedRun


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
    result = compute_or_reuse(task.planned, replace(RunContext.open(task.runs, task.uri), cache=DATA, tags=task.tags))
    torch.cuda.empty_cache()  # an idle worker returns the memory that torch only caches
    return result.run_id, result.reused
