"""Choose compiled passes over scores where numba (extra `fast`) is installed and the work repays loading it.

Each of them has a torch path beside it, which is the reference and runs everywhere else: on a GPU, in other precisions,
on few scores. Both give the same bits, so only the run time depends on the choice.
"""

import importlib.util
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from negbench.metrics._numba import code_folder

SMALLEST = 2**19  # fewest scores that repay importing numba and reading its machine code (0.5 s, once per process)


def kernels(table: Tensor) -> ModuleType | None:
    """Return `negbench.metrics._kernels` if they can process this [B, N] table; None: use torch."""
    fits = table.device.type == "cpu" and table.dtype == torch.float32 and table.is_contiguous()
    return _load_kernels() if fits and table.numel() >= SMALLEST else None


@cache
def _load_kernels() -> ModuleType | None:
    if importlib.util.find_spec("numba") is None or code_folder() is None:
        return None
    from negbench.metrics import _kernels

    return _kernels
