"""SHA-256 of files, cached so that an unchanged file is not read again."""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from negbench.errors import DataError, NegbenchError
from negbench.machine.files import atomic_write, inside_tar, lock_file, read_json, seal, sha256_of
from negbench.machine.viewed import plain_path

SETTLED = 2 * 10**9  # ns after which a file's times distinguish it from its next version
Stamped = list[int | str]  # size, time of modification and of the inode's change in ns, inode; then SHA-256


def content_hashes(images: Mapping[str, Path], root: Path) -> dict[str, bytes]:
    """Return id -> SHA-256 of the file's bytes.

    A file with the path, size, times and inode of an earlier call is not read again: its hash is cached under `root`,
    in a sealed folder. The inode and the time of its change show a file that was moved here, or whose modification time
    was set back. A file written a moment ago is not cached: its next version may have the same stamp.

    Raises:
        DataError: files are missing or cannot be read.
    """
    memory = root / "features" / "hashes.json"
    entries = read_entries(memory) if images else {}
    stamped: dict[str, Stamped] = {}
    unread: list[tuple[str, str, list[int]]] = []
    absent: list[tuple[str, Path]] = []
    for image, path in images.items():
        name = os.path.abspath(path)  # noqa: PTH100  # Path.absolute() takes ten times as long
        stamp_now = [*stamp(name)]
        if not stamp_now:
            absent.append((image, path))
            continue
        stamped[image] = entries.get(name, [])
        if stamped[image][:-1] != stamp_now:
            unread.append((image, name, stamp_now))
    if absent:
        image, path = absent[0]
        raise DataError(f"{len(absent)} of {len(images)} images have no file, the first: '{image}' at {path}")
    now = time.time_ns()
    fresh: dict[str, Stamped] = {}
    with ThreadPoolExecutor(8) as pool:
        hashes = pool.map(_file_sha256, (name for _, name, _ in unread))
        for (image, name, stamp_now), value in zip(unread, hashes, strict=True):
            stamped[image] = [*stamp_now, value]
            if now - max(stamp_now[1:3]) > SETTLED:
                fresh[name] = stamped[image]
    with suppress(NegbenchError):  # a cache that cannot be written: the files are read again
        if fresh:
            seal(memory.parent)
            with lock_file(memory.with_suffix(".lock")), atomic_write(memory) as file:
                file.write(json.dumps(read_entries(memory) | fresh))
    return {image: bytes.fromhex(str(entry[-1])) for image, entry in stamped.items()}


def stamp(path: Path | str) -> tuple[int, ...]:
    """Return size, times and inode of a file, one of which changes with it; () if there is none.

    Of a file inside a tar file, and of a picture as viewers show it (`machine.viewed`), those of the file that is read.
    """
    if "@" in str(path):
        member = inside_tar(path)
        if member is not None:
            tar, _, size = member
            return (size, *stamp(tar)[1:])
        path = plain_path(path) or path
    try:
        status = os.stat(path)  # noqa: PTH116  # of a string, in half the time
    except (OSError, ValueError):  # the latter: a null byte in its name
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def files_named_in(options: Iterable[object]) -> dict[Path, tuple[int, ...]]:
    """Return the files that options name, such as weights, with their stamps; of a folder, the files in it."""
    texts = [str(value) for value in options if isinstance(value, str | Path)]
    names: set[str] = set()
    for text in texts:
        names.update((text, *re.split("lavis:|,tower=|,key=|,prefix=", text)))
    stamps = {}
    for name in sorted(names - {""}):
        path = os.path.expanduser(name)  # noqa: PTH111  # Path's refuses "~nobody"
        if stamp(path):
            for file in sorted(Path(path).glob("*")) or [Path(path)]:
                stamps[file] = stamp(file)
    return stamps


def digest(files: Mapping[str, Path], root: Path) -> str:
    """Return a SHA-256 (hex) over ids and contents of files, in any order; see `content_hashes`. Empty for no files."""
    hashes = [(name, value.hex()) for name, value in sorted(content_hashes(files, root).items())]
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest() if files else ""


def read_entries(memory: Path) -> dict[str, Any]:
    """Return path -> its entry in a cache file; none if there is no such file or it is damaged: it is made again.

    A file that has not changed is parsed once: each split of each cell of a plan asks for it. Change no entry.
    """
    try:
        status = memory.stat()
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED:
            return _parse(memory, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        return _parse.__wrapped__(memory)
    except (NegbenchError, OSError):
        return {}


@lru_cache(maxsize=2)  # hashes, and kinds of pictures
def _parse(memory: Path, *version: int) -> dict[str, Any]:
    return dict(read_json(memory))


def _file_sha256(name: str) -> str:
    try:
        return sha256_of(Path(name))
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror or error}") from error
