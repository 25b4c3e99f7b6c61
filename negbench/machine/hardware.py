"""What this machine computes with, told without importing torch, which takes two seconds."""

import ctypes
import os
from pathlib import Path

MOVES_SCORES = False  # how many threads read files, and what `doctor` prints

_AMD = Path("/dev/kfd")
_NVIDIA = "libcuda.so.1"  # installed with the driver; torch itself opens it


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def has_gpu_driver() -> bool:
    """Whether the driver of a GPU is installed; without one, torch finds none."""
    if _AMD.exists():
        return True
    try:
        ctypes.CDLL(_NVIDIA)
    except OSError:
        return False
    return True
