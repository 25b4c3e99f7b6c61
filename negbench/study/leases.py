"""Leases: which of the running trials still have a living worker.

A worker renews the lease of its trial from a thread while it computes. A trial is taken from its worker when that
process is provably gone (same machine, no such process any more), or when the lease has not been renewed for `GRACE`
seconds. Ages are differences of one clock, that of the shared folder or of the database, so machines need not agree on
the time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from negbench.errors import NegbenchError
from negbench.files import locked, read_json, write_json

BEAT = 10.0  # seconds between two renewals
GRACE = 60.0  # seconds without one after which a worker counts as dead


class Leases(Protocol):
    """Where the leases of a study's trials are kept."""

    def mutex(self) -> AbstractContextManager[None]:
        """Held by one worker of all machines at a time; let go of when its process dies."""

    def write(self, trial: int) -> None:
        """Take or renew the lease of a trial for this process."""

    def dead(self, trial: int) -> bool:
        """Whether the worker of a running trial is gone. Call it with the mutex held."""

    def drop(self, trial: int) -> None:
        """Forget the lease of a trial that has ended."""


def this_process() -> dict[str, Any]:
    """Identity of this process that no other one of its machine ever has: machine, pid, and when it was started."""
    return {"host": _host(), "pid": os.getpid(), "start": _started(os.getpid())}


def is_gone(process: dict[str, Any]) -> bool:
    """Whether a process of this machine has ended; False where that cannot be known from here."""
    if process["host"] != _host():
        return False
    return bool(_started(int(process["pid"])) != process["start"])


def _host() -> str:
    """Machine, its boot, and the process table that pids refer to (containers have their own)."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _started(pid: int) -> str:
    """When a process was started; '' where it is gone (or dead and not yet waited for)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
        return "running" if _answers(pid) else ""
    state, *fields = text.rpartition(")")[2].split()  # the name before it may hold spaces
    return "" if state in "ZX" else fields[18]


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@dataclass(frozen=True)
class FolderLeases:
    """Leases as files in the study's folder; their age is told by the file system's own clock.

    Args:
        folder: shared by all workers.
        grace: seconds.
    """

    folder: Path
    grace: float = GRACE

    def mutex(self) -> AbstractContextManager[None]:
        """A lock on a file."""
        return locked(self.folder / ".study.lock")

    def write(self, trial: int) -> None:
        """Write the file anew."""
        write_json(self._file(trial), this_process())

    def dead(self, trial: int) -> bool:
        """A trial without a lease is dead: its worker was killed between asking for it and taking the lease."""
        try:
            held = read_json(self._file(trial))
        except NegbenchError:
            return True
        if is_gone(held):
            return True
        clock = self.folder / "leases" / ".clock"
        clock.touch()
        return clock.stat().st_mtime - self._file(trial).stat().st_mtime > self.grace

    def drop(self, trial: int) -> None:
        """Remove the file."""
        self._file(trial).unlink(missing_ok=True)

    def _file(self, trial: int) -> Path:
        return self.folder / "leases" / f"{trial}.json"


@contextlib.contextmanager
def renewed(write: Callable[[], None], every: float = BEAT) -> Iterator[None]:
    """Call `write` every so many seconds from a thread while the block runs; a write that fails is tried again."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(every):
            with contextlib.suppress(Exception):
                write()

    thread = threading.Thread(target=beat, daemon=True, name="lease")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
