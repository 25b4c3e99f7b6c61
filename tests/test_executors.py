"""Tasks in processes: order, failures, dead workers."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from negbench.errors import NegbenchError
from negbench.executors import Report, executor_of


def task(value: Any, report: Report) -> Any:
    if value == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if value == "mistake":
        raise NegbenchError("mend this")
    if value == "fault":
        raise ValueError("ours")
    report(f"at {value}")
    return value * 2


@pytest.mark.parametrize("workers", [1, 2])
def test_failures_stop_nothing(workers: int) -> None:
    tasks = [1, "mistake", 2, "fault", 3] + (["die", 4, "die", 5] if workers > 1 else [])
    events = list(executor_of(workers).run(task, tasks))
    ends = {e.index: e for e in events if e.kind != "note"}
    assert len(ends) == len(tasks)
    assert {tasks[i]: e.value for i, e in ends.items() if e.kind == "done"} == {
        n: 2 * n for n in tasks if isinstance(n, int)
    }
    assert ends[1].value == "mend this"
    assert ends[3].value == "ValueError: ours"
    assert "Traceback" in ends[3].detail
    if workers > 1:
        assert ends[5].value == ends[7].value == "its worker process died (killed by signal 9)"
    assert sorted(e.value for e in events if e.kind == "note") == sorted(f"at {n}" for n in tasks if isinstance(n, int))
