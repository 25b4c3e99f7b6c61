"""Numerical precision of a run: what its backbone trains, encodes, mines and scores in."""

from dataclasses import dataclass
from typing import Self

import torch

from negbench.data.scene import device_of
from negbench.errors import NegbenchError
from negbench.settings.config import RunConfig


def automatic(device: torch.device) -> str:
    """Return what train.precision = "auto" is on a device: "bf16" on a GPU that computes in it, else "fp32"."""
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


@dataclass(frozen=True, eq=False)
class Precision:
    """What a run computes in on a device; `scaler` scales only fp16 losses, whose gradients would underflow."""

    device: torch.device
    name: str
    scaler: torch.amp.GradScaler

    @classmethod
    def of(cls, config: RunConfig, started: str | None = None) -> Self:
        """Return the precision of a run, for a resumed one that it was `started` in, if known.

        Raises:
            NegbenchError: fp16 without a GPU.
        """
        device = device_of(config)
        name = started or config.train.precision
        name = automatic(device) if name == "auto" else name
        if name == "fp16" and device.type != "cuda":
            raise NegbenchError("train.precision = 'fp16' needs a GPU; on a CPU, --set train.precision=bf16")
        return cls(device, name, torch.amp.GradScaler(device.type, enabled=name == "fp16"))
