"""Files that survive a kill and reveal damage: atomic writes, hashes, locks, and default folders."""

import contextlib
import fcntl
import glob
import hashlib
import io
import json
import logging
import math
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from negbench.errors import DataError, NegbenchError, cause_among, out_of_memory, short_repr
from negbench.machine.received import check_regular, check_text, open_regular, open_unbuffered, read_bytes, read_text
from negbench.machine.viewed import plain_path, shown_picture

MOVES_SCORES = False  # where files are, not what they contain

_RESERVED = {"artifacts", "mlflow.db", "mlflow-moved.db", *(f"mlflow.db-{end}" for end in ("journal", "shm", "wal"))}
_UMASK = os.umask(0)
os.umask(_UMASK)


def cache_dir() -> Path:
    """Return NEGBENCH_CACHE, or ~/.cache/negbench: holds data sets built on first use and stored features."""
    return Path(os.environ.get("NEGBENCH_CACHE") or Path.home() / ".cache" / "negbench")


def runs_dir(folder: Path | None = None) -> Path:
    """Return `folder`, or NEGBENCH_RUNS, or ./runs."""
    return Path(folder or os.environ.get("NEGBENCH_RUNS") or "runs")


def check_name(name: str, what: str) -> str:
    """Return `name` if it can be a folder in the runs folder, else raise NegbenchError that names the flag `what`."""
    if name in _RESERVED:
        raise NegbenchError(f"{what} {name}: the MLflow store of the runs folder has this name: give another --name")
    if not re.fullmatch(r"[^\W_][\w.+=@-]{0,99}", name):
        raise NegbenchError(
            f"{what} {short_repr(name)}: expected a plain name of letters, digits, '-', '_' and '.', starting with a "
            "letter or a digit, at most 100 characters"
        )
    return name


_ENDINGS = {  # of files that settings name; "openai/clip-vit-base" is no file
    *(".npz", ".npy", ".parquet", ".csv", ".tsv", ".json", ".jsonl", ".txt", ".trec", ".toml", ".py", ".tar", ".db"),
    *(".pt", ".pth", ".ckpt", ".bin", ".safetensors"),
}


def without_folders(text: str, *, prose: bool = False) -> str:
    """Return a label, a setting or a message with its paths cut to the names of their files.

    Names of folders may tell who computed something, and where; tables, pages and cards are for others.

    Args:
        text: such as `precomputed(images=../alice/images.npz)`; the names of a hub's models are no paths.
        prose: it is a sentence: a path ends at a blank.
    """
    stops = r"[^\s,=:()'\"]+" if prose else r"[^,=:()]+"
    return re.sub(stops, lambda match: _file_name(match[0]), text)


def _file_name(text: str) -> str:
    """Return the name of a file for a path, and any other text as it is."""
    path = Path(text.strip())
    if "/" not in text or text.startswith("//") or not path.name:  # the rest of a URL
        return text
    is_path = text.strip()[0] in "/~." or len(path.parts) > 2 or path.suffix.lower() in _ENDINGS
    with contextlib.suppress(OSError, ValueError):
        is_path = is_path or path.exists()
    return path.name if is_path else text


# --- writing -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def atomic_write(path: Path, mode: Literal["w", "wb", "w+b"] = "w", *, new: bool = False) -> Iterator[IO[Any]]:
    """Open a temporary sibling; on success it is flushed to disk and renamed to `path`, on failure removed.

    With `new`, a file that another process has put there meanwhile stays, and what is written here goes.

    A reader therefore sees the old file or the new one, never half of one. In a sealed folder (see `seal`) its hash is
    listed before the file appears. Raises NegbenchError if the disk is full or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = _temporary(path)
    except OSError as error:
        raise NegbenchError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if new:
                _put_new(temporary, path)
            else:
                if (path.parent / SUMS).exists():
                    # before its rename: a kill between the two leaves a listed file, old or new
                    _add_line(path.parent / SUMS, _sum_line(path.name, temporary))
                temporary.replace(path)  # within the block: closing the file releases its lock
        _sync_folder(path.parent)
    except NegbenchError:
        raise
    except Exception as error:
        refused = cause_among(error, (OSError,))
        if refused is None:
            raise
        raise NegbenchError(f"cannot write {path}: {refused.strerror or refused}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _put_new(temporary: Path, path: Path) -> None:
    """Give a file its name unless one has it."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return
    except OSError:  # a disk without hard links
        if not path.exists():
            temporary.replace(path)


