"""Forecast what a run will take, before anybody waits: memory of a step, disk, pictures, steps and hours.

Memory comes from shapes alone (`negbench.loop.step_memory`), so that planning needs no weights. Hours come from the
operations of a step and the speed of the device: measured on this CPU, or listed in `gpus.toml` for a GPU.
"""

import math
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch

from negbench.contracts import Backbone, HoldsFeatures, Loss
from negbench.contracts.optional import BuildsWithoutWeights
from negbench.data.scene import DataCache, Splits, device_of
from negbench.display import duration, log
from negbench.errors import NegbenchError, OptionError
from negbench.loop.fitting import bytes_of, first_that_fits, memory_of, possible_plans
from negbench.loop.precision import Precision
from negbench.loop.step_memory import Architecture, StepRows, step_bytes, step_operations
from negbench.loop.step_plan import StepPlan
from negbench.loop.types import OpenRun
from negbench.machine.free_memory import size
from negbench.plugins.registry import make_options, option_defaults, registry
from negbench.settings.config import ComputeConfig, ResolvedConfig

MOVES_SCORES = False  # only estimates

GPUS: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))["gpu"]
_DAY = 86400.0  # seconds
_MONTH = 30 * 24 * 3600.0  # seconds
_SIDE = 768  # of the matrices whose product tells the speed of a CPU
STORED_BYTES = 2  # of a number in the feature store (float16)
STEPS_ALONE = "the steps alone take"  # begins the line that says how long
SMALL = 2**28  # bytes of weights below which a run says nothing of its steps: they fit everywhere


