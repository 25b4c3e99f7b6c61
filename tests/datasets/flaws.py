"""Write and damage files of a data set."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from negbench.errors import DataError

Files = dict[str, Any]  # relative path -> JSON value or raw bytes
Change = Callable[[Files], Any]  # alters the files


def write(root: Path, files: Files) -> Path:
    """Write every file below `root`."""
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return root


def put(*path: str | int, value: Any) -> Change:
    """Return a change that puts a value at a path: a file, and perhaps keys and indices within it."""

    def change(files: Files) -> None:
        *outer, key = path
        part: Any = files
        for name in outer:
            part = part[name]
        part[key] = value

    return change


def drop(*path: str | int) -> Change:
    """Return a change that takes away a file, or a key or an entry within it."""

    def change(files: Files) -> None:
        *outer, key = path
        part: Any = files
        for name in outer:
            part = part[name]
        del part[key]

    return change


def append(file: str, *path: str | int, value: Any) -> Change:
    """Return a change that adds an entry to a file that is a list, or to a list within it."""

    def change(files: Files) -> None:
        part = files[file]
        for name in path:
            part = part[name]
        part.append(value)

    return change


def check(
    subtests: pytest.Subtests,
    flaws: Mapping[str, tuple[Change, str]],
    files: Callable[[], Files],
    folder: Path,
    load: Callable[[Path], Any],
) -> None:
    """Check that every flaw (a change of the files, the expected message) is a one-line error."""
    for number, (flaw, (alter, message)) in enumerate(flaws.items()):
        with subtests.test(flaw=flaw):
            damaged_files = files()
            alter(damaged_files)
            with pytest.raises(DataError, match=message) as caught:
                load(write(folder / str(number), damaged_files))
            assert "\n" not in str(caught.value)
