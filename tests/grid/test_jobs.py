"""`--executor jobs:FOLDER`: what is handed out, collected and given up, and the plain shell loop with a kill."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from negbench import api
from negbench.cli.main import run as negbench
from negbench.errors import NegbenchError, OptionError, PendingError
from negbench.grid.cells import compute_task
from negbench.grid.jobs import Jobs, compute_line
from negbench.machine.files import read_json, write_json
from negbench.machine.signals import Stopped
from negbench.settings.options import Compare, Study
from negbench.store.copies import NOTE
from negbench.store.parents import restore
from negbench.store.tracking import Tracker

ROOT = Path(__file__).parents[2]


def command_of(vector_flags: Sequence[str], folder: Path, *more: str) -> list[str]:
    asked = ["compare", "--strategies", "top-k,in-batch", "--seeds", "1", "--lr", "fixed", "--name", "c", "--no-report"]
    where = ["--runs-dir", str(folder / "runs"), "--executor", f"jobs:{folder / 'jobs'}"]
    return [*asked, *vector_flags, *where, *more]


def test_the_next_call_collects_what_jobs_computed(vector_flags, tmp_path, capsys, before_training):
    """One cell fails, is told, and is handed out again by the call after that; a job that dies is repeated once.

    In MLflow the comparison is scheduled while cells are left, and finished once they are collected.
    """
    command, jobs = command_of(vector_flags, tmp_path), tmp_path / "jobs"
    tracker = Tracker.open(tmp_path / "runs")

    def state() -> str:
        return tracker.state(tmp_path / "runs" / "c" / NOTE)

    def dying(run: Any) -> None:
        raise NegbenchError("mend this") if run.config.strategy.name == "top-k" else Stopped(15)

    before_training(dying)
    assert negbench(command) == 75
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "NUMBER" in line]
    assert line == f"negbench: run `python -m negbench.grid.jobs {jobs} NUMBER` for 0 to 1, then this command again"
    assert state() == "SCHEDULED"
    assert compute_line(jobs, 0).value == "mend this"
    for _ in range(2):
        with pytest.raises(Stopped):
            compute_line(jobs, 1)
        ended = negbench(command)
        error = capsys.readouterr().err
        if ended == 75:  # only the one that died is left
            assert "for 0 to 0, then" in error
            (jobs / "cells.jsonl").write_text("\n" + (jobs / "cells.jsonl").read_text())
    assert ended == 2
    assert "top-k bradley-terry seed 0: mend this" in error
    assert "in-batch bradley-terry seed 0: its job died, 2 times" in error
    assert "2 of 2 cells failed" in error
    before_training(lambda run: None)
    assert state() == "FINISHED"
    assert negbench(command) == 75
    assert [line.partition(" that")[0] for _ in range(2) for line in restore(tracker)] == ["copied the summary of c"]
    assert {compute_line(jobs, number).kind for number in (0, 1)} == {"done"}
    assert [path.name for path in jobs.iterdir()] == ["cells.jsonl"]
    assert state() == "SCHEDULED"
    assert negbench(command) == 0
    assert state() == "FINISHED"
    with pytest.raises(NegbenchError, match="has lines 0 to 1, not 2"):
        compute_line(jobs, 2)
    row = json.loads((jobs / "cells.jsonl").read_text().splitlines()[0])
    (jobs / "cells.jsonl").write_text(json.dumps({**row, "hash": "0" * 64}))
    assert "sync them" in compute_line(jobs, 0).value


def test_what_cannot_be_handed_out(tmp_path):
    for asked in (Study(strategy="dqe", executor=f"jobs:{tmp_path}"), Compare(tuned=2, executor=f"jobs:{tmp_path}")):
        with pytest.raises(OptionError, match="--executor jobs computes cells, and trials follow from each other"):
            (api.study if isinstance(asked, Study) else api.compare)(asked)  # type: ignore[operator]
    for given in ({"executor": "jobs:x", "workers": 2}, {"executor": "jobs"}, {"executor": "jobs:"}):
        with pytest.raises(OptionError, match="takes the folder, and neither"):
            api.compare(Compare(**given))
    planned = SimpleNamespace(hash="a" * 64, config=SimpleNamespace(model_dump=lambda mode: {}))
    task: Any = SimpleNamespace(planned=planned, runs=tmp_path, uri="http://me:secret@host", tags={})
    with pytest.raises(OptionError, match="--tracking-uri has a password"):
        list(Jobs(tmp_path).run(compute_task, [task]))
    assert not list(tmp_path.iterdir())
    task.uri = "none"
    write_json(tmp_path / f"{'a' * 16}.json", {"starts": 1, "error": ""})
    with pytest.raises(PendingError):
        list(Jobs(tmp_path).run(compute_task, [task]))
    assert [event.value for event in Jobs(tmp_path, retries=0).run(compute_task, [task])] == ["its job died"]


@pytest.mark.slow
@pytest.mark.skipif("NEGBENCH_FAULTS" not in os.environ, reason="takes half a minute: `make faults`")
def test_the_shell_loop_gives_the_runs_of_one_process_although_a_job_is_killed(vector_flags, tmp_path):
    """The first job is killed while it trains; the second one resumes its run."""
    flags = [*vector_flags, "--set", "train.epochs=150", "--tracking-uri", "none"]
    command = command_of(flags, tmp_path, "--strategies", "top-k")
    killing = tmp_path / "python"
    killing.write_text(f"""#!/bin/sh
if mkdir {tmp_path}/once 2> /dev/null; then
    {sys.executable} "$@" & job=$!
    until ls {tmp_path}/runs/*/config.json 2> /dev/null; do sleep 0.02; done
    kill -9 $job
else
    exec {sys.executable} "$@"
fi
""")
    killing.chmod(0o755)
    loop = ["sh", str(ROOT / "examples" / "jobs_loop.sh"), str(tmp_path / "jobs")]
    program = [sys.executable, "-m", "negbench"]
    environment = {**os.environ, "PYTHON": str(killing)}
    done = subprocess.run([*loop, *program, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "once").exists()
    assert negbench([*command_of(flags, tmp_path / "alone", "--strategies", "top-k"), "--executor", "pool"]) == 0
    both = [folder / "runs" for folder in (tmp_path, tmp_path / "alone")]
    (cell,), (same,) = (read_json(runs / "c" / "comparison.json")["cells"] for runs in both)
    assert cell == same
    results = [read_json(runs / cell["run"] / "result.json")["metrics"] for runs in both]
    assert results[0] == results[1]