@dataclass(frozen=True, eq=False)
class RunForecast:
    """What one run will take.

    Attributes:
        config: of the run.
        splits: its data.
        architecture: its backbone as shapes.
        device: that computes it.
    """

    config: ResolvedConfig
    splits: Splits
    architecture: Architecture
    device: torch.device

    @classmethod
    def of(cls, config: ResolvedConfig, cache: DataCache, started: str | None = None) -> "RunForecast":
        """Return the forecast of a planned run; weights need not be there if the backbone is `BuildsWithoutWeights`.

        `started`: the precision that an interrupted run was started in.
        """
        splits = cache.splits(config)
        device = device_of(config)
        backbone = backbone_of(config, cache)
        architecture = Architecture(backbone, Precision.of(config, started).name, config, splits.train.images)
        return cls(config, splits, architecture, device)

    @cached_property
    def rows(self) -> StepRows:
        """Rows of a step."""
        return StepRows.of(self.config, self.splits.train, self.architecture.backbone)

    @cached_property
    def steps(self) -> int:
        """Number of optimiser steps."""
        queries = len(self.splits.train.queries)
        batch = self.config.train.batch_size
        return self.config.train.epochs * -(-queries // batch)

    @property
    def memory(self) -> int:
        """Bytes of the device's memory."""
        return memory_of(self.device)

    @property
    def configured_plan(self) -> StepPlan:
        """The plan that the settings name: `auto` is off."""
        compute = self.config.compute
        micro_batch = 0 if compute.micro_batch == "auto" else compute.micro_batch
        return StepPlan(micro_batch, compute.recompute is True, compute.processes)

    def step(self, plan: StepPlan) -> dict[str, int]:
        """Return the bytes of a step by part, in each of its processes."""
        return step_bytes(self.architecture, self.rows, plan, gpu=self.device.type == "cuda")

    def bytes_of(self, plan: StepPlan) -> int:
        """Return what a step takes of the device's memory."""
        return bytes_of(plan, self.architecture, self.rows, self.device)

    def plans(self, compute: ComputeConfig) -> list[StepPlan]:
        """Return the plans that these settings leave open, the cheapest first."""
        return possible_plans(compute, self.config.train.batch_size, self.architecture.backbone)

    def fitting(self, compute: ComputeConfig | None = None) -> StepPlan | None:
        """Return the cheapest plan that the settings (the run's, or others) leave open and that fits; None if none."""
        plans = self.plans(compute or self.config.compute)
        return first_that_fits(plans, self.architecture, self.rows, self.device, self.memory)

    def check(self) -> None:
        """Check that a step fits into the memory, as the configuration computes it.

        Raises:
            OptionError: it does not; says what would make it fit.
        """
        needed = self.bytes_of(self.configured_plan)
        if needed <= self.memory:
            return
        if self.device.type == "cuda" and self.fitting() is not None:  # which `auto` chooses
            return
        free = self.config.compute.model_copy(update={"micro_batch": "auto", "recompute": "auto"})
        fit = self.fitting(free)
        device = "the GPU" if self.device.type == "cuda" else "this machine"
        has = f"{device} has {size(self.memory)}"
        if fit is not None:
            raise OptionError(f"a step takes about {size(needed)} of memory, {has}: {_flags(fit)}")
        last = self.plans(free)[-1]
        least = self.bytes_of(last)
        raise OptionError(
            f"a step takes about {size(needed)} of memory, and {size(least)} with {_flags(last)}; {has}: "
            f"--set train.batch_size={max(2, self.config.train.batch_size // 4)}, a smaller backbone, or a device with "
            f"{size(least)}"
        )

    def seconds(self) -> float | None:
        """Return what the training steps take on the device; None if its speed is not known."""
        return self._duration(self.steps * sum(self.operations.values()))

    @cached_property
    def operations(self) -> dict[str, float]:
        """Floating-point operations of a training step, computed as a run would, by call."""
        plan = self.configured_plan
        if self.device.type != "cpu":
            plan = self.fitting() or plan
        return step_operations(self.architecture, self.rows, plan)

    def _duration(self, operations: float) -> float | None:
        """Return the seconds that so many operations take on the device; None if its speed is not known."""
        if self.device.type == "cpu":
            return operations / (cpu_speed() * max(1, self.config.compute.threads))
        name = torch.cuda.get_device_name(self.device)
        speeds = [1e12 * gpu["tflops"] for gpu in GPUS if gpu["name"] in name]
        return operations / speeds[0] if speeds else None

    def lines(self) -> list[str]:
        """Say memory of a step, steps, pictures, disk and hours."""
        lines = [self._step_line(), f"{self.steps:,} steps{self._pictures()}"]
        if self.rows.corpus:
            lines.append(self._corpus_line())
        if self.rows.bank_read:
            lines.append(self._bank_line())
        seconds = self.seconds()
        if seconds is not None:
            lines.append(f"{STEPS_ALONE} about {_long(seconds)} on this {self._device_name(seconds)}")
        return lines

    def _step_line(self) -> str:
        """Say what a step of whole batches takes, and with which settings it fits."""
        processes = self.config.compute.processes
        parts = self.step(StepPlan(processes=processes))
        large_parts = ", ".join(f"{name} {size(count)}" for name, count in parts.items() if count >= 2**20)
        batch = self.config.train.batch_size
        line = f"a step of {batch} queries takes about {size(sum(parts.values()))} ({large_parts})"
        if processes > 1:
            line += f" in each of {processes} processes"
        fit = self.fitting()
        flags = "" if fit is None else _flags(fit)
        if flags:
            device = "GPU" if self.device.type == "cuda" else "machine"
            line += f"; this {device} has {size(self.memory)}, which is enough with {flags}"
        return line

    def _corpus_line(self) -> str:
        """Say how many images a loss over the corpus sends through the backbone, and what that takes."""
        loss: Loss = registry.make("losses", self.config.loss.name, **self.config.loss.options)
        line = f"{self.rows.corpus:,} images pass the trained part in each of {self.steps:,} steps"
        forward = self.architecture.call("candidates", self.rows.corpus).forward
        whole = self._duration(self.steps * self.operations["candidates"])
        least = self._duration(self.steps * forward)
        if loss.least_weight > 0:
            return line if whole is None or least is None else f"{line}: about {_long(least)} to {_long(whole)}"
        if whole is not None:
            line += f": about {_long(whole)}"
        if "kl_bound" in option_defaults(type(loss)):
            line += "; --set loss.kl_bound=0.001 (a departure) leaves out gradients of images that weigh less"
            if least is not None:
                line += f": at least {_long(least)}"
        return line

    def _bank_line(self) -> str:
        """Say how many images a bank over the corpus sends through the backbone, and what that takes."""
        line = f"{self.rows.bank_read:,} images of the bank pass the backbone in each of {self.steps:,} steps"
        seconds = self._duration(self.steps * self.operations["bank"])
        return line if seconds is None else f"{line}: about {_long(seconds)}"

    def _pictures(self) -> str:
        """Say how many pictures are decoded and encoded, how long that takes, and what their features take."""
        backbone = self.architecture.backbone
        if isinstance(backbone, HoldsFeatures):
            return ""
        images = len({image for part in self.splits.parts for image in part.all_images})
        if not backbone.frozen_images:
            return f"; {self.rows.read} pictures to decode in each, of {images:,}"
        seconds = self._duration(self.architecture.call("image_features", images).forward)
        took = "" if seconds is None else f" (about {_long(seconds)})"
        disk = size(images * STORED_BYTES * math.prod(self.architecture.features))
        return f"; {images:,} pictures to decode and encode once{took}, {disk} of features on disk"

    def _device_name(self, seconds: float) -> str:
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return "CPU" if seconds < _DAY else "CPU (a GPU takes hours)"


def backbone_of(config: ResolvedConfig, cache: DataCache) -> Backbone:
    """Return the backbone without weights if its class can, else loaded."""
    cls = registry.get("backbones", config.backbone.name)
    if issubclass(cls, BuildsWithoutWeights):
        return cls.skeleton(make_options(cls, config.backbone.options, config.backbone.name), config.seed)
    return cache.backbone(config)


def _flags(plan: StepPlan) -> str:
    """Return the settings that compute a step by this plan; empty for whole batches."""
    flags = []
    if plan.micro_batch:
        flags.append(f"--set compute.micro_batch={plan.micro_batch}")
    if plan.recompute:
        flags.append("--set compute.recompute=true")
    return " ".join(flags)


def _long(seconds: float) -> str:
    """Format a time that may be very long."""
    if seconds >= 2 * _MONTH:
        return f"{seconds / _MONTH:.0f} months"
    days = seconds / _DAY
    return f"{days:.0f} days" if days >= 3 else duration(seconds)


@cache
def cpu_speed() -> float:
    """Return the operations per second that one thread of this CPU reaches in products of float32 matrices."""
    ones = torch.ones(_SIDE, _SIDE)
    torch.mm(ones, ones)
    before = time.process_time()
    for _ in range(3):
        torch.mm(ones, ones)
    return 3 * 2 * _SIDE**3 / max(1e-6, time.process_time() - before)


def forecast_lines(config: ResolvedConfig, cache: DataCache, started: str | None = None) -> list[str]:
    """Return `RunForecast.lines` of a planned run; none if its backbone is small, or cannot be traced.

    Args:
        config: the run's.
        cache: loads data and backbones.
        started: the precision that an interrupted run was started in.

    Raises:
        OptionError: a step cannot fit.
    """
    return _lines(partial(RunForecast.of, config, cache, started))


def open_run_lines(run: OpenRun) -> list[str]:
    """Return `RunForecast.lines` of an opened run; likewise.

    Raises:
        OptionError: a step cannot fit.
    """

    def make() -> RunForecast:
        return RunForecast(run.config, run.splits, Architecture.of(run), run.precision.device)

    return _lines(make)


def _lines(make: Callable[[], RunForecast]) -> list[str]:
    try:
        forecast = make()
        if forecast.architecture.weights < SMALL and forecast.device.type == "cpu":
            return []
        forecast.check()
        return forecast.lines()
    except NegbenchError:
        raise
    except Exception:  # whatever a backbone raises on tensors without numbers: its own run reports what is wrong
        log.debug("no step was traced", exc_info=True)
        return []