def _temporary(path: Path) -> tuple[int, Path]:
    """Create a file beside `path`, locked while it is open: `sweep` leaves those of living processes alone."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
        with contextlib.suppress(OSError):  # a file system without locks: then no sweep removes anything either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if Path(name).exists():  # else a sweep removed it before it was locked
            os.fchmod(handle, 0o666 & ~_UMASK)  # mkstemp's 0600 would keep a shared cache from its other users
            return handle, Path(name)
        os.close(handle)


def sweep(folder: Path) -> list[Path]:
    """Remove the half-written files that killed processes left in `folder`; those of living ones stay."""
    removed = []
    for path in folder.glob(".*.partial"):
        # gone, being written, another user's, or no file
        with contextlib.suppress(OSError, DataError), open_regular(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            removed.append(path)
    return removed


def _sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that a rename in it survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> Path:
    """Write a file whole or not at all; returns its path."""
    with atomic_write(path) as file:
        file.write(text)
    return path


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, indented, keys in the order given; NaN, which JSON lacks, is written as null."""
    write_text(path, json.dumps(_without_nan(value), indent=2, allow_nan=False) + "\n")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


# --- checking ----------------------------------------------------------------------------------------------------

SUMS = "SHA256SUMS"  # a line for every write: SHA-256, two blanks, name
_DELETED = 64 * "0"  # listed instead of a hash
_FIX = "move its folder elsewhere and rerun the command that wrote it"
_CHUNK = 2**16  # bytes hashed at a time; hashlib.file_digest clears 2**18 for each file, and most files are smaller


class DamagedError(NegbenchError):
    """Error: a file's content is not what was written."""


@dataclass(frozen=True)
class DamagedFiles:
    """Names of files that a sealed folder lists: those that are gone, and those whose content differs."""

    missing: list[str]
    damaged: list[str]


