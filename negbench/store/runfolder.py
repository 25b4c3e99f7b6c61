"""A run's folder: the source of truth. MLflow holds a copy of it.

config.json       the resolved configuration, its hash, identities and versions; written first
metrics.jsonl     one line a point: {"step", "epoch", name: value, ...}
checkpoint.pt     while it trains: all that resuming needs, the points of metrics.jsonl too; replaced at each epoch
ranks.parquet     per-query ranks on the reported split
model.safetensors trained parameters
result.json       metrics, behaviour, cost; written last: its presence means finished
error.txt         what stopped a failed run
SHA256SUMS        of every file above as it was written; none is read without being compared
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from negbench.errors import RunError
from negbench.machine.files import SUMS, atomic_write, intact, locked, names_in, read_json, seal, write_json
from negbench.plugins.registry import registry
from negbench.settings.config import RunConfig

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

MOVES_SCORES = False  # keeps what was computed

Status = Literal["finished", "failed", "interrupted", "new"]
Step = Literal["reuse", "resume", "anew"]  # finished runs, interrupted ones, and all others, failed ones among them
_SPARE = {"checkpoint.pt", "error.txt", "mlflow.json", "model.safetensors"}  # which a finished run can do without
_ANEW = "delete it and result.json beside it, and the command that computed the run computes it again"
_FIRST = "delete checkpoint.pt in its folder, and the run starts again from its first epoch"

Known = dict[str, float | None]


class Closed(BaseModel):
    """A closed object: another key is refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Draws(Closed):
    """How negatives are taken from the pools."""

    per_query: int | None = Field(description="negatives of a query and epoch; null: all of the batch's pool")
    replacement: bool | None = Field(description="whether each epoch draws anew; null for batch strategies")


class RunRecord(Closed):
    """result.json in a run's folder: one finished cell. What it was computed from stands in config.json beside it.

    Its JSON Schema, for other programs, is result.schema.json. Numbers that are not known are null. A rate or a recall
    lies in [0, 1]; ranks count from 1, epochs of refreshes from 0.
    """

    metrics: dict[str, float] = Field(description="of the reported split at the reported epoch; GROUP/NAME for a part")
    main_metric: str = Field(description="the one of `metrics` to look at")
    baselines: dict[str, dict[str, float]] = Field(
        description="the metrics of what needs no training, or one side of the query alone, by name"
    )
    reported_epoch: int = Field(ge=0, description="epochs trained when the metrics were taken")
    selected_on: Literal["last", "dev", "val"] = Field(description="what the epoch was chosen by")
    behaviour: Known = Field(description="what the strategy did: means over refreshes (batch strategies: epochs)")
    behaviour_by_refresh: list[Known] = Field(description="the same, one by one, with the epoch")
    regime: Known = Field(description="where the model stood at the end, and what random negatives are")
    regime_by_refresh: list[Known] = Field(description="the same before each refresh")
    refresh_epochs: list[int] = Field(description="epochs before which pools were defined anew")
    temperatures: dict[str, float] = Field(description="learned temperatures at the end")
    draws: Draws
    steps: int = Field(ge=0, description="optimiser steps")
    negatives_seen: int = Field(ge=0, description="query-negative pairs that the loss read")
    seconds: dict[str, float] = Field(description="of each stage")
    images_encoded: int = Field(ge=0, description="images whose features were not stored before")
    peak_memory_mib: dict[str, float] = Field(description="of the process, and of the GPU where there is one")
    remarks: list[str] = Field(description="what a reader must know")


