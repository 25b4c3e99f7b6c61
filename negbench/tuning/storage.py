"""Where a study's trials lie, and its locks: the kernel, or the database server, releases them when a holder dies."""

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

# a minute after a machine was switched off, the server releases its locks
_KEEPALIVE = "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"


class Hold(Protocol):
    """Holds the lock `name` of a study while the block runs; the name is a folder in the study's folder."""

    def __call__(self, name: str = ".", *, wait: bool = True) -> AbstractContextManager[None]:
        """Raises BlockingIOError where somebody else holds it and `wait` is False."""


def storage_url(folder: Path, given: str | None) -> str:
    """Where the trials lie: the journal in the study's folder, or a database.

    Raises:
        OptionError: another database than PostgreSQL. One lock on the whole file makes the workers of sqlite fail.
    """
    if given is None:
        return str(folder / "optuna.journal")
    kind, sign, rest = given.partition("://")
    if not sign or kind.partition("+")[0] not in ("postgresql", "postgres"):
        raise OptionError(
            f"--storage {without_secrets(given)}: want postgresql://USER@HOST/DATABASE, or nothing for a journal file"
        )
    return f"postgresql+psycopg://{rest}"


def open_storage(url: str, study: str, folder: Path) -> tuple[Any, Hold]:
    """The storage, made if absent, and the locks of a study in it.

    Raises:
        OptionError: a database that cannot be reached, or whose driver is not installed.
        DamagedError: a journal that is not what was written.
    """
    if not folder.is_dir():
        seal(folder)
    if "://" not in url:
        return _journal(Path(url)), partial(_file_lock, folder)
    try:
        server = sqlalchemy.create_engine(
            url,
            isolation_level="AUTOCOMMIT",  # a transaction as long as a trial would keep the server from cleaning up
            poolclass=sqlalchemy.NullPool,
            connect_args={"options": _KEEPALIVE, "connect_timeout": 10},
        )
        with _server_lock(server, "", "tables"):  # two workers that make the tables at once fail
            storage = optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
        return storage, partial(_server_lock, server, study)
    except ImportError as error:
        raise OptionError("--storage postgresql://... needs psycopg: pip install 'negbench[postgresql]'") from error
    except sqlalchemy.exc.SQLAlchemyError as error:
        reason = without_secrets(str(getattr(error, "orig", error)).split("\n")[0])
        raise OptionError(f"--storage {url.partition('://')[0]}://...: cannot be opened: {reason}") from error


def _file_lock(folder: Path, name: str = ".", *, wait: bool = True) -> AbstractContextManager[None]:
    return locked(folder / name / ".lock", wait=wait)


@contextlib.contextmanager
def _server_lock(server: sqlalchemy.Engine, study: str, name: str = ".", *, wait: bool = True) -> Iterator[None]:
    """PostgreSQL's advisory lock on a number of ours; the server releases it with the connection that holds it."""
    key = int.from_bytes(hashlib.sha256(f"negbench {study} {name}".encode()).digest()[:8], "big", signed=True)
    take = sqlalchemy.text(f"select pg_{'' if wait else 'try_'}advisory_lock(:key)")
    with server.connect() as connection:
        if connection.execute(take, {"key": key}).scalar() is False:
            raise BlockingIOError
        yield


# --- the journal -------------------------------------------------------------------------------------------------


def _journal(path: Path) -> Any:
    lock: Any = _JournalLock(path)
    backend = JournalFileBackend(str(path), lock_obj=lock)
    lock.acquire()  # reading alone takes no lock: compare once before
    lock.release()
    try:
        return optuna.storages.JournalStorage(backend)
    except Exception as error:  # whatever records Optuna applies, of a journal that lost its hashes
        raise lock.damaged(f"{type(error).__name__}: {error}") from error


class _JournalLock:
    """Lock of a journal file that ends with its process; Optuna's own would block all others for 30 s after a kill.

    Each write adds the journal's length and SHA-256 to a file beside it: what was written must be there unchanged. The
    part of a line that a killed writer left is cut off, before the next line is glued to it.
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
            raise self.damaged(f"it does not match {self._sums.name} beside it")

    def damaged(self, why: str) -> DamagedError:
        """The error about a journal that cannot be trusted."""
        mend = "its trials cannot be trusted; put back a copy of the study's folder, or give another --name"
        return DamagedError(f"{self._journal} is damaged ({why}): {mend}")

    def release(self) -> None:
        """Note what was written, and let go."""
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
