"""Room: what a computation needs of the machine's memory and disk, refused with the arithmetic where there is less."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from negbench.errors import OptionError

MOVES_SCORES = False  # what is refused has no scores

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container


@dataclass(frozen=True)
class Need:
    """Bytes that something takes, as a product.

    Attributes:
        what: it is.
        factors: (number, what there are so many of); the last one is bytes.
        mend: what makes it smaller.
    """

    what: str
    factors: tuple[tuple[int, str], ...]
    mend: str

    @property
    def bytes(self) -> int:
        """The product."""
        return math.prod(count for count, _ in self.factors)

    def __str__(self) -> str:
        """'drawn negatives: 48 queries x 1,000 draws x 8 bytes = 1 MiB'."""
        return f"{self.what}: {' x '.join(f'{n:,} {name}' for n, name in self.factors)} = {size(self.bytes)}"


def size(count: float) -> str:
    """'3 MiB', '1.2 GiB', '5.0 TiB'."""
    mebibytes = count / 2**20
    if mebibytes < 1024:
        return f"{max(1, round(mebibytes)):,} MiB"
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes < 1024**2 else f"{mebibytes / 1024**2:,.1f} TiB"


def device_named(name: str) -> torch.device:
    """A device of this machine as torch calls it: cpu, cuda, cuda:1, ... Raises OptionError where there is none."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"--device {name}: {str(error).splitlines()[0]}") from error


def machine_memory() -> int:
    """Bytes of this machine's memory, or of the container's share of it."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _LIMITS:
        try:
            found.append(int(Path(name).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min(found)


def check_memory(needs: Sequence[Need], device: torch.device | None = None) -> None:
    """Raise OptionError where all of it together is more than the memory of a GPU, or else of this machine."""
    on_gpu = device is not None and device.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if on_gpu else machine_memory()
    _check(needs, memory, f"of memory, {'the GPU' if on_gpu else 'this machine'} has {size(memory)}")


def check_disk(needs: Sequence[Need], folder: Path) -> None:
    """Raise OptionError where all of it together is more than what is free on the disk of `folder`."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    _check(needs, free, f"of disk, {folder} has room for {size(free)}")


def _check(needs: Sequence[Need], limit: int, against: str) -> None:
    total = sum(need.bytes for need in needs)
    if total > limit:
        largest = max(needs, key=lambda need: need.bytes)
        raise OptionError(f"this needs about {size(total)} {against} ({largest}): {largest.mend}")
