"""How much memory this machine has, and how much of it this process may still take."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from negbench.errors import NegbenchError

MOVES_SCORES = False  # only refuses files and runs

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container
_TORCH = 7 * 2**29  # addresses that a process with torch maps, about
_GROUPS = Path("/sys/fs/cgroup")


def size(count: float) -> str:
    """Format bytes, such as '3 MiB', '1.2 GiB', '5.0 TiB'."""
    mebibytes = count / 2**20
    if mebibytes < 1024:
        return f"{max(1, round(mebibytes)):,} MiB"
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes < 1024**2 else f"{mebibytes / 1024**2:,.1f} TiB"


def machine_memory() -> int:
    """Return the bytes of this machine's memory, or of the container's share of it."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _LIMITS:
        with suppress(OSError, ValueError):  # no such group, or "max"
            sizes.append(int(Path(name).read_text(encoding="ascii")))
    return min(sizes)


def free_memory() -> int:
    """Return the bytes that this process may still take.

    That is the least of the machine's memory that is available, of what is left of the limit on its address space
    (RLIMIT_AS, `ulimit -v`), and of what is left to the control groups that it is in.
    """
    rooms = [machine_memory(), *_left_of_address_space(), *_left_to_groups()]
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/meminfo").read_text(encoding="ascii").split()
        rooms.append(1024 * int(fields[fields.index("MemAvailable:") + 1]))
    return max(0, min(rooms))


def check_addresses() -> None:
    """Raise NegbenchError if the limit on this process's address space is too low for torch.

    Below it torch ends a process, or one of its workers, without a word of Python.
    """
    limit = _address_space()
    if limit is not None and limit < _TORCH:
        raise NegbenchError(
            f"`ulimit -v` allows this process {size(limit)} of addresses, but torch alone maps about {size(_TORCH)}, "
            "most of which takes no memory: set it higher, or limit the memory itself, by a control group"
        )


def _address_space() -> int | None:
    """Return the limit on this process's address space (RLIMIT_AS); None if there is none."""
    import resource  # not on Windows

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def _left_of_address_space() -> Iterator[int]:
    """Yield what is left of the limit on the address space; nothing if there is none."""
    limit = _address_space()
    if limit is None:
        return
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        yield limit - pages * os.sysconf("SC_PAGE_SIZE")
        return
    yield limit


def _left_to_groups() -> Iterator[int]:
    """Yield what is left to each control group (version 2) of this process, from its own one up to the root."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        if not line.startswith("0::/"):
            continue
        group = _GROUPS / line.removeprefix("0::/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(_GROUPS):
                break
            with suppress(OSError, ValueError, IndexError):  # "max", or a group that does not count memory
                limit = int((folder / "memory.max").read_text(encoding="ascii"))
                used = int((folder / "memory.current").read_text(encoding="ascii"))
                fields = (folder / "memory.stat").read_text(encoding="ascii").split()
                cached = int(fields[fields.index("inactive_file") + 1])  # given back when memory is asked for
                yield limit - used + cached
