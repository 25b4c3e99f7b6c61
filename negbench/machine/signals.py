"""Signals and a time limit end a command in the same way: by an exception, so that everything is closed in order.

Signals are SIGTERM, SIGHUP, SIGUSR1 (schedulers send it before a job's time is up) and Ctrl-C. Python ignores
exceptions raised in a destructor or a weak-reference callback. So the signal is also recorded, and long computations
check the record: the steps of a run, the executors, a worker between tasks. A run's steps are not interrupted:
the one that is under way is finished, and a checkpoint written (`finishing`).
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from negbench.errors import cause_among, check_option

MOVES_SCORES = False  # only ends processes

APART = {"PYTHONSAFEPATH": "1"}  # environment of Python processes that we start: no imports from the current folder

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
UNTIL = "NEGBENCH_UNTIL"  # variable, which workers inherit: the time (of the epoch) at which a command ends by itself
_noted: list[tuple[int, float]] = []  # number and time of the first signal
_finishing = 0  # how many blocks of `finishing` are open


class Stopped(BaseException):
    """A signal asked the process to end. No `KeyboardInterrupt`, which libraries handle in their own ways."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def code(self) -> int:
        """Exit code, as a shell reports the signal."""
        return 128 + self.number


class TimeUp(Stopped):
    """The time limit of the command (`--max-hours`) has passed."""

    def __init__(self) -> None:
        super().__init__(signal.SIGTERM)
        self.args = ("--max-hours",)

    @property
    def code(self) -> int:
        """That of timeout(1)."""
        return 124


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
            if not _finishing:
                raise Stopped(number)
            return
        if time.monotonic() - _noted[0][1] > once:
            os._exit(128 + number)

    for signal_number in ENDING:
        if signal.getsignal(signal_number) != signal.SIG_IGN:
            signal.signal(signal_number, stop)


@contextmanager
def finishing() -> Iterator[None]:
    """In this block the first signal interrupts nothing: the block asks `stopping`, and calls `check_stopped`."""
    global _finishing
    _finishing += 1
    try:
        yield
    finally:
        _finishing -= 1
    check_stopped()


def limit_hours(hours: float) -> None:
    """End this command, and the workers that it starts, after so many hours: at their next call of `check_stopped`.

    Raises:
        OptionError: no time at all.
    """
    check_option("--max-hours", hours, hours > 0, "above 0")
    os.environ[UNTIL] = str(time.time() + 3600 * hours)


def stopping() -> bool:
    """Whether a signal came, or the time of the command is up."""
    return bool(_noted) or time.time() >= float(os.environ.get(UNTIL, "inf"))


def check_stopped() -> None:
    """Raise `Stopped` if a signal came whose exception got lost, or if the time of the command is up."""
    if _noted:
        raise Stopped(_noted[0][0])
    if stopping():
        raise TimeUp


def ending_of(error: BaseException) -> BaseException | None:
    """Return the request to end that an error stems from, even if a library replaced it; None for other errors."""
    return cause_among(error, (KeyboardInterrupt, Stopped))
