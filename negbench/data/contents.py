"""What image files hold: SHA-256 of their bytes, remembered so that an unchanged file is not read again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from negbench.errors import DataError, NegbenchError
from negbench.files import locked, sha256_of

SETTLED = 2 * 10**9  # ns after which a file's modification time tells it from its next version


def content_hashes(images: Mapping[str, Path], root: Path) -> dict[str, bytes]:
    """Id -> SHA-256 of the file's bytes.

    A file whose path, size and modification time are those of an earlier call is not read again: `root` keeps what it
    held, one line per file, appended to. Each line bears its own checksum (one that is torn or damaged is skipped), and
    a file that was written a moment ago gets none: its next version may have the same size and time.

    Raises:
        DataError: files that are not there or cannot be read.
    """
    memory = root / "features" / "hashes.txt"
    known = _remembered(memory)
    found: dict[str, bytes] = {}
    unread: list[tuple[str, str, str]] = []
    absent: list[tuple[str, Path]] = []
    for image, path in images.items():
        name = os.path.abspath(path)  # noqa: PTH100  # Path.absolute() takes ten times as long
        try:
            status = os.stat(name)  # noqa: PTH116
        except OSError:
            absent.append((image, path))
            continue
        stamp = f"{status.st_size} {status.st_mtime_ns} {_line(name)}"
        if stamp in known:
            found[image] = known[stamp]
        else:
            unread.append((image, name, stamp))
    if absent:
        image, path = absent[0]
        raise DataError(f"{len(absent)} of {len(images)} images have no file, the first: '{image}' at {path}")
    with ThreadPoolExecutor(8) as pool:
        for begin in range(0, len(unread), 4096):
            part, now = unread[begin : begin + 4096], time.time_ns()
            hashes = list(pool.map(_file_sha256, (name for _, name, _ in part)))
            found.update((image, bytes.fromhex(h)) for (image, _, _), h in zip(part, hashes, strict=True))
            settled = [
                f"{h} {stamp}"
                for (_, _, stamp), h in zip(part, hashes, strict=True)
                if now - int(stamp.split(" ", 2)[1]) > SETTLED
            ]
            _remember(memory, settled)
    return {image: found[image] for image in images}


def _line(path: str) -> str:
    """`path` on one line of text, whatever bytes it holds."""
    return path if path.isascii() and path.isprintable() else json.dumps(path)


def _remembered(memory: Path) -> dict[str, bytes]:
    """From a line's size, mtime and path to its SHA-256; a later line wins."""
    try:
        lines = memory.read_text(encoding="ascii", errors="replace").split("\n")
    except FileNotFoundError:
        return {}
    known = {}
    for line in lines:
        check, _, told = line.partition(" ")
        if told and check == _line_check(told):
            known[told[65:]] = bytes.fromhex(told[:64])
    return known


def _line_check(told: str) -> str:
    """64 bits that a damaged line does not match."""
    return hashlib.sha256(told.encode("ascii", "replace")).hexdigest()[:16]


def _remember(memory: Path, lines: Sequence[str]) -> None:
    if not lines:
        return
    text = "\n".join(f"{_line_check(line)} {line}" for line in lines)
    try:
        with locked(memory.with_suffix(".lock")), memory.open("a", encoding="ascii") as file:
            file.write(f"\n{text}\n")  # starts a line of its own, should the last one be torn
    except OSError as error:
        raise NegbenchError(f"cannot write {memory}: {error.strerror}; set NEGBENCH_CACHE to another folder") from error


def _file_sha256(name: str) -> str:
    try:
        return sha256_of(Path(name))
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror}") from error
