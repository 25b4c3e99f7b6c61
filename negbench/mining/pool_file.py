"""The pools of a refresh on disk, from which the next one tells how much they moved.

An npy file, a row for each query: a bit for each image of its corpus, in bytes.
"""

from __future__ import annotations

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
    """Where a refresh writes its pools, and where an earlier one of the same task wrote its own, for the overlap.

    Give each refresh its own file, else a refresh that is repeated compares with itself. A file appears only when it is
    complete.
    """

    written: Path | None = None
    previous: Path | None = None


NO_FILES = PoolFiles()


def row_bytes(images: int) -> int:
    """Room of a query in a task whose largest corpus holds so many images."""
    return math.ceil(images / 8)


def packed(pool: Tensor) -> Bytes:
    """[b, n] bool pools -> [b, n / 8] bytes, rounded up."""
    return np.packbits(pool.numpy(force=True), axis=1)


def overlap(now: Bytes, before: Bytes | None) -> Tensor:
    """[b] float32 Jaccard index of packed pools; NaN without previous ones."""
    if before is None:
        return torch.full((len(now),), torch.nan)
    both = np.bitwise_count(now & before).sum(1, dtype=np.int64)
    either = np.bitwise_count(now | before).sum(1, dtype=np.int64)
    return torch.from_numpy(np.asarray(both / either, dtype=np.float32))


@contextmanager
def written(path: Path | None, shape: tuple[int, int]) -> Iterator[Callable[[Tensor, Bytes], None]]:
    """A function that writes packed rows of queries; the file appears if the block ends well, else nothing is left."""
    if path is None:
        yield lambda rows, values: None
        return
    with atomic_write(path, "w+b") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        start = file.tell()
        file.flush()
        # take the room now: a full disk is an error here, but would kill the process at a write to mapped memory
        os.posix_fallocate(file.fileno(), 0, start + math.prod(shape))

        def write(rows: Tensor, values: Bytes) -> None:  # mapped anew each time, so that no page of it stays in memory
            np.memmap(file, np.uint8, "r+", start, shape)[rows.numpy(), : values.shape[1]] = values

        yield write


def opened(path: Path | None, shape: tuple[int, int]) -> Callable[[Tensor, int], Bytes | None]:
    """A function that reads so many bytes of rows of queries; None without a file.

    Raises:
        NegbenchError: it cannot be read, is damaged, or of another task.
    """
    if path is None:
        return lambda rows, used: None
    with intact(path, "delete checkpoint.pt beside it, and the run starts again from its first epoch"):
        bits: Bytes = np.lib.format.open_memmap(path, mode="r")
    if bits.shape != shape or bits.dtype != np.uint8:
        raise NegbenchError(
            f"previous pools {path} are of another task: they hold {bits.shape} {bits.dtype}, not {shape} uint8"
        )
    return lambda rows, used: np.lib.format.open_memmap(path, mode="r")[rows.numpy(), :used]
