"""Compile with numba, and cache the machine code on disk for other processes, which check it before numba reads it."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from negbench.errors import NegbenchError
from negbench.machine.files import cache_dir, trust


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
    from numba.core.caching import FunctionCache

    class CheckedCache(FunctionCache):
        """Numba's files of one function: a damaged one would end the process."""

        def load_overload(self, *arguments: Any) -> Any:
            with suppress(NegbenchError):  # a folder that cannot be written
                with trust(Path(self.cache_path), self._impl.filename_base):
                    pass
                return super().load_overload(*arguments)  # type: ignore[no-untyped-call]

        def save_overload(self, *arguments: Any) -> None:
            with suppress(NegbenchError, OSError), trust(Path(self.cache_path), self._impl.filename_base):
                super().save_overload(*arguments)  # type: ignore[no-untyped-call]

    settings: Any = numba.config  # its attributes are created at import
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(code_folder())
    try:
        dispatcher: Any = numba.njit(nogil=True)(function)
        dispatcher._cache = CheckedCache(function)  # type: ignore[no-untyped-call]
    finally:
        settings.CACHE_DIR = before
    typed: Callable[..., Any] = dispatcher
    return typed
