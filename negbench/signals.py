"""SIGTERM, SIGHUP and Ctrl-C end a command in the same way: by an exception, so that everything is closed in order."""

from __future__ import annotations

import os
import signal
from types import FrameType

MOVES_SCORES = False  # how a process ends

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked the process to end; no `KeyboardInterrupt`, which libraries turn into endings of their own."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def code(self) -> int:
        """Exit code, as a shell reports the signal."""
        return 128 + self.number


def stop_on_signals() -> None:
    """From now on the first of these signals raises `Stopped`, and those after it cannot undo the way out.

    A signal that was ignored when the process started (nohup) stays so.
    """
    owner = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked process that decodes images
            os._exit(128 + number)
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for each in _ENDING:
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, stop)


def ending_of(error: BaseException) -> BaseException | None:
    """What asked the process to end, where a library raised an error of its own on the way out; None for any other.

    torch's zip writer does, when the signal comes while it writes a checkpoint.
    """
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt | Stopped):
        seen = seen.__cause__ or seen.__context__
    return seen
