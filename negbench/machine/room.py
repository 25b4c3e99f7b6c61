"""Memory and disk that a computation needs: refuse it, with the arithmetic, if the machine has less."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from negbench.errors import OptionError
from negbench.machine import free_memory
from negbench.machine.free_memory import size

MOVES_SCORES = False  # only refuses runs


@dataclass(frozen=True)
class Need:
    """Bytes that something takes, as a product.

    Attributes:
        what: name of what takes them.
        factors: (number, unit); the last unit is bytes.
        fix: how to reduce it.
    """

    what: str
    factors: tuple[tuple[int, str], ...]
    fix: str

    @property
    def bytes(self) -> int:
        """Product of the factors."""
        return math.prod(count for count, _ in self.factors)

    def __str__(self) -> str:
        """Return 'drawn negatives: 48 queries x 1,000 draws x 8 bytes = 1 MiB'."""
        product = " x ".join(f"{count:,} {unit}" for count, unit in self.factors)
        return f"{self.what}: {product} = {size(self.bytes)}"


def find_device(name: str) -> torch.device:
    """Return the device that torch calls cpu, cuda, cuda:1, ...; raise OptionError if this machine has none."""
    try:
        device = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"--device {name}: {str(error).splitlines()[0]}") from error
    if device.type == "meta":
        raise OptionError("--device meta: it holds no numbers: use cpu or cuda")
    return device


def check_memory(needs: Sequence[Need], device: torch.device | None = None) -> None:
    """Raise OptionError if the needs together exceed the memory of the GPU, or else of this machine."""
    if device is not None and device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        _check(needs, total, f"of memory, the GPU has {size(total)}")
    else:
        total = free_memory.machine_memory()
        _check(needs, total, f"of memory, this machine has {size(total)}")


def check_disk(needs: Sequence[Need], folder: Path) -> None:
    """Raise OptionError if the needs together exceed the free space on the disk of `folder`."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    _check(needs, free, f"of disk, {folder} has room for {size(free)}")


def _check(needs: Sequence[Need], limit: int, against: str) -> None:
    total = sum(need.bytes for need in needs)
    if total > limit:
        largest = max(needs, key=lambda need: need.bytes)
        raise OptionError(f"this needs about {size(total)} {against} ({largest}): {largest.fix}")
