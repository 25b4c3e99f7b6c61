"""Save and restore checkpoints, and derive random streams from a seed."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor

from negbench.data.scene import trained_state
from negbench.loop.objective import Objective
from negbench.loop.types import State
from negbench.store.runfolder import RunFolder

PAUSE = 50  # time between checkpoints, in multiples of the time that the last one took
WITHIN = 600.0  # seconds between checkpoints within an epoch, at least


@dataclass(frozen=True)
class TrainingParts:
    """Objective, optimizer, schedule, scaler and random streams: checkpointed together with a `State`.

    Attributes:
        objective: its backbone's trained parameters and buffers, its scalars and its queue (`memory`) are saved.
        optimizer, schedule: with `state_dict`.
        scaler: scales fp16 losses.
        streams: purpose -> generator.
    """

    objective: Objective
    optimizer: Any
    schedule: Any
    scaler: torch.amp.GradScaler
    streams: Mapping[str, torch.Generator]

    @property
    def _parts(self) -> dict[str, Any]:
        """What is saved and restored by its own `state_dict`."""
        parts = {"scalars": self.objective.scalars, "memory": self.objective.memory}
        return parts | {"optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler}

    def save(self, folder: RunFolder, state: State) -> float:
        """Replace the folder's checkpoint, then its metrics, which the next save rewrites after a kill in between.

        Returns: the monotonic time at which the next is due, so that saving takes at most 2 % of a run.
        """
        start = time.monotonic()
        state.checkpointed = state.refresh
        state.generators = {name: generator.get_state() for name, generator in self.streams.items()}
        state.generators["global"] = torch.get_rng_state()
        if torch.cuda.is_available():
            state.generators["cuda"] = torch.cuda.get_rng_state()
        saved = {"state": vars(state), "weights": trained_state(self.objective.backbone)}
        folder.write_checkpoint(saved | {name: part.state_dict() for name, part in self._parts.items()})
        folder.write_metrics(state.points)
        end = time.monotonic()
        return end + PAUSE * (end - start)

    def moment(self) -> tuple[dict[str, Tensor], Tensor]:
        """Return what a step may change before it moves the weights: the queue (`memory`), the global generator."""
        return self.objective.memory.state_dict(), torch.get_rng_state()

    def go_back(self, moment: tuple[dict[str, Tensor], Tensor]) -> None:
        """Undo a step that failed before it changed the weights."""
        queue, generator = moment
        self.objective.memory.load_state_dict(queue)
        torch.set_rng_state(generator)
        self.objective.zero_grad()
        self.objective.calls.forget()

    def restore(self, folder: RunFolder) -> State | None:
        """Restore everything from the folder's checkpoint and return its state; None if there is none."""
        saved = folder.checkpoint()
        if saved is None:
            return None
        with folder.in_checkpoint():
            fresh = _types(self.optimizer.state_dict())
            self.objective.backbone.load_state_dict(saved["weights"], strict=False)
            for name, part in self._parts.items():
                part.load_state_dict(saved[name])
            state = State(**saved["state"])
            strict = ConfigDict(arbitrary_types_allowed=True, strict=True)
            for name, hint in get_type_hints(State).items():  # raises a ValueError where a type differs
                TypeAdapter(hint, config=strict).validate_python(getattr(state, name))
            if fresh != _types(saved["optimizer"]):
                raise ValueError("it was saved with a different optimizer")
            for parameter, adam in self.optimizer.state.items():  # AdamW's step and two moments
                shapes = [tensor.shape for tensor in adam.values() if tensor.is_floating_point()]
                if shapes != [torch.Size(), parameter.shape, parameter.shape] or not adam["step"] >= 0:
                    raise ValueError("its optimizer's step and moments do not fit the parameters")
            queries = len(self.objective.scene.train.dataset.target_columns)
            if state.negatives is not None and (state.negatives.ndim, len(state.negatives)) != (2, queries):
                raise ValueError("its negatives belong to other queries")
            if state.order is not None and not torch.equal(state.order.sort().values, torch.arange(queries)):
                raise ValueError("its order belongs to other queries")
            for name, generator in self.streams.items():
                generator.set_state(state.generators[name])
            torch.set_rng_state(state.generators["global"])
            if torch.cuda.is_available() and "cuda" in state.generators:
                torch.cuda.set_rng_state(state.generators["cuda"])
            return state


class Checkpoints:
    """When a run's checkpoints are written: after epochs, and within long ones, so that saving takes at most 2 %.

    Args:
        parts: saved together with the state.
        folder: where they go.
        state: of the run.
        seconds: time of each stage so far, by name; the display adds to it while the run goes on.
    """

    def __init__(self, parts: TrainingParts, folder: RunFolder, state: State, seconds: dict[str, float]) -> None:
        self._parts = parts
        self._folder = folder
        self._state = state
        self._seconds = seconds
        self._due = 0.0
        self._saved = time.monotonic()

    def after_epoch(self) -> None:
        """Save, if a checkpoint is due."""
        if time.monotonic() >= self._due:
            self.save()

    def due_within_epoch(self) -> bool:
        """Whether so much time has passed since the last checkpoint that the next is due before the epoch ends."""
        return time.monotonic() >= max(self._due, self._saved + WITHIN)

    def save(self) -> None:
        """Save now."""
        self._state.seconds = dict(self._seconds)
        self._due = self._parts.save(self._folder, self._state)
        self._saved = time.monotonic()


def _types(optimizer: Mapping[str, Any]) -> list[dict[str, type]]:
    """Return the type of each setting of each parameter group."""
    types = []
    for group in optimizer["param_groups"]:
        types.append({key: type(value) for key, value in group.items()})
    return types


def stream(seed: int, purpose: str) -> torch.Generator:
    """Return the generator of one purpose under a run's seed; streams of different purposes are independent."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@contextmanager
def seeded_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generator, which dropout uses, for the run, and restore it afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(stream(seed, "dropout").initial_seed())
        yield
