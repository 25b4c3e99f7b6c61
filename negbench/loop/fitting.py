"""Choose how a run computes its steps on a GPU: the cheapest way whose memory fits.

The card's whole memory counts, never what is free of it: what others hold there must not decide how a run is computed.
"""

from collections.abc import Iterator

import torch

from negbench.loop.step_memory import step_memory
from negbench.loop.step_plan import StepPlan, splits_rows
from negbench.loop.types import OpenRun

MOVES_SCORES = False  # how steps are computed is no part of a run's identity


def fitting_plan(run: OpenRun) -> StepPlan:
    """Return how a run computes its steps: as its plan says, with what is `auto` chosen by the memory of its GPU.

    On a CPU `auto` is off. Where nothing fits, the plan that needs least is returned.
    """
    device = run.precision.device
    if device.type != "cuda":
        return run.step
    return cheapest_plan(run, torch.cuda.get_device_properties(device).total_memory)


def cheapest_plan(run: OpenRun, memory: int) -> StepPlan:
    """Return the cheapest of a run's possible plans whose step takes at most so many bytes; if none does, the last."""
    for plan in _plans(run):
        last = plan
        if sum(step_memory(run, plan.micro_batch, plan.recompute).values()) <= memory:
            return plan
    return last


def _plans(run: OpenRun) -> Iterator[StepPlan]:
    """Yield the plans that the settings leave open, the cheapest first.

    A batch at once takes one pass forward; recomputing or micro-batches take two, and recomputing keeps the bits of
    whole batches; both take three. Large micro-batches come before small ones.
    """
    asked, batch = run.config.compute, run.config.train.batch_size
    halves = [batch // 2**times for times in range(1, batch.bit_length())]
    sizes = [0, *(halves if splits_rows(run.backbone) else [])]
    recomputing = [False, *([True] if run.backbone.recomputes else [])]
    if asked.micro_batch != "auto":
        sizes = [asked.micro_batch]
    if asked.recompute != "auto":
        recomputing = [asked.recompute]
    plans = [StepPlan(size, again, asked.processes) for size in sizes for again in recomputing]
    whole = [plan for plan in plans if plan.micro_batch == 0]
    cut = [plan for plan in plans if plan.micro_batch > 0]
    yield from whole
    yield from (plan for plan in cut if not plan.recompute)
    yield from (plan for plan in cut if plan.recompute)
