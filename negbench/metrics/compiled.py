"""Whether compiled passes over scores run: numba (extra `fast`) is there, and the work repays loading it.

The torch path beside each of them is the oracle, and what runs everywhere else: on a GPU, in other precisions, on few
scores. Both give the same bits, so that nothing but time depends on which one runs.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from negbench.metrics._numba import code_folder

SMALLEST = 2**19  # scores that are worth it: numba is imported and its machine code read in 0.5 s, once a process


def kernels(table: Tensor) -> ModuleType | None:
    """`negbench.metrics._kernels` for a [B, N] table of float32; None: torch does it."""
    fits = table.device.type == "cpu" and table.dtype == torch.float32 and table.is_contiguous()
    return _loaded() if fits and table.numel() >= SMALLEST else None


@cache
def _loaded() -> ModuleType | None:
    if importlib.util.find_spec("numba") is None or code_folder() is None:
        return None
    from negbench.metrics import _kernels

    return _kernels
