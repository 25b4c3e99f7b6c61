"""A run's folder: the source of truth. MLflow holds a copy of it.

config.json       the resolved configuration, its hash, identities and versions; written first
metrics.jsonl     one line per point: {"step", "epoch", name: value, ...}; of epoch 3: what a refresh or a regime's card
                  observes before its steps, loss and scores after them; epoch -1: the untrained model
checkpoint.pt     during training: all that resuming needs, with the points of metrics.jsonl; replaced after epochs
pools-NN.bits     during training: the pools of a refresh, with which the next one is compared
ranks.parquet     per-query ranks on the reported split
model.safetensors trained parameters
result.json       metrics, behaviour, cost; written last: its presence means finished
error.txt         why a run failed
SHA256SUMS        hash of every file above as it was written; every read is checked against it
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from negbench.errors import DataError, RunError, printable_json, short_repr
from negbench.machine.files import (
    SUMS,
    atomic_write,
    delete,
    intact,
    lock_file,
    missing_in,
    read_json,
    seal,
    write_json,
)
from negbench.machine.received import check_safetensors, load_checkpoint, read_json_text, read_parquet
from negbench.plugins.registry import registry
from negbench.settings.config import RunConfig
from negbench.store.run_record import check_types

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import torch

MOVES_SCORES = False  # only stores results

Status = Literal["finished", "failed", "interrupted", "new"]
# what to do about a run: reuse a finished one, resume an interrupted one, compute all others anew, failed ones included
Action = Literal["reuse", "resume", "anew"]
_SPARE = {"checkpoint.pt", "error.txt", "mlflow.json", "model.safetensors"}  # files that a finished run can do without
_AGAIN = "move the folder elsewhere and rerun the command that computed the run"
_FIRST = "delete checkpoint.pt in its folder to restart the run from its first epoch"


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
        """Status from the files alone; 'interrupted' may still be running in another process (see `RunFolder.lock`)."""
        if (self.path / "result.json").exists():
            return "finished"
        if (self.path / "error.txt").exists():
            return "failed"
        return "interrupted" if (self.path / "config.json").exists() else "new"

    @contextmanager
    def lock(self, *, wait: bool = False) -> Iterator[None]:
        """Hold the run's lock. The kernel releases it when the process dies, however it dies.

        Raises:
            RunError: another process holds it and `wait` is False.
        """
        try:
            with lock_file(self.path / ".lock", wait=wait):
                yield
        except BlockingIOError as error:
            raise RunError(f"run {self.run_id} is being computed by another process") from error

    # --- configuration and result ---------------------------------------------------------------------------------

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Write resolved configuration, hash, identities, versions."""
        write_json(self.path / "config.json", manifest)

    @property
    def manifest(self) -> dict[str, Any]:
        """What `write_manifest` wrote, without control characters: a terminal would obey those of a received run.

        Raises:
            DataError: it lacks a part, or one has the wrong type.
        """
        return dict(printable_json(self._manifest()))

    def _manifest(self) -> dict[str, Any]:
        path = self.path / "config.json"
        value = read_json(path)
        if not isinstance(value, dict):
            raise DataError(f"{path}: expected an object, got {short_repr(value)}: {_AGAIN}")
        kinds = {"config": dict, "hash": str, "dataset": dict, "backbone": dict, "versions": dict, "plugins": dict}
        wrong = [key for key, kind in kinds.items() if not isinstance(value.get(key, kind()), kind)]
        wrong += [key for key in ("config", "hash") if key not in value]
        if wrong:
            raise DataError(f"{path}: '{wrong[0]}' is missing or of the wrong type: {_AGAIN}")
        return value

    @property
    def precision(self) -> str:
        """What the run computes in: "fp32" (also where a manifest of earlier versions does not say), "bf16", "fp16"."""
        return str(self.manifest.get("started", {}).get("precision", "fp32"))

    @property
    def config(self) -> RunConfig:
        """The resolved configuration.

        Stored data never select code: `plugins` lists only those of the run's files that the user has given now (see
        `check_plugins`).
        """
        manifest = self._manifest()
        with intact(self.path / "config.json"):
            config = RunConfig.model_validate(manifest["config"])
            plugins = [registry.plugin_file(sha256) for sha256 in manifest.get("plugins", {}).values()]
        return config.model_copy(update={"plugins": tuple(str(path) for path in plugins if path is not None)})

    def check_plugins(self) -> None:
        """Raise RunError unless the user has given every plug-in file that the run was made with."""
        for file, sha256 in self.manifest.get("plugins", {}).items():
            if registry.plugin_file(sha256) is None:
                content = f"with the same content, SHA-256 {sha256[:12]}..."
                name = Path(file).name
                raise RunError(f"run {self.run_id} was made with a plug-in file: give --plugin {name} ({content})")

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write metrics, behaviour and cost, which marks the run finished; then delete what only resuming needs."""
        write_json(self.path / "result.json", result)
        self.tidy()

    def tidy(self) -> None:
        """Delete files that a finished run does not need; a kill right after its result may leave them."""
        for file in (self.path / "error.txt", self.path / "checkpoint.pt", *self.path.glob("pools-*.bits")):
            with suppress(PermissionError):  # another user's run
                delete(file)

    @property
    def result(self) -> dict[str, Any]:
        """What `write_result` wrote; RunError if the run is not finished or has lost some of its files."""
        if self.status != "finished":
            raise RunError(f"run {self.run_id} is not finished ({self.status})")
        lost = self.lost()
        if lost:
            raise RunError(f"run {self.run_id} has lost {', '.join(lost)} in {self.path}: {_AGAIN}")
        value = printable_json(read_json(self.path / "result.json"))
        with intact(self.path / "result.json"):
            check_types(value)
        return dict(value)

    def lost(self) -> list[str]:
        """Return the files that a finished run has lost; its weights may be deleted to save space."""
        return needed_files(missing_in(self.path))

    def write_error(self, text: str) -> None:
        """Write why the run failed."""
        with atomic_write(self.path / "error.txt") as file:
            file.write(text.rstrip() + "\n")

    # --- metrics --------------------------------------------------------------------------------------------------

    def write_metrics(self, points: Sequence[Mapping[str, float]]) -> None:
        """Write all points so far, those of the checkpoint, which counts if the two differ."""
        with atomic_write(self.path / "metrics.jsonl") as file:
            file.writelines(json.dumps(point) + "\n" for point in points)

    def metrics(self) -> list[dict[str, float]]:
        """Return all points, in order."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return []
        with intact(file):
            return [json.loads(line) for line in read_json_text(file).splitlines()]

    # --- tables and weights ---------------------------------------------------------------------------------------

    def write_ranks(self, frame: pd.DataFrame) -> None:
        """Write per-query ranks on the reported split."""
        self.write_table("ranks", frame)

    def write_table(self, name: str, table: pd.DataFrame | pa.Table) -> None:
        """Write `name`.parquet."""
        import pyarrow as pa
        from pyarrow.parquet import write_table

        if not isinstance(table, pa.Table):
            table = pa.Table.from_pandas(table, preserve_index=False)
        with atomic_write(self.path / f"{name}.parquet", "wb") as file:
            write_table(table, file)

    def ranks(self) -> pd.DataFrame:
        """Read what `write_ranks` wrote."""
        frame = self.table("ranks")
        with intact(self.path / "ranks.parquet"):
            frame = frame.assign(**{name: frame[name].astype("int64") for name in ("target_rank", "gallery_size")})
            if not frame["target_rank"].between(1, frame["gallery_size"]).all():
                raise RunError(
                    f"{self.path / 'ranks.parquet'} holds ranks outside of 1 to the gallery's size: {_AGAIN}"
                )
            return frame

    def table(self, name: str, columns: list[str] | None = None) -> pd.DataFrame:
        """Read what `write_table` wrote, or some columns of it."""
        with intact(self.path / f"{name}.parquet") as file:
            frame: pd.DataFrame = read_parquet(file, columns).to_pandas()
        return frame

    def write_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        import torch  # here and below, as reading results does without it

        with atomic_write(self.path / "checkpoint.pt", "wb") as file:
            torch.save(dict(state), file)

    def checkpoint(self) -> dict[str, Any] | None:
        """Read the last checkpoint, on the CPU; None if there is none."""
        if not (self.path / "checkpoint.pt").exists():
            return None

        with self.in_checkpoint() as file:
            return dict(load_checkpoint(file))

    def in_checkpoint(self) -> AbstractContextManager[Path]:
        """Read the checkpoint in this block; raise DamagedError for whatever fails in it."""
        return intact(self.path / "checkpoint.pt", _FIRST)

    def write_weights(self, state: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
        """Write the trained parameters as safetensors."""
        from safetensors.torch import save

        with atomic_write(self.path / "model.safetensors", "wb") as file:
            # one entry: safetensors writes several in any order
            about = {"negbench": json.dumps(metadata, sort_keys=True)}
            file.write(save({k: v.detach().cpu().contiguous() for k, v in state.items()}, about))

    @property
    def has_weights(self) -> bool:
        """Whether the folder holds trained parameters; they may be deleted to save space."""
        return (self.path / "model.safetensors").exists()

    def weights(self) -> dict[str, torch.Tensor]:
        """Read what `write_weights` wrote."""
        from safetensors.torch import load_file

        if not self.has_weights:
            raise RunError(f"run {self.run_id} has no weights in {self.path}: {_AGAIN}")
        with intact(self.path / "model.safetensors") as file:
            check_safetensors(file)
            return dict(load_file(file))


def needed_files(names: Sequence[str]) -> list[str]:
    """Return those of a run's files that a finished run cannot do without."""
    return [name for name in names if name not in _SPARE]


def find_run(runs: Path, name: str) -> RunFolder:
    """Find a run by id, by a part of it that only one run has, or by its folder's path."""
    for path in (Path(name), runs / name):
        if (path / "config.json").exists():
            return RunFolder(path)
    matches = sorted(p.parent for p in runs.glob("*/config.json") if name in p.parent.name)
    if len(matches) == 1:
        return RunFolder(matches[0])
    problem = "not found among its folders"
    if matches:
        problem = f"several match: {', '.join(match.name for match in matches[:5])}"
    raise RunError(f"run '{name}' in {runs}: {problem}")


def runs_of(runs: Path, config_hash: str) -> list[RunFolder]:
    """Return the folders of runs with this configuration hash, in order of name."""
    folders = [RunFolder(p.parent) for p in sorted(runs.glob(f"*-{config_hash[:8]}*/config.json"))]
    return [folder for folder in folders if folder.manifest.get("hash") == config_hash]


def action_of(folder: RunFolder | None) -> Action:
    """Return what to do about a run, given its folder so far."""
    status: Status = "new" if folder is None else folder.status
    if status == "finished":
        return "reuse"
    if status == "interrupted":
        return "resume"
    return "anew"


def best_of(runs: Path, config_hash: str) -> RunFolder | None:
    """Return a run's newest finished folder, else its newest folder; None if there is none."""
    folders = runs_of(runs, config_hash)
    finished = [folder for folder in folders if folder.status == "finished"]
    return max(finished or folders, key=_written_at, default=None)


def _written_at(folder: RunFolder) -> int:
    """Return when a run was planned, in ns."""
    return (folder.path / "config.json").stat().st_mtime_ns


@contextmanager
def claim_folder(
    runs: Path, name: str, config_hash: str, manifest: Callable[[], Mapping[str, Any]]
) -> Iterator[tuple[RunFolder, Action]]:
    """Find or create the folder of one run, and lock it while the run is computed.

    If another process holds it, wait until that one is done or dead, and look again: no run is computed twice at a
    time, and a process that dies loses its claim at once. A run that is reused holds no lock.

    Args:
        runs: folder of the runs.
        name: name of a new folder; `name-2`, ... if that holds another attempt.
        config_hash: the run's.
        manifest: returns what `RunFolder.write_manifest` writes into a new folder.
    """
    while True:
        with ExitStack() as locks:
            with lock_file(runs / ".claims.lock"):  # two processes must not both find nothing
                folder = best_of(runs, config_hash)
                action = action_of(folder)
                if folder is None or action == "anew":
                    folder = new_folder(runs, name)
                is_free = action == "reuse" or _try_lock(folder, locks)
                if action == "anew":  # now, so that the next process finds it
                    folder.write_manifest(manifest())
            if is_free:
                if action == "reuse":
                    folder.tidy()
                yield folder, action
                return
        with folder.lock(wait=True):  # until the other process is done or dead
            pass


def _try_lock(folder: RunFolder, locks: ExitStack) -> bool:
    """Lock a run's folder until `locks` is closed; return False if another process holds it."""
    try:
        locks.enter_context(folder.lock())
    except RunError:
        return False
    return True


def new_folder(runs: Path, name: str) -> RunFolder:
    """Return an empty folder `name`, or `name-2`, ... if that holds a run; call only under the claims' lock.

    Reuses a folder whose process was killed before it wrote anything.
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
    raise RunError(f"10,000 runs named {name} in {runs}: choose another folder (--runs-dir)")


def final_values(details: Mapping[str, Any]) -> dict[str, float]:
    """Flatten result.json into metric names, which MLflow sorts: metrics, mined/..., regime_end/..., used/...

    The baselines' scores stay in result.json, an artifact: in MLflow they would be half of the names, and come first.
    """
    values = dict(details["metrics"])
    for name, value in details.get("mistakes", {}).items():
        values[f"mistakes/{name}"] = value
    for name, value in details["behaviour"].items():
        values[f"mined/{name}"] = value
    for name, value in details.get("regime", {}).items():
        values[f"regime_end/{name}"] = value
    for name, value in details["seconds"].items():
        values[f"used/{name}_seconds"] = value
    for name, value in details["peak_memory_mib"].items():
        values[f"used/peak_memory_{name}_mib"] = value
    values["used/negatives_seen"] = details["negatives_seen"]
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
