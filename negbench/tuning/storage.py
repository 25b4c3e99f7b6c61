"""Where a study lies, and its locks: let go of by the kernel, or by the database server, when their holder dies."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

import optuna
import sqlalchemy
from optuna.storages.journal import JournalFileBackend

from negbench.errors import OptionError, without_secrets
from negbench.files import DamagedError, locked, seal

# after a minute without a sign of life the server lets go of the locks of a machine that was switched off
_KEEPALIVE = "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"


class Hold(Protocol):
    """Holds the lock `name` of a study while the block runs; the name is a folder in the study's folder."""

    def __call__(self, name: str = ".", *, wait: bool = True) -> AbstractContextManager[None]:
        """Raises BlockingIOError where it is held elsewhere, unless it is to wait."""


def storage_url(folder: Path, given: str | None, workers: int = 1) -> str:
    """Where the trials lie: the journal in the study's folder, or a database.

    Raises:
        OptionError: sqlite for several workers, or a database of another kind than the two that were tried.
    """
    if given is None:
        return str(folder / "optuna.journal")
    kind, sign, rest = given.partition("://")
    if not sign:
        raise OptionError("--storage: want postgresql://USER@HOST/DATABASE, or nothing for a journal file")
    if kind.partition("+")[0] in ("postgresql", "postgres"):
        return f"postgresql+psycopg://{rest}"
    if kind != "sqlite":
        raise OptionError(f"--storage {kind}://...: want postgresql://USER@HOST/DATABASE or sqlite:///FILE")
    if workers > 1:
        raise OptionError(
            "--storage sqlite://... with several workers: its one lock on the whole file makes them fail ('database is "
            "locked'), and over a network it loses writes; leave --storage out for a journal file, or take postgresql://"
        )
    return given


def open_storage(url: str, study: str, folder: Path) -> tuple[Any, Hold]:
    """The storage, made if absent, and the locks of a study in it.

    Raises:
        OptionError: a database that cannot be reached, or whose driver is not installed.
    """
    if not folder.is_dir():
        seal(folder)
    try:
        if url.startswith("postgresql"):
            server = sqlalchemy.create_engine(
                url,
                isolation_level="AUTOCOMMIT",  # a transaction as long as a trial would keep the server from cleaning up
                poolclass=sqlalchemy.NullPool,
                connect_args={"options": _KEEPALIVE},
            )
            with _server_lock(server, "", "tables"):  # two workers that make the tables at once fail
                storage = optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
            return storage, partial(_server_lock, server, study)
        if url.startswith("sqlite"):
            return optuna.storages.RDBStorage(url), partial(_file_lock, folder)
    except ImportError as error:
        raise OptionError("--storage postgresql://... needs psycopg: pip install 'negbench[postgresql]'") from error
    except sqlalchemy.exc.SQLAlchemyError as error:
        reason = without_secrets(str(getattr(error, "orig", error)).split("\n")[0])
        raise OptionError(f"--storage {url.partition('://')[0]}://...: cannot be opened: {reason}") from error
    lock: Any = _JournalLock(Path(url))
    journal = JournalFileBackend(url, lock_obj=lock)
    lock.acquire()  # reading alone takes no lock: compare once before
    lock.release()
    try:
        return optuna.storages.JournalStorage(journal), partial(_file_lock, folder)
    except Exception as error:  # of a journal without hashes, whatever its records are that optuna applies
        raise lock.damaged(f"{type(error).__name__}: {error}") from error


def _file_lock(folder: Path, name: str = ".", *, wait: bool = True) -> AbstractContextManager[None]:
    return locked(folder / name / ".lock", wait=wait)


@contextlib.contextmanager
def _server_lock(server: sqlalchemy.Engine, study: str, name: str = ".", *, wait: bool = True) -> Iterator[None]:
    """PostgreSQL's lock on a number of ours; it is gone with the connection that holds it."""
    key = int.from_bytes(hashlib.sha256(f"negbench {study} {name}".encode()).digest()[:8], "big", signed=True)
    take = sqlalchemy.text(f"select pg_{'' if wait else 'try_'}advisory_lock(:key)")
    with server.connect() as connection:
        if connection.execute(take, {"key": key}).scalar() is False:
            raise BlockingIOError
        yield


class _JournalLock:
    """Lock of a journal file that is let go of when its process dies; optuna's own then blocks all others for 30 s.

    Beside the journal lie its length and SHA-256 after every write: what was written once must be there unchanged.
    What a killed writer left of a line is cut off, before the next line would be glued to it.
    """

    def __init__(self, journal: Path) -> None:
        self._journal, self._held = journal, ExitStack()
        self._sums = journal.with_name(f".{journal.name}.sums")
        self._length, self._hash = 0, hashlib.sha256()  # of what this process has read

    def acquire(self) -> bool:
        """Wait for it; DamagedError where the journal does not begin with what was written before."""
        with ExitStack() as held:
            held.enter_context(locked(self._journal.with_name(f".{self._journal.name}.lock")))
            with self._journal.open("rb+") as file:
                self._compare(file)
                *lines, torn = file.read().split(b"\n")
                if not all(map(_is_json, lines)):
                    raise self.damaged("a line of it is no record")
                if torn:
                    file.truncate(file.tell() - len(torn))
            self._held = held.pop_all()
        return True

    def _compare(self, file: IO[bytes]) -> None:
        """Read what the newest whole line of the sums is about; the file is left behind it."""
        told = self._sums.read_bytes().split(b"\n")[:-1] if self._sums.exists() else []
        known = [line.split() for line in told if re.fullmatch(rb"\d{1,18} [0-9a-f]{64}", line)]
        length, digest = (int(known[-1][0]), known[-1][1].decode()) if known else (0, hashlib.sha256().hexdigest())
        file.seek(self._length)
        self._hash.update(file.read(max(0, length - self._length)))
        self._length = file.tell()
        if self._length != length or self._hash.hexdigest() != digest:
            raise self.damaged(f"it is not what {self._sums.name} beside it tells")

    def damaged(self, why: str) -> DamagedError:
        """The error about a journal that cannot be trusted."""
        mend = "its trials cannot be trusted; put back a copy of the study's folder, or give another --name"
        return DamagedError(f"{self._journal} is damaged ({why}): {mend}")

    def release(self) -> None:
        """Let go."""
        with self._journal.open("rb") as file, self._sums.open("ab") as sums:
            file.seek(self._length)
            if written := file.read():
                self._hash.update(written)
                self._length += len(written)
                sums.write(f"{self._length} {self._hash.hexdigest()}\n".encode())
        self._held.close()


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
