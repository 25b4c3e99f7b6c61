"""Memory and disk that a computation needs: refuse it, with the arithmetic, if the machine has less."""

import math
import os
import shutil
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from negbench.errors import OptionError

MOVES_SCORES = False  # only refuses runs

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container


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
        """'drawn negatives: 48 queries x 1,000 draws x 8 bytes = 1 MiB'."""
        return f"{self.what}: {' x '.join(f'{n:,} {name}' for n, name in self.factors)} = {size(self.bytes)}"


def size(count: float) -> str:
    """Format bytes, such as '3 MiB', '1.2 GiB', '5.0 TiB'."""
    mebibytes = count / 2**20
    if mebibytes < 1024:
        return f"{max(1, round(mebibytes)):,} MiB"
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes < 1024**2 else f"{mebibytes / 1024**2:,.1f} TiB"


def device_named(name: str) -> torch.device:
    """Return the device that torch calls cpu, cuda, cuda:1, ...; raise OptionError if this machine has none."""
    try:
        device = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"--device {name}: {str(error).splitlines()[0]}") from error
    if device.type == "meta":
        raise OptionError("--device meta: it holds no numbers: use cpu or cuda")
    return device


def machine_memory() -> int:
    """Return the bytes of this machine's memory, or of the container's share of it."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _LIMITS:
        with suppress(OSError, ValueError):  # no such group, or "max"
            sizes.append(int(Path(name).read_text(encoding="ascii")))
    return min(sizes)


def check_memory(needs: Sequence[Need], device: torch.device | None = None) -> None:
    """Raise OptionError if the needs together exceed the memory of the GPU, or else of this machine."""
    on_gpu = device is not None and device.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if on_gpu else machine_memory()
    _check(needs, memory, f"of memory, {'the GPU' if on_gpu else 'this machine'} has {size(memory)}")


def check_unpacked(file: Path) -> None:
    """Raise OptionError if the arrays of an .npz file, unpacked, exceed this machine's memory.

    Raises:
        OSError, zipfile.BadZipFile: the file cannot be read.
    """
    with zipfile.ZipFile(file) as pack:
        total = sum(entry.file_size for entry in pack.infolist())
    check_memory([Need(f"arrays of {file}", ((total, "bytes"),), "this may be no file of embeddings")])


def check_disk(needs: Sequence[Need], folder: Path) -> None:
    """Raise OptionError if the needs together exceed the free space on the disk of `folder`."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    _check(needs, free, f"of disk, {folder} has room for {size(free)}")


def _check(needs: Sequence[Need], limit: int, against: str) -> None:
    total = sum(need.bytes for need in needs)
    if total > limit:
        largest = max(needs, key=lambda need: need.bytes)
        raise OptionError(f"this needs about {size(total)} {against} ({largest}): {largest.fix}")
