"""Compile with numba, and cache the machine code on disk for other processes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from negbench.machine.files import cache_dir


def code_folder() -> Path | None:
    """Return the folder that caches machine code (compiling takes some 8 s); None if it cannot be written."""
    folder = cache_dir() / "numba"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, and keep the machine code in negbench's cache folder for other processes."""
    import numba

    settings: Any = numba.config  # its attributes are created at import
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(code_folder())
    try:
        made: Callable[..., Any] = numba.njit(nogil=True, cache=True)(function)
    finally:
        settings.CACHE_DIR = before
    return made