def check_types(result: Any) -> None:
    """Raise ValueError where a field of a result has another type; a run of an earlier version may lack some.

    Args:
        result: as JSON holds it.
    """
    try:
        RunRecord.model_validate(result)
    except ValidationError as error:
        wrong = [each for each in error.errors() if each["type"] not in ("missing", "extra_forbidden")]
        if wrong:
            raise ValueError(f"{'.'.join(map(str, wrong[0]['loc']))}: {wrong[0]['msg']}") from error


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
        value: dict[str, Any] = read_json(self.path / "config.json", f"delete {self.path} and compute the run again")
        return value

    @property
    def config(self) -> RunConfig:
        """The resolved configuration.

        What is stored never chooses code: `plugins` are the files that the user has given, of those the run was made
        with (see `check_plugins`).
        """
        manifest = self.manifest
        with self._intact("config.json"):
            config = RunConfig.model_validate(manifest["config"])
            own = [registry.own_file(sha256) for sha256 in manifest.get("plugins", {}).values()]
        return config.model_copy(update={"plugins": tuple(str(path) for path in own if path is not None)})

    def check_plugins(self) -> None:
        """Raise RunError where the user has not given each file of plug-ins that the run was made with."""
        for file, sha256 in self.manifest.get("plugins", {}).items():
            if registry.own_file(sha256) is None:
                content = f"want the content of then, SHA-256 {sha256[:12]}..."
                raise RunError(f"run {self.run_id} was made with a file of plug-ins: give --plugin {file} ({content})")

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Metrics, behaviour and cost; marks the run finished and drops its checkpoint."""
        write_json(self.path / "result.json", result)
        self.tidy()

    def tidy(self) -> None:
        """Drop what a finished run does not need, also where a kill came right after its result."""
        for name in ("error.txt", "checkpoint.pt"):
            with suppress(PermissionError):  # another user's run
                (self.path / name).unlink(missing_ok=True)

    @property
    def result(self) -> dict[str, Any]:
        """What `write_result` wrote; RunError where the run is not finished, or has lost some of its files."""
        if self.status != "finished":
            raise RunError(f"run {self.run_id} is not finished ({self.status})")
        if lost := self.lost():
            mend = "delete its result.json, and the command that computed the run computes it again"
            raise RunError(f"run {self.run_id} has lost {', '.join(lost)} in {self.path}: {mend}")
        value: dict[str, Any] = read_json(self.path / "result.json", _ANEW)
        with self._intact("result.json"):
            check_types(value)
        return value

    def lost(self) -> list[str]:
        """What belongs to a finished run and is no longer there; its weights may be deleted to save space."""
        return [name for name in names_in(self.path) if name not in _SPARE and not (self.path / name).exists()]

    def write_error(self, text: str) -> None:
        """Why the run failed."""
        with atomic_write(self.path / "error.txt") as file:
            file.write(text.rstrip() + "\n")

    # --- metrics --------------------------------------------------------------------------------------------------

    def write_metrics(self, points: Sequence[Mapping[str, float]]) -> None:
        """All points so far, those of a checkpoint: the two belong together, and the checkpoint is what counts."""
        with atomic_write(self.path / "metrics.jsonl") as file:
            file.writelines(json.dumps(point) + "\n" for point in points)

    def metrics(self) -> list[dict[str, float]]:
        """All points, in order."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return []
        with self._intact(file.name):
            return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    def recover(self) -> None:
        """Set metrics.jsonl back to the checkpoint: what was computed after it, if anything, is computed again."""
        saved = self.checkpoint()
        if saved is None:
            self.write_metrics([])
            return
        with self.in_checkpoint():
            self.write_metrics(saved["state"]["points"])

    # --- tables and weights ---------------------------------------------------------------------------------------

    def write_ranks(self, frame: pd.DataFrame) -> None:
        """Per-query ranks on the reported split."""
        self.write_table("ranks", frame)

    def write_table(self, name: str, table: pd.DataFrame | pa.Table) -> None:
        """`name`.parquet."""
        import pyarrow as pa
        from pyarrow.parquet import write_table

        made = table if isinstance(table, pa.Table) else pa.Table.from_pandas(table, preserve_index=False)
        with atomic_write(self.path / f"{name}.parquet", "wb") as file:
            write_table(made, file)

    def ranks(self) -> pd.DataFrame:
        """What `write_ranks` wrote."""
        frame = self.table("ranks")
        with self._intact("ranks.parquet"):
            return frame.astype({"target_rank": "int64", "gallery_size": "int64"})

    def table(self, name: str, columns: list[str] | None = None) -> pd.DataFrame:
        """What `write_table` wrote, or some columns of it."""
        import pandas as pd  # here, as training does without it

        with self._intact(f"{name}.parquet") as file:
            return pd.read_parquet(file, columns=columns)

    def write_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        with atomic_write(self.path / "checkpoint.pt", "wb") as file:
            torch.save(dict(state), file)

    def checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, on the CPU; None where there is none."""
        if not (self.path / "checkpoint.pt").exists():
            return None
        with self.in_checkpoint() as file:
            state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        return state

    def in_checkpoint(self) -> AbstractContextManager[Path]:
        """Take something of the checkpoint: DamagedError for whatever fails in the block."""
        return intact(self.path / "checkpoint.pt", _FIRST)

    def write_weights(self, state: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
        """Trained parameters as safetensors."""
        from safetensors.torch import save

        with atomic_write(self.path / "model.safetensors", "wb") as file:
            file.write(save({k: v.detach().cpu().contiguous() for k, v in state.items()}, dict(metadata)))

    @property
    def has_weights(self) -> bool:
        """Whether it holds trained parameters: not where it came of a pack."""
        return (self.path / "model.safetensors").exists()

    def weights(self) -> dict[str, torch.Tensor]:
        """What `write_weights` wrote."""
        from safetensors.torch import load_file

        if not self.has_weights:
            raise RunError(f"run {self.run_id} holds no weights")
        with self._intact("model.safetensors") as file:
            tensors: dict[str, torch.Tensor] = load_file(file)
        return tensors

    def _intact(self, name: str) -> AbstractContextManager[Path]:
        """Read one of the files that a finished run is made of."""
        return intact(self.path / name, _ANEW)


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


def step_of(folder: RunFolder | None) -> Step:
    """What is to be done about a run, given the folder that holds it so far."""
    status: Status = "new" if folder is None else folder.status
    return "reuse" if status == "finished" else "resume" if status == "interrupted" else "anew"


def best_of(runs: Path, config_hash: str) -> RunFolder | None:
    """The folder that stands for a run: of the finished ones, else of all, the newest; None where there is none."""
    found = runs_of(runs, config_hash)
    finished = [folder for folder in found if folder.status == "finished"]
    return max(finished or found, key=lambda folder: (folder.path / "config.json").stat().st_mtime_ns, default=None)


@contextmanager
def claimed(
    runs: Path, name: str, config_hash: str, manifest: Callable[[], Mapping[str, Any]]
) -> Iterator[tuple[RunFolder, Step]]:
    """Hold the folder of one run, found or made, for as long as it is computed.

    Where another process is at it, wait until that one is done or dead, and look again: no run is computed twice at a
    time, and a process that dies loses its claim at once. A step that computes nothing holds no lock.

    Args:
        runs: folder of the runs.
        name: of the folder, where it has to be made; `name-2`, ... where that holds another attempt.
        config_hash: of the run.
        manifest: what `RunFolder.write_manifest` gets, where the folder is made.
    """
    while True:
        with ExitStack() as stack:
            with locked(runs / ".claims.lock"):  # two processes must not both find nothing
                held = best_of(runs, config_hash)
                step = step_of(held)
                folder = held if held is not None and step != "anew" else new_folder(runs, name)
                busy = False
                if step != "reuse":
                    try:
                        stack.enter_context(folder.lock())
                    except RunError:
                        busy = True
                    if step == "anew":  # now, so that the next process finds it
                        folder.write_manifest(manifest())
            if not busy:
                if step == "reuse":
                    folder.tidy()
                yield folder, step
                return
        with folder.lock(wait=True):
            pass


def new_folder(runs: Path, name: str) -> RunFolder:
    """An empty folder `name`, or `name-2`, ... where that holds a run; only under the claims' lock.

    One that was made by a process killed before it wrote anything is taken.
    """
    for number in range(1, 10_000):
        path = runs / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(file.name != SUMS and not file.name.startswith(".") for file in path.iterdir()):
                continue
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from error
        seal(path)
        return RunFolder(path)
    raise RunError(f"10,000 runs named {name} in {runs}: clear some away")


def final_values(details: Mapping[str, Any]) -> dict[str, float]:
    """result.json as flat metric names, which MLflow sorts: final/..., mined/..., regime_end/..., used/...

    The baselines' scores stay in result.json, an artifact: in MLflow they would be half of the names, and come first.
    """
    values = {f"final/{name}": value for name, value in details["metrics"].items()}
    values.update({f"mined/{name}": value for name, value in details["behaviour"].items()})
    values.update({f"regime_end/{name}": value for name, value in details.get("regime", {}).items()})
    values.update({f"used/{name}_seconds": value for name, value in details["seconds"].items()})
    values.update({f"used/peak_memory_{name}_mib": value for name, value in details["peak_memory_mib"].items()})
    values["used/negatives_seen"] = details["negatives_seen"]
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
