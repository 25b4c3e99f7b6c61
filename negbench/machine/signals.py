"""SIGTERM, SIGHUP and Ctrl-C end a command in the same way: by an exception, so that everything is closed in order.

Python ignores what is raised while it runs a destructor or a callback of a weak reference. So the signal is noted, too,
and what runs long checks the note: the steps of a run, the executors, a worker between tasks.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from negbench.errors import cause_among

MOVES_SCORES = False  # how a process ends

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_noted: list[tuple[int, float]] = []  # number and time of the first signal


class Stopped(BaseException):
    """A signal asked the process to end; no `KeyboardInterrupt`, which libraries turn into endings of their own."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def code(self) -> int:
        """Exit code, as a shell reports the signal."""
        return 128 + self.number


def stop_on_signals(once: float = 1.0) -> None:
    """From now on the first of these signals raises `Stopped`, and a second one ends the process at once.

    A signal that was ignored when the process started (nohup) stays so.

    Args:
        once: seconds in which several count as one: `timeout` and schedulers send theirs to a process and to its group.
    """
    owner = os.getpid()
    _noted.clear()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked process that decodes images
            os._exit(128 + number)
        if not _noted:
            _noted.append((number, time.monotonic()))
            raise Stopped(number)
        if time.monotonic() - _noted[0][1] > once:
            os._exit(128 + number)

    for each in _ENDING:
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, stop)


def check_stopped() -> None:
    """Raise `Stopped` where a signal came whose exception got lost."""
    if _noted:
        raise Stopped(_noted[0][0])


def ending_of(error: BaseException) -> BaseException | None:
    """What asked the process to end, where a library raised an error of its own on the way out; None for any other."""
    return cause_among(error, (KeyboardInterrupt, Stopped))
