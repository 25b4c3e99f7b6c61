"""Files that survive a kill: atomic writes, locks, and where negbench keeps what it makes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

from negbench.errors import NegbenchError, quoted

MOVES_SCORES = False  # where things lie, not what they hold

_UMASK = os.umask(0)
os.umask(_UMASK)


def cache_dir() -> Path:
    """NEGBENCH_CACHE, or ~/.cache/negbench: data sets built on first use and stored features."""
    return Path(os.environ.get("NEGBENCH_CACHE") or Path.home() / ".cache" / "negbench")


def runs_dir(given: Path | None = None) -> Path:
    """`given`, or NEGBENCH_RUNS, or ./runs."""
    return Path(given or os.environ.get("NEGBENCH_RUNS") or "runs")


def checked_name(name: str, what: str) -> str:
    """`name` if it can be a folder of its own in the runs folder, else NegbenchError; `what` is the flag to blame."""
    if not re.fullmatch(r"[^\W_][\w.+=@-]{0,99}", name):
        raise NegbenchError(
            f"{what} {quoted(name)}: want a plain name of letters, digits, '-', '_' and '.', beginning with a letter "
            "or a digit, 100 characters at most"
        )
    return name


@contextlib.contextmanager
def atomic_write(path: Path, mode: Literal["w", "wb", "w+b"] = "w") -> Iterator[IO[Any]]:
    """Open a temporary sibling; on success it is flushed to disk and renamed to `path`, on failure removed.

    A reader therefore sees the old file or the new one, never half of one. Raises NegbenchError where the disk is full
    or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    except OSError as error:
        raise NegbenchError(f"cannot write {path}: {error.strerror or error}") from error
    temporary = Path(name)
    os.fchmod(handle, 0o666 & ~_UMASK)  # mkstemp's 0600 would keep a shared cache from its other users
    try:
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise NegbenchError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Atomic, indented, keys in the order given; NaN, which JSON does not have, is written as null."""
    with atomic_write(path) as file:
        json.dump(_without_nan(value), file, indent=2, allow_nan=False)
        file.write("\n")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def read_json(path: Path) -> Any:
    """Parsed content; NegbenchError where the file is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NegbenchError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise NegbenchError(f"{path} is damaged: {error}") from error


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on the file `path` (made if absent); the kernel lets go of it when the process dies.

    Raises:
        BlockingIOError: `wait` is False and another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
