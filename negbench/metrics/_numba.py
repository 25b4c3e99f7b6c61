"""Compiling by numba, and the folder that keeps the machine code for other processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from negbench.machine.files import cache_dir


def code_folder() -> Path | None:
    """Where machine code is kept, as making it takes some 8 s; None where the cache folder cannot be written."""
    folder = cache_dir() / "numba"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, and keep the machine code in negbench's cache folder for other processes."""
    import numba

    settings: Any = numba.config  # its names are made when it is imported
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(code_folder())
    try:
        made: Callable[..., Any] = numba.njit(nogil=True, cache=True)(function)
    finally:
        settings.CACHE_DIR = before
    return made
