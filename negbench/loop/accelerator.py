"""Where a run computes, in what precision, and which share of a batch is this process's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from negbench.config import ResolvedConfig, RunConfig
from negbench.data.scene import device_of
from negbench.errors import NegbenchError

if TYPE_CHECKING:
    from accelerate import Accelerator


def precision_of(config: RunConfig) -> str:
    """fp32, bf16 or fp16."""
    precision = config.train.precision
    if precision == "auto":
        precision = "bf16" if device_of(config).type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return precision


def accelerator_of(config: ResolvedConfig) -> Accelerator:
    """Device and precision of a run.

    Raises:
        NegbenchError: half precision that a CPU would not compute in.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs  # here, as planning a grid does without it
    from accelerate.state import AcceleratorState

    precision, on_gpu = precision_of(config), device_of(config).type == "cuda"
    if precision == "fp16" and not on_gpu:  # accelerate would compute in float32, and say nothing
        raise NegbenchError("train.precision = 'fp16' needs a GPU: take bf16 or fp32 on a CPU")
    AcceleratorState._reset_state()  # a process may compute runs of different precision
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)  # a loss need not use every trained part
    mixed = "no" if precision == "fp32" else precision
    return Accelerator(cpu=not on_gpu, mixed_precision=mixed, kwargs_handlers=[unused])


def prepared(accelerator: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    """Model and optimizer as accelerate wraps them: not at all in one process and full precision.

    There `prepare` would do nothing but look for tensors of every distributed kind, whose import takes a second.
    """
    if accelerator.num_processes == 1 and accelerator.mixed_precision == "no":
        return model.to(accelerator.device), optimizer
    model, optimizer = accelerator.prepare(model, optimizer)
    return model, optimizer


def shard(rows: Tensor, accelerator: Accelerator) -> Tensor:
    """This process's share of a batch. Shares are equal: what is left over (fewer rows than processes) is left out."""
    count = accelerator.num_processes
    if len(rows) < count:
        raise NegbenchError(f"a batch of {len(rows)} queries cannot be shared by {count} processes: use fewer of them")
    return rows[: len(rows) // count * count][accelerator.process_index :: count]
