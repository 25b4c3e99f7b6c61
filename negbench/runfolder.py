"""A run's folder: the source of truth. MLflow holds a copy of it.

config.json       the resolved configuration, its hash, identities and versions; written first
metrics.jsonl     one line a point: {"step", "epoch", name: value, ...}
checkpoint.pt     while it trains: all that resuming needs, replaced at each epoch
ranks.parquet     per-query ranks on the reported split
model.safetensors trained parameters
result.json       metrics, behaviour, cost; written last: its presence means finished
error.txt         what stopped a failed run
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from negbench.config import RunConfig
from negbench.errors import RunError
from negbench.files import atomic_write, locked, read_json, write_json

if TYPE_CHECKING:
    import pandas as pd

MOVES_SCORES = False  # keeps what was computed

Status = Literal["finished", "failed", "interrupted", "new"]
# failed: compute failed runs again, go on with interrupted ones, read finished ones; never: leave the first two as they
# are; always: compute anew whatever there is
Overwrite = Literal["failed", "never", "always"]
Step = Literal["reuse", "leave", "resume", "anew"]


@dataclass(frozen=True)
class RunFolder:
    """Paths and safe reads and writes of one run's folder."""

    path: Path

    @property
    def run_id(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def status(self) -> Status:
        """From the files alone; 'interrupted' may still be running in another process (see `lock`)."""
        if (self.path / "result.json").exists():
            return "finished"
        if (self.path / "error.txt").exists():
            return "failed"
        return "interrupted" if (self.path / "config.json").exists() else "new"

    @contextmanager
    def lock(self, *, wait: bool = False) -> Iterator[None]:
        """Hold the run. The kernel lets go of it when the process dies, however it dies.

        Raises:
            RunError: without `wait`, where another process is at it.
        """
        try:
            with locked(self.path / ".lock", wait=wait):
                yield
        except BlockingIOError as error:
            raise RunError(f"run {self.run_id} is being computed by another process") from error

    # --- configuration and result ---------------------------------------------------------------------------------

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Resolved configuration, hash, identities, versions."""
        write_json(self.path / "config.json", manifest)

    @property
    def manifest(self) -> dict[str, Any]:
        """What `write_manifest` wrote."""
        value: dict[str, Any] = read_json(self.path / "config.json")
        return value

    @property
    def config(self) -> RunConfig:
        """The resolved configuration."""
        return RunConfig.model_validate(self.manifest["config"])

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Metrics, behaviour and cost; marks the run finished and drops its checkpoint."""
        write_json(self.path / "result.json", result)
        (self.path / "error.txt").unlink(missing_ok=True)
        (self.path / "checkpoint.pt").unlink(missing_ok=True)

    @property
    def result(self) -> dict[str, Any]:
        """What `write_result` wrote; RunError where the run is not finished."""
        if self.status != "finished":
            raise RunError(f"run {self.run_id} is not finished ({self.status})")
        value: dict[str, Any] = read_json(self.path / "result.json")
        return value

    def write_error(self, text: str) -> None:
        """Why the run failed."""
        with atomic_write(self.path / "error.txt") as file:
            file.write(text.rstrip() + "\n")

    # --- metrics --------------------------------------------------------------------------------------------------

    def append_metrics(self, point: Mapping[str, float]) -> None:
        """One line; a torn last line (a kill in the middle of the write) is dropped on reading."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(point) + "\n")

    def metrics(self) -> list[dict[str, float]]:
        """All points, in order."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return []
        lines = file.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def truncate_metrics(self, epoch: int) -> None:
        """Drop the points of `epoch` and later: they are computed again after a resume."""
        kept = [point for point in self.metrics() if point["epoch"] < epoch]
        with atomic_write(self.path / "metrics.jsonl") as file:
            file.writelines(json.dumps(point) + "\n" for point in kept)

    # --- tables and weights ---------------------------------------------------------------------------------------

    def write_ranks(self, frame: pd.DataFrame) -> None:
        """Per-query ranks on the reported split."""
        self.write_table("ranks", frame)

    def write_table(self, name: str, frame: pd.DataFrame) -> None:
        """`name`.parquet."""
        with atomic_write(self.path / f"{name}.parquet", "wb") as file:
            frame.to_parquet(file, index=False)

    def ranks(self) -> pd.DataFrame:
        """What `write_ranks` wrote."""
        import pandas as pd  # here, as training does without it

        return pd.read_parquet(self.path / "ranks.parquet")

    def write_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        with atomic_write(self.path / "checkpoint.pt", "wb") as file:
            torch.save(dict(state), file)

    def checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, on the CPU; None where there is none."""
        file = self.path / "checkpoint.pt"
        if not file.exists():
            return None
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        return state

    def write_weights(self, state: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
        """Trained parameters as safetensors."""
        from safetensors.torch import save

        with atomic_write(self.path / "model.safetensors", "wb") as file:
            file.write(save({k: v.detach().cpu().contiguous() for k, v in state.items()}, dict(metadata)))

    def weights(self) -> dict[str, torch.Tensor]:
        """What `write_weights` wrote."""
        from safetensors.torch import load_file

        if not (self.path / "model.safetensors").exists():
            raise RunError(f"run {self.run_id} holds no weights")
        tensors: dict[str, torch.Tensor] = load_file(self.path / "model.safetensors")
        return tensors


def find_run(runs: Path, name: str) -> RunFolder:
    """Run by id, by a prefix or a part of it that only one run has, or by its folder's path."""
    for path in (Path(name), runs / name):
        if (path / "config.json").exists():
            return RunFolder(path)
    matches = sorted(p.parent for p in runs.glob("*/config.json") if name in p.parent.name)
    if len(matches) == 1:
        return RunFolder(matches[0])
    known = f"several match: {', '.join(m.name for m in matches[:5])}" if matches else f"see the folders in {runs}"
    raise RunError(f"there is no run '{name}' in {runs}: {known}")


def runs_of(runs: Path, config_hash: str) -> list[RunFolder]:
    """Folders of runs with this configuration hash, in order of name."""
    found = [RunFolder(p.parent) for p in sorted(runs.glob(f"*-{config_hash[:8]}*/config.json"))]
    return [folder for folder in found if folder.manifest.get("hash") == config_hash]


def step_of(folder: RunFolder | None, overwrite: Overwrite) -> Step:
    """What is to be done about a run, given the folder that holds it so far."""
    status: Status = "new" if folder is None else folder.status
    if status == "finished" and overwrite != "always":
        return "reuse"
    if status in ("failed", "interrupted") and overwrite == "never":
        return "leave"
    return "resume" if status == "interrupted" and overwrite != "always" else "anew"


def best_of(runs: Path, config_hash: str) -> RunFolder | None:
    """The folder that stands for a run: of the finished ones, else of all, the newest; None where there is none."""
    found = runs_of(runs, config_hash)
    finished = [folder for folder in found if folder.status == "finished"]
    return max(finished or found, key=lambda folder: (folder.path / "config.json").stat().st_mtime_ns, default=None)


@contextmanager
def claimed(
    runs: Path, name: str, config_hash: str, overwrite: Overwrite, manifest: Callable[[], Mapping[str, Any]]
) -> Iterator[tuple[RunFolder, Step]]:
    """Hold the folder of one run, found or made, for as long as it is computed.

    Where another process is at it, wait until that one is done or dead, and look again: no run is computed twice at a
    time, and a process that dies loses its claim at once. A step that computes nothing holds no lock.

    Args:
        runs: folder of the runs.
        name: of the folder, where it has to be made; `name-2`, ... where that holds another attempt.
        config_hash: of the run.
        overwrite: see `Overwrite`.
        manifest: what `RunFolder.write_manifest` gets, where the folder is made.
    """
    while True:
        with ExitStack() as stack:
            with locked(runs / ".claims.lock"):  # two processes must not both find nothing
                held = best_of(runs, config_hash)
                step = step_of(held, overwrite)
                folder = held if held is not None and step != "anew" else new_folder(runs, name)
                busy = False
                if step in ("resume", "anew"):
                    try:
                        stack.enter_context(folder.lock())
                    except RunError:
                        busy = True
                    if step == "anew":  # now, so that the next process finds it
                        folder.write_manifest(manifest())
            if not busy:
                yield folder, step
                return
        with folder.lock(wait=True):
            pass


def new_folder(runs: Path, name: str) -> RunFolder:
    """A fresh folder `name`, or `name-2`, ... where that is taken; made here, so that no two processes share one."""
    runs.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        path = runs / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return RunFolder(path)
    raise RunError(f"10,000 runs named {name} in {runs}: clear some away")
