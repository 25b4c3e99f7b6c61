"""A finished run, as Python callers get it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from negbench.store.runfolder import RunFolder

MOVES_SCORES = False  # only shows what is stored


@dataclass(frozen=True)
class RunResult:
    """A finished run: `metrics` of the reported split by name, in [0, 1]; `details` is all of result.json."""

    folder: RunFolder
    details: dict[str, Any]
    tracking_error: str | None = None  # why the MLflow store holds no full copy; `negbench ui` copies it again
    reused: bool = False  # already finished, not computed now

    @property
    def run_id(self) -> str:
        """Name of the run's folder, which `negbench evaluate` and `audit --run` take."""
        return self.folder.run_id

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def metrics(self) -> dict[str, float]:
        """Metric name -> value on the reported split, at the reported epoch."""
        return dict(self.details["metrics"])

    def __repr__(self) -> str:
        """The run's name, and a line for each metric."""
        width = max((len(name) for name in self.metrics), default=0)
        lines = [f"run {self.run_id}"]
        lines += [f"  {name:{width}}  {value:.4f}" for name, value in self.metrics.items()]
        return "\n".join(lines)
