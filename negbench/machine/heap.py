"""Keep freed memory in the process, where the C library is glibc."""

import ctypes
from contextlib import suppress
from functools import cache

MOVES_SCORES = False  # the numbers in it stay the same

_TRIM_THRESHOLD = -1  # of glibc's malloc.h, as the next
_MMAP_THRESHOLD = -3
_KEPT = 2**28  # bytes that stay free at most
_LARGEST = 2**25  # bytes that malloc takes from there at most (its limit)


@cache
def keep_memory() -> None:
    """Let malloc keep up to 256 MiB of freed memory: it returns large buffers, and zeroes the next one anew."""
    with suppress(OSError, AttributeError):  # another C library
        malloc_option = ctypes.CDLL(None).mallopt
        malloc_option(_MMAP_THRESHOLD, _LARGEST)
        malloc_option(_TRIM_THRESHOLD, _KEPT)
