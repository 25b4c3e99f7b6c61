"""Tasks of the tests of executors, in a file of their own because a worker imports all that a task's file imports."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from negbench.errors import NegbenchError


def task(value: Any, report: Any) -> Any:
    """Fail in the way that `value` names; otherwise report a note and return the worker's environment."""
    if value == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if value == "mistake":
        raise NegbenchError("mend this")
    if value == "fault":
        raise ValueError("ours")
    if value == "leave":
        os._exit(0)
    report(f"at {value}")
    return value * 2, os.environ.get("NEGBENCH_TOKEN"), os.environ.get("CUDA_VISIBLE_DEVICES"), str(Path.cwd())


def span(seconds: float, report: Any) -> tuple[float, float]:
    """Sleep and return the start and end times."""
    begun = time.time()
    time.sleep(seconds)
    return begun, time.time()


def meet(folder: Path, report: Any) -> None:
    """Import what cells need, then wait until two tasks have done so."""
    import negbench.grid.cells  # noqa: F401

    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.05)


class Deaf:
    """Loses a signal that arrives in its destructor, because Python ignores what a destructor raises."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)


def fall_asleep(seconds: float, report: Any) -> None:
    """Say so, and sleep."""
    report("asleep")
    time.sleep(seconds)


def lose_a_signal(task: None, report: Any) -> None:
    """Lose a signal."""
    Deaf()


def device_of(value: object, report: Any) -> str:
    if value == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)  # so that every worker gets a task
    return os.environ["CUDA_VISIBLE_DEVICES"]


def parent_of(value: int, report: Any) -> int:
    return os.getppid()


def pid_of(value: int, report: Any) -> int:
    return os.getpid()


def hang(pid_file: str, report: Any) -> None:
    Path(pid_file).write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(600)


def cling(pid_file: str, report: Any) -> None:
    """Run a task that cannot be stopped: it swallows every exception."""
    Path(pid_file).write_text(str(os.getpid()), encoding="utf-8")
    while True:
        try:
            time.sleep(600)
        except BaseException:
            continue


def close(file: str, report: Any, moment: float = 1.2) -> None:
    """Run a task that takes a moment to clean up, as with a tracking store on a busy machine."""
    try:
        hang(file, report)
    finally:
        time.sleep(moment)
        Path(file).write_text("closed", encoding="utf-8")


def close_at_once(file: str, report: Any) -> None:
    close(file, report, 0.2)
