"""Where a study lies, and its locks: let go of by the kernel, or by the database server, when their holder dies."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import optuna
import sqlalchemy
from optuna.storages.journal import JournalFileBackend

from negbench.errors import OptionError
from negbench.files import locked

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
        raise OptionError(f"--storage {given!r}: want postgresql://USER@HOST/DATABASE, or nothing for a journal file")
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


def shown_url(url: str) -> str:
    """The storage without its password, which PGPASSWORD or ~/.pgpass can give as well."""
    if "://" not in url:
        return url
    return sqlalchemy.make_url(url).set(password=None).render_as_string(hide_password=False)


def open_storage(url: str, study: str, folder: Path) -> tuple[Any, Hold]:
    """The storage, made if absent, and the locks of a study in it.

    Raises:
        OptionError: a database that cannot be reached, or whose driver is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
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
        reason = str(getattr(error, "orig", error)).splitlines()[0]
        raise OptionError(f"--storage {url.partition('://')[0]}://...: cannot be opened: {reason}") from error
    lock: Any = _JournalLock(Path(url))
    journal = JournalFileBackend(url, lock_obj=lock)
    return optuna.storages.JournalStorage(journal), partial(_file_lock, folder)


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

    What a killed writer left of a line is cut off, before the next line would be glued to it.
    """

    def __init__(self, journal: Path) -> None:
        self._journal, self._held = journal, ExitStack()

    def acquire(self) -> bool:
        """Wait for it."""
        self._held.enter_context(locked(self._journal.with_name(f".{self._journal.name}.lock")))
        with self._journal.open("rb+") as file:
            if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Let go."""
        self._held.close()
