"""Choose how a run computes its steps: the cheapest way whose memory fits. Planning and training both ask here.

A device's whole memory counts, never what is free of it: what others hold there must not decide how a run is computed.
"""

import torch

from negbench.contracts import Backbone
from negbench.loop.step_memory import Architecture, StepRows, step_bytes
from negbench.loop.step_plan import StepPlan, splits_rows
from negbench.loop.types import OpenRun
from negbench.machine.free_memory import machine_memory
from negbench.settings.config import ComputeConfig

MOVES_SCORES = False  # how steps are computed is no part of a run's identity


def fitting_plan(run: OpenRun) -> StepPlan:
    """Return how a run computes its steps: as its plan says, with what is `auto` chosen by the memory of its GPU.

    On a CPU `auto` is off. Where nothing fits, the plan that needs least is returned.
    """
    device = run.precision.device
    if device.type != "cuda":
        return run.step_plan
    rows = StepRows.of(run.config, run.scene.train.dataset, run.backbone)
    plans = possible_plans(run.config.compute, run.config.train.batch_size, run.backbone)
    architecture = Architecture.of(run)
    memory = memory_of(device)
    return first_that_fits(plans, architecture, rows, device, memory) or plans[-1]


def possible_plans(settings: ComputeConfig, batch: int, backbone: Backbone) -> list[StepPlan]:
    """Return the plans that the settings leave open, the cheapest first.

    A batch at once takes one pass forward; recomputing or micro-batches take two, and recomputing keeps the bits of
    whole batches; both take three. Large micro-batches come before small ones.

    Args:
        settings: what is not `auto` stays as it is.
        batch: queries of a step.
        backbone: with or without weights.
    """
    sizes = [0]
    if settings.micro_batch != "auto":
        sizes = [settings.micro_batch]
    elif splits_rows(backbone):
        sizes += [batch // 2**times for times in range(1, batch.bit_length())]
    recomputing = [False]
    if settings.recompute != "auto":
        recomputing = [settings.recompute]
    elif backbone.recomputes:
        recomputing.append(True)
    plans = []
    for size in sizes:
        for recompute in recomputing:
            plans.append(StepPlan(size, recompute, settings.processes))
    return sorted(plans, key=_passes)  # which keeps the order of the sizes


def _passes(plan: StepPlan) -> tuple[bool, bool]:
    """Order plans: whole batches first, and those that recompute after those that do not."""
    return plan.micro_batch > 0, plan.recompute


def first_that_fits(
    plans: list[StepPlan], architecture: Architecture, rows: StepRows, device: torch.device, memory: int
) -> StepPlan | None:
    """Return the first of these plans whose step takes at most so many bytes on a device; None if none does."""
    for plan in plans:
        if bytes_of(plan, architecture, rows, device) <= memory:
            return plan
    return None


def bytes_of(plan: StepPlan, architecture: Architecture, rows: StepRows, device: torch.device) -> int:
    """Return what a step takes of a device's memory: of a GPU's one process, of a machine's all processes."""
    gpu = device.type == "cuda"
    of_process = sum(step_bytes(architecture, rows, plan, gpu=gpu).values())
    return of_process if gpu else of_process * plan.processes


def memory_of(device: torch.device) -> int:
    """Return the bytes of a device's whole memory."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return machine_memory()
