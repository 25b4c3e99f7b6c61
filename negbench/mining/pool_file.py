"""The pools of a refresh on disk, from which the next one tells how much they moved, and the audit what they hold.

An npy file, a row of bytes for each query: a bit for each image of its corpus, up to 65,536 images. A query of a larger
corpus takes 8 KiB whatever the corpus: the columns of a pool of up to 2,048 images, or a bit for each of 65,536 images
at even distances, from which the overlap of larger pools is estimated.
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
from negbench.files import atomic_write, intact

Bytes = NDArray[np.uint8]

_MOST = 2**16  # images that have a bit each
_LISTED = _MOST // 32  # columns that take the room of these bits
_HEAD = 4  # bytes in front, where corpora are larger: 1 + how many columns are listed, or 0


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
    return math.ceil(images / 8) if images <= _MOST else _HEAD + _MOST // 8


def _kept(images: int) -> slice | NDArray[np.int64]:
    """The columns that have a bit."""
    return slice(None) if images <= _MOST else np.arange(_MOST) * images // _MOST


def _headed(room: int) -> bool:
    return room > _MOST // 8


def packed(pool: NDArray[np.bool_], room: int) -> Bytes:
    """[b, n] pools -> [b, at most `room`] bytes, `room` being the task's."""
    images = pool.shape[1]
    bits = np.packbits(pool[:, _kept(images)], axis=1)
    if not _headed(room):
        return bits
    found = np.zeros((len(pool), room), np.uint8)
    found[:, _HEAD : _HEAD + bits.shape[1]] = bits
    if images > _MOST:
        for row in np.flatnonzero([np.count_nonzero(row) <= _LISTED for row in pool]):
            columns = np.flatnonzero(pool[row]).astype(np.int32)
            found[row] = 0
            found[row, : _HEAD + columns.nbytes] = np.append(np.int32(len(columns) + 1), columns).view(np.uint8)
    return found


def _listed(row: Bytes) -> NDArray[np.int32] | None:
    """The columns of a pool that is listed."""
    values = row.view(np.int32)
    return values[1 : values[0]] if values[0] else None


def unpacked(rows: Bytes, images: int) -> Tensor:
    """[b, n] bool: pools as they were packed; of one that is neither small nor in a small corpus, a sample of it."""
    if not _headed(rows.shape[1]):
        return torch.from_numpy(np.unpackbits(rows, axis=1, count=images).astype(np.bool_))
    pool = np.zeros((len(rows), images), np.bool_)
    for i, row in enumerate(np.ascontiguousarray(rows)):
        columns = _listed(row)
        if columns is None:
            pool[i, _kept(images)] = np.unpackbits(row[_HEAD:], count=min(images, _MOST))
        else:
            pool[i, columns] = True
    return torch.from_numpy(pool)


def overlap(now: Bytes, before: Bytes | None, images: int) -> Tensor:
    """[b] float32 Jaccard index of packed pools of a corpus; NaN without previous ones."""
    if before is None:
        return torch.full((len(now),), torch.nan)
    if not _headed(now.shape[1]):
        return torch.from_numpy(_shared(now, before))
    found = np.empty(len(now), np.float32)
    for i, (one, other) in enumerate(zip(now, np.ascontiguousarray(before), strict=True)):
        first, second = _listed(one), _listed(other)
        if first is not None and second is not None:
            both = len(np.intersect1d(first, second, assume_unique=True))
            found[i] = both / (len(first) + len(second) - both)
            continue
        sampled = [np.packbits(unpacked(row[None], images).numpy()[:, _kept(images)], axis=1) for row in (one, other)]
        found[i] = _shared(*sampled)[0]
    return torch.from_numpy(found)


def _shared(now: Bytes, before: Bytes) -> NDArray[np.float32]:
    both = np.bitwise_count(now & before).sum(1, dtype=np.int64)
    either = np.bitwise_count(now | before).sum(1, dtype=np.int64)
    return np.asarray(both / either, dtype=np.float32)


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
