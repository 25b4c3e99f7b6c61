"""Run code in a child process that dies at its n-th change to the disk."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

# audit events, which come before the change; a rename covers Path.replace
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.link", "os.truncate"}
NEVER = 10**9


def many(few: int, all_of_them: int) -> int:
    """Return how often to try: `few` in the suite, `all_of_them` under `make faults`."""
    return all_of_them if os.environ.get("NEGBENCH_FAULTS") else few


def spread(total: int, count: int) -> list[int]:
    """Return `count` numbers of 1..total at equal distances, with the last one; all numbers if there are fewer."""
    return sorted({total - round(number * total / count) for number in range(count)} - {0})


def moments(forked: Callable[..., Any], action: Callable[[], Any], folder: Path, at: int, *, torn: bool = False) -> int:
    """Run `action` in a child that kills itself just before the `at`-th change to `folder`; return how many came.

    Changes are files opened for writing, renamed or removed, folders made, and what is flushed to disk.

    Args:
        forked: the fixture, which starts the child.
        action: what the child does.
        folder: only changes below it count.
        at: from 1; `NEVER` for a child that ends by itself.
        torn: a child that dies at a flush leaves half of a new file, or an old one without its last bytes.
    """
    child = forked(partial(_act_and_count, action, str(folder), at, torn=torn))
    changes = len(child.communicate())
    code = child.returncode
    assert code == (0 if at == NEVER else -signal.SIGKILL), f"the child ended with {code} before moment {at}"
    return changes


def _act_and_count(action: Callable[[], Any], folder: str, at: int, *, torn: bool) -> None:
    """Run the action in this process, print a point for each change, and die at the `at`-th."""
    count = 0

    def is_last_moment() -> bool:
        nonlocal count
        count += 1
        os.write(1, b".")
        return count == at

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            changes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))
        else:
            path = arguments[0] if arguments else None
            changes = event in _CHANGES
        if not changes or not isinstance(path, str | bytes | os.PathLike):
            return
        if os.fsdecode(path).startswith(folder) and is_last_moment():
            os.kill(os.getpid(), signal.SIGKILL)

    def fsync(handle: int) -> None:
        if is_last_moment():
            file = f"/proc/self/fd/{handle}"
            if torn and os.path.isfile(file):  # noqa: PTH113
                size = os.fstat(handle).st_size
                new = os.readlink(file).endswith(".partial")  # noqa: PTH115
                os.truncate(file, size // 2 if new else max(0, size - 9))
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = fsync
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        sys.addaudithook(watch)
        action()
