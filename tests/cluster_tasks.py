"""Tasks of test_cluster.py; by themselves, as a worker imports what a task's file imports."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from negbench.errors import NegbenchError


def task(value: Any, report: Any) -> Any:
    """Ends as its name says, or tells where it is."""
    if value == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if value == "mistake":
        raise NegbenchError("mend this")
    if value == "fault":
        raise ValueError("ours")
    report(f"at {value}")
    return value * 2, os.environ.get("NEGBENCH_TOKEN"), os.environ["CUDA_VISIBLE_DEVICES"], str(Path.cwd())


def span(seconds: float, report: Any) -> tuple[float, float]:
    """When it began and when it ended."""
    begun = time.time()
    time.sleep(seconds)
    return begun, time.time()


def meet(folder: Path, report: Any) -> None:
    """Wait for another task like this one, ready to compute cells."""
    import negbench.grid.cells  # noqa: F401

    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.05)