def seal(folder: Path) -> None:
    """Make `folder` list the hash of every file that `atomic_write` puts there, for `intact` to compare.

    Creates the folder if absent; lists files that are already there as they are.
    """
    sums = folder / SUMS
    if sums.exists():
        return
    present = sorted(path for path in folder.glob("*") if path.is_file() and not path.name.startswith("."))
    with atomic_write(sums, new=True) as file:  # of two processes that seal it, one may have written a file already
        file.writelines(f"{_sum_line(path.name, path)}\n" for path in present)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, hexadecimal."""
    with open_file(path) as file:
        return _digest_of(file)


def _digest_of(file: io.FileIO | io.BufferedReader | io.BytesIO) -> str:
    digest = hashlib.sha256()
    while True:
        chunk = file.read(_CHUNK)
        if not chunk:
            return digest.hexdigest()
        digest.update(chunk)


def open_file(path: Path) -> io.BufferedReader | io.BytesIO:
    """Open a file to read it; so is one inside a tar file, named TAR/@OFFSET+SIZE/NAME, without unpacking.

    A picture named FOLDER/@shown/NAME is read as viewers show it (`machine.viewed`).
    """
    if "/@" not in str(path):
        return open_regular(path)
    plain = plain_path(path)
    if plain is not None:
        return io.BytesIO(shown_picture(plain))
    member = inside_tar(path)
    if member is None:
        return open_regular(path)
    tar, offset, size = member
    with open_regular(Path(tar)) as file:
        file.seek(offset)
        return io.BytesIO(file.read(size))


def inside_tar(path: Path | str) -> tuple[str, int, int] | None:
    """Return tar file, offset and size of a file inside a tar file; None for any other."""
    match = re.fullmatch(r"(?P<tar>.+\.tar)/@(?P<offset>\d+)\+(?P<size>\d+)/[^/]+", str(path))
    if match is None:
        return None
    return match["tar"], int(match["offset"]), int(match["size"])


def _sum_line(name: str, source: Path) -> str:
    return f"{sha256_of(source)}  {name}"


def delete(path: Path) -> None:
    """Delete a file that is no longer needed, and remove it from a sealed folder's list.

    Another process may delete the same file meanwhile.
    """
    if path.exists():
        if (path.parent / SUMS).exists():
            _add_line(path.parent / SUMS, f"{_DELETED}  {path.name}")
        path.unlink(missing_ok=True)


def _add_line(sums: Path, line: str) -> None:
    """Append a line to a folder's sums, behind a last line that a kill may have cut off."""
    check_regular(sums)
    with sums.open("rb+") as file, _hold_lock(file, sums, fcntl.LOCK_EX):
        end = file.seek(0, os.SEEK_END)
        start = b""
        if end > 0:
            file.seek(end - 1)
            if file.read(1) != b"\n":  # the last line was cut off
                start = b"\n"
        file.write(start + f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def flaw(path: Path) -> str | None:
    """Return what is wrong with a file of a sealed folder; None if nothing is, or if the folder is not sealed.

    Raises:
        OSError: the file is missing or cannot be read.
    """
    lines = _lines_of_sums(check_inside(path).parent)
    if lines is None:
        return None
    return _mismatch(path.name, sha256_of(path), lines)


def _mismatch(name: str, digest: str, lines: Sequence[str]) -> str | None:
    return None if f"{digest}  {name}" in lines else f"its content does not match {SUMS} beside it"


def flaws_in(folder: Path) -> DamagedFiles:
    """Compare each file that a sealed folder lists with its hash; the folder is listed and each file opened once."""
    missing: list[str] = []
    damaged: list[str] = []
    lines = _lines_of_sums(folder) or []
    with os.scandir(folder) as entries:
        present = {entry.name: entry for entry in entries if entry.is_file()}
    valid_lines = set(lines)  # a file that was written again has several
    for name in _names_of(lines):
        if name not in present:
            missing.append(name)
        elif f"{_digest_in(present[name])}  {name}" not in valid_lines:
            damaged.append(name)
    return DamagedFiles(missing, damaged)


def _digest_in(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return sha256_of(check_inside(Path(entry.path)))
    with open_unbuffered(entry.path, listed=True) as file:
        return _digest_of(file)


def missing_in(folder: Path) -> list[str]:
    """Return the names of the files that a sealed folder lists and has no more."""
    present = files_in(folder)
    return [name for name in names_in(folder) if name not in present]


def files_in(folder: Path) -> set[str]:
    """Return the names of the files in a folder, and of links to files."""
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries if entry.is_file()}


def sums_in(folder: Path) -> dict[str, str]:
    """Return name -> the last hash that a sealed folder lists; none if it is not sealed."""
    return _hashes_of(_lines_of_sums(folder) or [])


def names_in(folder: Path) -> list[str]:
    """Return the names of the files that a sealed folder lists, each once; none if it is not sealed."""
    return _names_of(_lines_of_sums(folder) or [])


def _lines_of_sums(folder: Path) -> list[str] | None:
    """Return the lines of a folder's sums, `HASH  NAME`; None if it is not sealed."""
    try:
        return read_text(check_inside(folder / SUMS), errors="replace").split("\n")
    except FileNotFoundError:
        return None


def _hashes_of(lines: Sequence[str]) -> dict[str, str]:
    return {line[66:]: line[:64] for line in lines if line[66:]}


def _names_of(lines: Sequence[str]) -> list[str]:
    return [name for name, value in _hashes_of(lines).items() if value != _DELETED]


@contextlib.contextmanager
def intact(path: Path, fix: str = _FIX) -> Iterator[Path]:
    """Read `path` in this block, after comparing it with its recorded hash.

    Args:
        path: a file that negbench wrote.
        fix: what to do about one whose hash differs; only then may it be deleted.

    Raises:
        DamagedError: its hash differs.
        NegbenchError: it is missing or cannot be read; says why.
        ImportError: reading it needs a package that is missing.
    """
    with _in_one_line(path, fix):
        _refuse(path, flaw(path), fix)
        yield path


def _refuse(path: Path, fault: str | None, fix: str) -> None:
    """Raise DamagedError if something is wrong with a file."""
    if fault:
        if path.name not in names_in(path.parent):
            raise DamagedError(f"{path} is not read: {SUMS} beside it does not list it")
        raise DamagedError(f"{path} is damaged ({fault}): {fix}")


@contextlib.contextmanager
def _in_one_line(path: Path, fix: str) -> Iterator[None]:
    """Say of what fails in this block, in one line, that the file cannot be read, why, and what to do with its content.

    A file without a sum beside it that cannot be parsed is as damaged as one whose sum differs: `fix` mends both.
    """
    try:
        yield
    except (NegbenchError, ImportError):
        raise
    except Exception as error:  # the kinds of json, parquet, zip, pickle, safetensors, and of memory and encodings
        why = getattr(error, "strerror", None) or (str(error) or type(error).__name__).split("\n")[0]
        advice = ""
        if path.name in names_in(path.parent):
            advice = "; its content is as it was written"
        elif isinstance(error, ValueError | RecursionError):
            advice = f": {fix}"
        raise NegbenchError(f"cannot read {path}: {out_of_memory(error) or why}{advice}") from error


def read_json(path: Path, fix: str = _FIX) -> Any:
    """Read what `write_json` wrote; errors as in `intact`."""
    with _in_one_line(path, fix):
        lines = _lines_of_sums(check_inside(path).parent)
        content = read_bytes(path)  # once: what is parsed is what was compared with its hash
        if lines is not None:
            _refuse(path, _mismatch(path.name, hashlib.sha256(content).hexdigest(), lines), fix)
        check_text(path, content)
        return json.loads(content.decode("utf-8-sig"))


@contextlib.contextmanager
def trust(folder: Path, name: str) -> Iterator[None]:
    """In this block, another program reads and writes its files `name.*` in `folder`; it finds none but its own.

    Files that are not as they were at the end of an earlier block are deleted first, which is said once.

    Raises:
        NegbenchError: a folder that cannot be written.
    """
    pattern = f"{glob.escape(name)}.*"
    with lock_file(folder / ".trusted.lock"):
        (folder / SUMS).touch()
        damaged = [path for path in folder.glob(pattern) if flaw(path)]
        if damaged:
            _say_once(f"{folder}: files are damaged, or listed in no {SUMS}; they are deleted and made again")
        for path in damaged:
            delete(path)
        yield
        for path in folder.glob(pattern):
            if flaw(path):
                _add_line(folder / SUMS, _sum_line(path.name, path))


@cache
def _say_once(text: str) -> None:
    logging.getLogger("negbench").warning(text)


# --- locks -------------------------------------------------------------------------------------------------------


def check_inside(path: Path) -> Path:
    """Return the path of a file in a run, comparison, study, job folder or cache, unless it is a link that leads out.

    What such a link leads to would be shown, copied or hashed as if it belonged to the folder.

    Raises:
        DataError: a link that leads out of the folder above the file's.
    """
    if path.is_symlink() and not path.resolve().is_relative_to(path.parent.parent.resolve()):
        raise DataError(f"{path} is a link that leads out of {path.parent.parent}: replace it by what it leads to")
    return path


def check_links(folder: Path) -> None:
    """Raise NegbenchError if the folder, or a file or folder in it, is a link that leads out of the folder above.

    A run, comparison or study from somebody else may hold such links; writing through one would change another file.
    """
    paths = [folder]
    for parent, folders, names in os.walk(folder):
        paths += [Path(parent, name) for name in (*folders, *names)]
    for path in paths:
        if path.is_symlink() and not path.resolve().is_relative_to(folder.parent.resolve()):
            raise NegbenchError(f"{path} is a link that leads out of {folder.parent}: replace it by what it leads to")


@contextlib.contextmanager
def lock_file(path: Path, *, wait: bool = True, shared: bool = False) -> Iterator[None]:
    """Hold a lock on the file `path` (made if absent); the kernel releases it when the process dies.

    Without `shared`, the holder also removes half-written files of killed processes from the folder.

    Args:
        path: the lock file.
        wait: wait for others to release it.
        shared: share the lock with other shared holders.

    Raises:
        BlockingIOError: `wait` is False and another process holds it.
        NegbenchError: a folder that cannot be written.
    """
    try:
        if path.name == ".lock":  # that of a whole folder
            check_links(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+")
    except OSError as error:
        raise NegbenchError(f"cannot write {path.parent}: {error.strerror or error}") from error
    way = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if not wait:
        way |= fcntl.LOCK_NB
    with file, _hold_lock(file, path, way):
        if not shared:
            sweep(path.parent)
        yield


SOFT = "NEGBENCH_LOCKS"  # "soft": a file beside the locked one stands for the lock


@contextlib.contextmanager
def _hold_lock(file: IO[Any], path: Path, way: int) -> Iterator[None]:
    """Lock an open file in this block; with NEGBENCH_LOCKS=soft, create PATH.soft in its place.

    A soft lock is exclusive even where `way` is shared. It outlives a kill -9 on another machine; on this one filelock
    sees that its process is gone.

    Raises:
        BlockingIOError: `way` does not wait, and another process holds the lock.
        NegbenchError: the file system has no locks, or NEGBENCH_LOCKS has another value.
    """
    kind = os.environ.get(SOFT)
    if kind:
        if kind != "soft":
            raise NegbenchError(f"{SOFT}={short_repr(kind)}: expected soft, or leave it unset for the system's locks")
        with _hold_softly(path, wait=not way & fcntl.LOCK_NB):
            yield
        return
    try:
        fcntl.flock(file, way)
    except BlockingIOError:
        raise
    except OSError as error:
        raise NegbenchError(
            f"cannot lock {path} ({error.strerror or error}): without locks two processes may compute the same run and "
            f"mix their files: use a disk that has locks, or set {SOFT}=soft, with which files named .soft stand for "
            "locks and one command at a time is safe"
        ) from error
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def _hold_softly(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold PATH.soft in this block; errors as in `_hold_lock`."""
    import filelock  # comes with torch

    lock = filelock.SoftFileLock(f"{path}.soft")
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except filelock.Timeout as error:
        raise BlockingIOError(f"another process holds {path}.soft") from error
    except OSError as error:
        raise NegbenchError(f"cannot write {path}.soft: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()
