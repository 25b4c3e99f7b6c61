"""Claims: one process computes a run, the others wait and read it; a dead one loses its claim."""

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from negbench.errors import RunError
from negbench.store.runfolder import RunFolder, best_of, claim_folder, new_folder, runs_of
from tests.made import RESULT

HASH = "0123456789abcdef"
NAME = f"run-{HASH[:8]}"


def manifest() -> dict[str, Any]:
    return {"hash": HASH, "config": {}}


def hold_claim(runs: str, pipe: Connection, finishes: bool) -> None:
    with claim_folder(Path(runs), NAME, HASH, manifest) as (folder, action):
        pipe.send((folder.run_id, action))
        pipe.recv()
        if finishes:
            folder.write_result(RESULT)
        else:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("finishes", [True, False])
def test_the_second_waits_for_the_first(tmp_path, finishes):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold_claim, args=(str(tmp_path), theirs, finishes))
    process.start()
    assert ours.recv() == (NAME, "anew")
    with pytest.raises(RunError, match="by another process"), RunFolder(tmp_path / NAME).lock():
        pytest.fail("two hold it")
    threading.Timer(0.4, ours.send, ["go on"]).start()
    started = time.monotonic()
    with claim_folder(tmp_path, NAME, HASH, manifest) as (folder, action):
        assert time.monotonic() - started > 0.2  # it waited
        assert (folder.run_id, action) == (NAME, "reuse" if finishes else "resume")
    process.join()
    assert [run.run_id for run in runs_of(tmp_path, HASH)] == [NAME]


def test_steps_of_a_claim(tmp_path):
    assert best_of(tmp_path, HASH) is None
    with claim_folder(tmp_path, NAME, HASH, manifest) as (folder, action):
        assert action == "anew"
        folder.write_error("mend this")
    with claim_folder(tmp_path, NAME, HASH, manifest) as (folder, action):
        assert (folder.run_id, action) == (f"{NAME}-2", "anew")  # the failed attempt is kept for inspection
        folder.write_result({**RESULT, "metrics": {"a": 1.0}})
    with claim_folder(tmp_path, NAME, HASH, manifest) as (folder, action):
        assert (folder.run_id, action) == (f"{NAME}-2", "reuse")
    late = new_folder(tmp_path, NAME)  # for example a copy
    late.write_manifest(manifest())
    late.write_result({**RESULT, "metrics": {"a": 2.0}})
    assert best_of(tmp_path, HASH) == late
    assert late.run_id == f"{NAME}-3"
    with claim_folder(tmp_path, NAME, "f" * 16, lambda: {"hash": "f" * 16}) as (folder, action):
        assert (folder.run_id, action) == (f"{NAME}-4", "anew")  # another run, whose name is taken
