"""SIGTERM, SIGHUP and Ctrl-C end a command in the same way: by an exception, so that everything is closed in order.

Python ignores exceptions raised in a destructor or a weak-reference callback. So the signal is also recorded, and long
computations check the record: the steps of a run, the executors, a worker between tasks.
"""

import os
import signal
import time
from types import FrameType

from negbench.errors import cause_among

MOVES_SCORES = False  # only ends processes

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_noted: list[tuple[int, float]] = []  # number and time of the first signal


class Stopped(BaseException):
    """A signal asked the process to end. No `KeyboardInterrupt`, which libraries handle in their own ways."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def code(self) -> int:
        """Exit code, as a shell reports the signal."""
        return 128 + self.number


def stop_on_signals(once: float = 1.0) -> None:
    """Make the first of these signals raise `Stopped`, and a second one end the process at once.

    A signal that was ignored when the process started (nohup) stays ignored.

    Args:
        once: seconds in which several signals count as one: `timeout` and schedulers signal a process and its group.
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
    """Raise `Stopped` if a signal came whose exception got lost."""
    if _noted:
        raise Stopped(_noted[0][0])


def ending_of(error: BaseException) -> BaseException | None:
    """Return the request to end that an error stems from, even if a library replaced it; None for other errors."""
    return cause_among(error, (KeyboardInterrupt, Stopped))
