"""Faults of the machine or the data: a run ends with one line, or with the numbers of an undisturbed run."""

import errno
import json
import math
import os
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kills import many, spread

from negbench.errors import NegbenchError
from negbench.machine.files import atomic_write, lock_file, write_json
from negbench.settings.config import RunConfig
from negbench.store.runfolder import RunFolder
from tests.runs import config_of, run

Rows = list[dict[str, Any]]


def result(config: RunConfig, runs: Path) -> tuple[Any, ...]:
    done = run(config, runs)
    return done.metrics, done.folder.metrics(), done.folder.ranks().to_json()


# --- the disk ---------------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_at_any_write(vector_sets, tmp_path, monkeypatch, every_epoch, subtests):
    """Nothing can be written from the n-th flush on; rerun with room, the command gives the same numbers."""
    config = config_of(vector_sets, "qure", "train.epochs=3")
    calls = 0

    def flush(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls >= first:
            raise OSError(errno.ENOSPC, "No space left on device")

    first = 10**9
    monkeypatch.setattr(os, "fsync", flush)
    want = result(config, tmp_path / "straight")
    for at in spread(calls, many(3, 10**6)):
        with subtests.test(at=at):
            runs = tmp_path / str(at)
            calls, first = 0, at
            with pytest.raises(NegbenchError, match=r"^cannot write .*: No space left on device$"):
                result(config, runs)
            assert not list(runs.rglob("*.partial")), f"write {at}"
            first = 10**9
            assert result(config, runs) == want, f"write {at}"


def as_nobody(action: Callable[[], object]) -> None:
    """Print the error of `action` for a user who may write nowhere; nothing if it succeeds."""
    try:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        action()
    except NegbenchError as error:
        print(error)
    except BaseException:
        print("TRACEBACK", traceback.format_exc())


def test_a_folder_that_cannot_be_written(forked, vector_sets, tmp_path):
    def error_of(action: Callable[[], object]) -> str:
        return str(forked(partial(as_nobody, action)).communicate())

    done = run(config_of(vector_sets, "qure"), tmp_path / "runs")
    vectors = Path(next(text for text in vector_sets if text.startswith("dataset.file=")).split("'")[1]).parent
    for folder in (vectors, tmp_path, *tmp_path.parents):
        if folder.owner() == tmp_path.owner() and folder != Path("/"):
            folder.chmod(0o755)
    for folder in (tmp_path / "runs", done.path):
        folder.chmod(0o555)
    path = done.path / "new.json"
    assert error_of(lambda: write_json(path, {})).startswith(f"cannot write {path}: Permission denied")
    assert "Permission denied" in error_of(lambda: lock_file(tmp_path / "runs" / "x.lock").__enter__())
    other = config_of(vector_sets, "qure", "seed=5")
    assert error_of(lambda: result(other, tmp_path / "runs")).startswith(f"cannot write {tmp_path / 'runs'}")
    assert error_of(lambda: RunFolder(done.path).ranks()) == ""  # reading needs no right to write
    for folder in (tmp_path / "runs", done.path):
        folder.chmod(0o755)


def test_a_writer_is_not_swept_and_a_dead_one_is(tmp_path):
    with atomic_write(tmp_path / "a.txt") as file:
        file.write("x")
        (tmp_path / ".b.txt.zzz.partial").write_bytes(b"half")
        with lock_file(tmp_path / ".lock"):
            (name,) = (path.name for path in tmp_path.glob("*.partial"))
        assert name.startswith(".a.txt.")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "x"


# --- the data ---------------------------------------------------------------------------------------------------------


def test_a_gallery_of_one_image(vector_sets, tmp_path):
    """One image is reference, target and gallery: the main metric is 1 and every metric is finite."""
    by_key = dict(text.split("=", 1) for text in vector_sets)
    lines = Path(by_key["dataset.file"].strip("'")).read_text(encoding="utf-8").splitlines()
    train = [line for line in lines if json.loads(line)["split"] == "train"]
    row = next(json.loads(line) for line in lines if json.loads(line)["split"] == "val")
    alone = json.dumps({**row, "reference": row["target"], "relevant": []})
    (tmp_path / "t.jsonl").write_text("\n".join([*train, alone]), encoding="utf-8")
    config = config_of(vector_sets, "qure", f"dataset.file='{tmp_path / 't.jsonl'}'")
    stored = run(config, tmp_path / "runs").folder.result
    assert [name for name, value in stored["metrics"].items() if not math.isfinite(value)] == []
    assert stored["metrics"][stored["main_metric"]] == 1
