"""The pools of a refresh on disk, from which the next refresh computes their overlap.

An npy file with a row per query: one bit per image of its corpus, packed into bytes.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from negbench.errors import NegbenchError
from negbench.machine.files import atomic_write, intact

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class PoolFiles:
    """Paths of a refresh's pools, and of an earlier refresh's pools of the same task, for the overlap.

    Give each refresh its own file, else a repeated refresh is compared with itself. A file appears only when it is
    complete.
    """

    written: Path | None = None
    previous: Path | None = None


NO_FILES = PoolFiles()


def row_bytes(images: int) -> int:
    """Return the bytes per query in a task whose largest corpus holds `images` images."""
    return math.ceil(images / 8)


def pack(pool: Tensor) -> Bytes:
    """Pack [b, n] bool pools into [b, n / 8] bytes, rounded up."""
    return np.packbits(pool.numpy(force=True), axis=1)


def overlap(now: Bytes, before: Bytes | None) -> Tensor:
    """Return [b] float32, the Jaccard index of packed pools; NaN without previous ones."""
    if before is None:
        return torch.full((len(now),), torch.nan)
    both = np.bitwise_count(now & before).sum(1, dtype=np.int64)
    either = np.bitwise_count(now | before).sum(1, dtype=np.int64)
    return torch.from_numpy(np.asarray(both / either, dtype=np.float32))


def _write_nothing(_rows: Tensor, _values: Bytes) -> None:
    pass


def _read_nothing(_rows: Tensor, _used: int) -> None:
    pass


@contextmanager
def write_pools(path: Path | None, shape: tuple[int, int]) -> Iterator[Callable[[Tensor, Bytes], None]]:
    """Yield a function that writes packed rows of queries; the file appears only if the block succeeds."""
    if path is None:
        yield _write_nothing
        return
    with atomic_write(path, "w+b") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        start = file.tell()
        file.flush()
        # allocate now: a full disk is an error here, but would kill the process at a write to mapped memory
        os.posix_fallocate(file.fileno(), 0, start + math.prod(shape))

        def write(rows: Tensor, values: Bytes) -> None:
            table = np.memmap(file, np.uint8, "r+", start, shape)  # anew each time, so that no page stays in memory
            table[rows.numpy(), : values.shape[1]] = values

        yield write


def read_pools(path: Path | None, shape: tuple[int, int]) -> Callable[[Tensor, int], Bytes | None]:
    """Return a function that reads the first bytes of queries' rows, or gives None without a file.

    Raises:
        NegbenchError: the file cannot be read, is damaged, or is of another task.
    """
    if path is None:
        return _read_nothing
    with intact(path, "move checkpoint.pt elsewhere to restart the run from its first epoch"):
        bits: Bytes = np.lib.format.open_memmap(path, mode="r")
    if bits.shape != shape or bits.dtype != np.uint8:
        raise NegbenchError(
            f"previous pools {path} belong to another task: they are {bits.shape} {bits.dtype}, not {shape} uint8"
        )

    def read(rows: Tensor, used: int) -> Bytes:
        stored: Bytes = np.lib.format.open_memmap(path, mode="r")
        return stored[rows.numpy(), :used]

    return read
