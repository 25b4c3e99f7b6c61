"""Numerical precision of training steps."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch

from negbench.data.scene import device_of
from negbench.errors import NegbenchError
from negbench.settings.config import RunConfig


def automatic(device: torch.device) -> str:
    """Return what train.precision = "auto" is on a device: "bf16" on a GPU that computes in it, else "fp32"."""
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


@dataclass(frozen=True, eq=False)
class Precision:
    """Autocast on a device; `scaler` scales only fp16 losses, whose gradients would underflow."""

    device: torch.device
    name: str
    scaler: torch.amp.GradScaler

    @classmethod
    def of(cls, config: RunConfig, started: str | None = None) -> Self:
        """Return the precision of a run, for a resumed one that it was `started` in, if known.

        Raises:
            NegbenchError: fp16 without a GPU.
        """
        device, name = device_of(config), started or config.train.precision
        name = automatic(device) if name == "auto" else name
        if name == "fp16" and device.type != "cuda":
            raise NegbenchError("train.precision = 'fp16' needs a GPU; on a CPU, --set train.precision=bf16")
        return cls(device, name, torch.amp.GradScaler(device.type, enabled=name == "fp16"))

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which the backbone computes in this precision."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16 if self.name == "bf16" else torch.float16)
