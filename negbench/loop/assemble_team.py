"""Assemble the team of a run of several processes (`negbench.machine.team`): start its helpers, and end them.

A helper is a process of its own that reads what it is to do from its standard input, which stays open as long as the
run's first process lives. It says "ready" before it joins, and if it fails, one line.
"""

import io
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from negbench.errors import NegbenchError, OptionError, PausedError
from negbench.loop.step_plan import StepPlan
from negbench.loop.types import OpenRun, PlannedRun
from negbench.machine.team import ALONE, Team
from negbench.store.runfolder import RunFolder

MOVES_SCORES = False  # starts processes

READY = "ready"
_PATIENCE = timedelta(days=7)  # helpers wait while the first process mines and ranks


@dataclass(frozen=True)
class TeamTask:
    """What a helper is to do in a team.

    Attributes:
        run: the run.
        folder: its folder.
        team: the helper's number, and how many processes there are.
        meeting: a file by which the processes find each other.
        plan, precision: how steps are computed.
    """

    run: PlannedRun
    folder: Path
    team: Team
    meeting: Path
    plan: StepPlan
    precision: str


def check_processes(count: int, device: torch.device) -> None:
    """Check that this machine can give each process of a run a GPU, and that nobody else has started several.

    Raises:
        NegbenchError: it cannot, or torchrun has.
    """
    started = os.environ.get("WORLD_SIZE", "")
    if "LOCAL_RANK" in os.environ and started.isdecimal() and int(started) > 1:
        raise NegbenchError(
            f"{started} processes of this command were started, as torchrun does: start it once, without torchrun, "
            f"with --set compute.processes={started}"
        )
    if count > 1 and device.type == "cuda" and torch.cuda.device_count() < count:
        raise OptionError(
            f"compute.processes = {count} needs as many GPUs, and this process sees {torch.cuda.device_count()}: "
            "--set compute.processes=1"
        )


@contextmanager
def assemble_team(run: OpenRun, folder: RunFolder) -> Iterator[Team]:
    """Yield the team of a run, with this process as its first; start its helpers, and end them with the block.

    Raises:
        PausedError: a helper has ended before; the run's checkpoint stays.
    """
    count = run.step_plan.processes
    if count == 1:
        yield ALONE
        return
    planned = PlannedRun(**{name: getattr(run, name) for name in PlannedRun.__dataclass_fields__})
    with tempfile.TemporaryDirectory(prefix="negbench-") as temporary:
        meeting = Path(temporary) / "meeting"
        teams = [Team(number, count) for number in range(count)]
        tasks = [TeamTask(planned, folder.path, team, meeting, run.step_plan, run.precision.name) for team in teams[1:]]
        helpers = [start_helper(task) for task in tasks]
        ending = threading.Event()
        if torch.cuda.is_available():  # elsewhere a collective fails by itself when its other side is gone
            for helper in helpers:
                threading.Thread(target=_interrupt_at_death, args=(helper, ending), daemon=True).start()
        try:
            for number, helper in enumerate(helpers, start=2):
                if not _says_ready(helper):
                    raise _error_of_end(number, helper, count)
            join(teams[0], meeting)
            yield teams[0]
        except RuntimeError as error:  # a collective whose other side is gone
            for number, helper in enumerate(helpers, start=2):
                if _ends_soon(helper):
                    raise _error_of_end(number, helper, count) from error
            raise
        finally:
            ending.set()
            for helper in helpers:
                if helper.poll() is None:
                    helper.kill()
                helper.wait()
            if dist.is_initialized():
                dist.destroy_process_group()


def join(team: Team, meeting: Path) -> None:
    """Meet the other processes of the team; all of them call this."""
    on_gpu = torch.cuda.is_available()
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        init_method=meeting.as_uri(),
        rank=team.number,
        world_size=team.count,
        timeout=_PATIENCE,
    )


def start_helper(task: TeamTask) -> Any:
    """Start a helper's process; its interface is that of `subprocess.Popen`, with pipes of text."""
    command = [sys.executable, "-P", "-m", "negbench.loop.helper"]
    helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert helper.stdin is not None
    pickle.dump(task, helper.stdin)
    helper.stdin.flush()
    assert helper.stdout is not None
    helper.stdout = io.TextIOWrapper(helper.stdout, encoding="utf-8")  # type: ignore[assignment]
    return helper


def _says_ready(helper: Any) -> bool:
    """Read what a helper prints until it is ready; False if it ends before."""
    return any(line.strip() == READY for line in helper.stdout)


def _ends_soon(helper: Any) -> bool:
    """Whether a helper ends within some seconds: a collective may fail a little before the process is gone."""
    deadline = time.monotonic() + 5.0
    while helper.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return helper.poll() is not None


def _interrupt_at_death(helper: Any, ending: threading.Event) -> None:
    """Wait for a helper's end; if the run goes on, end what this process waits for on its GPU."""
    helper.wait()
    if not ending.is_set() and torch.cuda.is_available() and dist.is_initialized():
        with suppress(Exception):  # it has ended meanwhile
            dist.distributed_c10d._abort_process_group()


def _error_of_end(number: int, helper: Any, count: int) -> PausedError:
    """Return the error that says how a helper ended."""
    code = helper.wait()
    lines = helper.stdout.read().strip().splitlines()
    if lines:
        why = lines[-1]
    elif code < 0:
        why = f"it was killed by signal {-code}"
    else:
        why = f"it ended with code {code}"
    return PausedError(
        f"process {number} of {count} of the run is gone: {why}; rerun the command: it resumes from its last checkpoint"
    )
