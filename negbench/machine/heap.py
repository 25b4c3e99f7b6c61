"""Memory: what is freed stays in the process, where the C library is glibc; large tables are held once."""

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from functools import cache

from torch import Tensor

MOVES_SCORES = False  # the numbers in it stay the same

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_KEPT, _LARGEST = 2**28, 2**25  # bytes: what stays free at most, and what malloc takes from there at most (its limit)


@cache
def keep_memory() -> None:
    """Let malloc keep up to 256 MiB of freed memory: it returns large buffers, and zeroes the next one anew."""
    with suppress(OSError, AttributeError):  # another C library
        malloc_option = ctypes.CDLL(None).mallopt
        malloc_option(_MMAP_THRESHOLD, _LARGEST)
        malloc_option(_TRIM_THRESHOLD, _KEPT)


def put(tables: dict[str, Tensor], part: Mapping[str, Tensor], rows: Tensor, count: int) -> None:
    """Write [rows, ...] values into [count, ...] tables, made at the first part: concatenation holds all of it twice.

    Args:
        tables, part: by name; a table is on the device of its first part.
        rows: int64 places of the part's rows.
        count: rows of a table.
    """
    for name, value in part.items():
        if name not in tables:
            tables[name] = value.new_empty(count, *value.shape[1:])
        tables[name][rows] = value
