"""Numerical precision of training steps."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from negbench.data.scene import device_of
from negbench.errors import NegbenchError
from negbench.settings.config import RunConfig


def precision_of(config: RunConfig) -> str:
    """Return "fp32", "bf16" or "fp16"."""
    precision = config.train.precision
    if precision == "auto":
        precision = "bf16" if device_of(config).type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return precision


@dataclass(frozen=True, eq=False)
class Precision:
    """Autocast on a device; `scaler` scales only fp16 losses, whose gradients would underflow."""

    device: torch.device
    name: str
    scaler: torch.amp.GradScaler

    @classmethod
    def of(cls, config: RunConfig) -> Precision:
        """Return the precision of a run.

        Raises:
            NegbenchError: fp16 without a GPU.
        """
        device, name = device_of(config), precision_of(config)
        if name == "fp16" and device.type != "cuda":
            raise NegbenchError("train.precision = 'fp16' needs a GPU: use bf16 or fp32 on a CPU")
        return cls(device, name, torch.amp.GradScaler(device.type, enabled=name == "fp16"))

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which the backbone computes in this precision."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16 if self.name == "bf16" else torch.float16)
