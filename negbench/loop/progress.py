"""Show how a run in training gets on: in the terminal, in its log file, and as points of curves within long epochs."""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor

from negbench.display import EVERY, duration
from negbench.loop.record import peak_memory_mib
from negbench.loop.types import OpenRun, RecordPoint, State
from negbench.machine.free_memory import size
from negbench.store.runfolder import RunFolder

MOVES_SCORES = False  # only shows

POINT = 100  # steps between points of the loss within an epoch
T = TypeVar("T")


class Progress:
    """Shows steps per second, loss, time left, memory and the share of waiting, every thirty seconds.

    Args:
        run: in training.
        folder: has the log file.
        state: of the run.
        total: number of the run's steps.
        record_point: receives the mean loss of every hundred steps, as `train/step_loss`.
    """

    def __init__(self, run: OpenRun, folder: RunFolder, state: State, total: int, record_point: RecordPoint) -> None:
        self._run = run
        self._folder = folder
        self._state = state
        self._total = total
        self._record_point = record_point
        self._start_count()

    def _start_count(self) -> None:
        """Count steps, and seconds of waiting, from now on."""
        self._counted_from = time.monotonic()
        self._steps = 0
        self._waited = 0.0

    def time_waiting(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, and count the time until each is there."""
        iterator = iter(items)
        while True:
            begun = time.monotonic()
            try:
                item = next(iterator)
            except StopIteration:
                return
            self._waited += time.monotonic() - begun
            yield item

    def note_step(self, losses: list[Tensor], rows: int) -> None:
        """Count a step that the state has, and show a line if thirty seconds have passed.

        Args:
            losses: of the epoch's steps so far, times their rows.
            rows: of the last step.
        """
        state = self._state
        self._steps += 1
        if len(losses) % POINT == 0:
            recent = torch.stack([loss.cpu() for loss in losses[-POINT:]])
            mean = float(recent.sum()) / (POINT * self._run.config.train.batch_size)
            self._record_point({"train/step_loss": mean}, state.step, state.epoch)
        passed = time.monotonic() - self._counted_from
        if passed >= EVERY:
            line = self._line(passed, float(losses[-1]) / rows)
            self._run.display.add(line)
            self._write(line)
            self._start_count()

    def _line(self, passed: float, loss: float) -> str:
        speed = self._steps / passed
        pace = f"{speed:.1f} steps/s" if speed >= 1 else f"{1 / speed:.1f} s a step"
        rest = duration((self._total - self._state.step) / speed)
        peaks = peak_memory_mib()
        memory = size(peaks.get("gpu", peaks["process"]) * 2**20)
        return f"{pace}, loss {loss:.4g}, {rest} of training left, {memory}, waiting {self._waited / passed:.0%}"

    def _write(self, line: str) -> None:
        state = self._state
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        with suppress(OSError), (self._folder.path / "train.log").open("a", encoding="utf-8") as file:
            file.write(f"{now} epoch {state.epoch + 1}, step {state.step:,} of {self._total:,}: {line}\n")
