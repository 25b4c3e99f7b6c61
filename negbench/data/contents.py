"""SHA-256 of image files, cached so that an unchanged file is not read again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from negbench.errors import DataError, NegbenchError
from negbench.machine.files import atomic_write, locked, read_json, seal, sha256_of

SETTLED = 2 * 10**9  # ns after which a file's modification time distinguishes it from its next version
Stamped = list[int | str]  # size, modification time in ns, SHA-256


def content_hashes(images: Mapping[str, Path], root: Path) -> dict[str, bytes]:
    """Return id -> SHA-256 of the file's bytes.

    A file with the path, size and modification time of an earlier call is not read again: its hash is cached under
    `root`, in a sealed folder. A file written a moment ago is not cached: its next version may have the same size and
    time.

    Raises:
        DataError: files are missing or cannot be read.
    """
    memory = root / "features" / "hashes.json"
    known = _remembered(memory)
    stamped: dict[str, Stamped] = {}
    unread: list[tuple[str, str, list[int]]] = []
    absent: list[tuple[str, Path]] = []
    for image, path in images.items():
        name = os.path.abspath(path)  # noqa: PTH100  # Path.absolute() takes ten times as long
        try:
            status = os.stat(name)  # noqa: PTH116
        except OSError:
            absent.append((image, path))
            continue
        stamped[image] = known.get(name, [])
        if stamped[image][:2] != (stamp := [status.st_size, status.st_mtime_ns]):
            unread.append((image, name, stamp))
    if absent:
        image, path = absent[0]
        raise DataError(f"{len(absent)} of {len(images)} images have no file, the first: '{image}' at {path}")
    now, fresh = time.time_ns(), dict[str, Stamped]()
    with ThreadPoolExecutor(8) as pool:
        hashes = pool.map(_file_sha256, (name for _, name, _ in unread))
        for (image, name, stamp), value in zip(unread, hashes, strict=True):
            stamped[image] = [*stamp, value]
            if now - stamp[1] > SETTLED:
                fresh[name] = stamped[image]
    if fresh:
        seal(memory.parent)
        with locked(memory.with_suffix(".lock")), atomic_write(memory) as file:
            file.write(json.dumps(_remembered(memory) | fresh))
    return {image: bytes.fromhex(str(held[2])) for image, held in stamped.items()}


def _remembered(memory: Path) -> dict[str, Stamped]:
    """Return path -> its cached entry; nothing if the cache is damaged, so that it is rebuilt."""
    try:
        known: dict[str, Stamped] = read_json(memory) if memory.exists() else {}
    except NegbenchError:
        return {}
    return known


def _file_sha256(name: str) -> str:
    try:
        return sha256_of(Path(name))
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror}") from error
