"""A really full disk (a small tmpfs) while features, checkpoints, MLflow and the report are written."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from negbench.cli.main import run as negbench
from negbench.errors import NegbenchError
from negbench.store.runfolder import RunFolder

SIZE = 8 * 2**20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of 8 MiB."""
    disk_folder = tmp_path / "disk"
    disk_folder.mkdir()
    if sys.platform != "linux":
        pytest.skip("a tmpfs is Linux's")
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(disk_folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield disk_folder
    subprocess.run(["umount", "-l", str(disk_folder)], check=True)


def fill(disk: Path, room: int) -> None:
    """Fill the disk until `room` bytes are free."""
    ballast = disk / "ballast"
    free = shutil.disk_usage(disk).free
    with ballast.open("ab") as file:
        file.write(b"\0" * max(0, free - room))
    assert shutil.disk_usage(disk).free <= room


def empty(disk: Path) -> None:
    (disk / "ballast").unlink()


def leftovers(disk: Path) -> list[Path]:
    return list(disk.rglob("*.partial"))


@pytest.mark.parametrize("room", [0, 100, 1000, 5000, 12_000, 20_000, 100_000, 800_000, 812_000, 813_000])
def test_a_checkpoint_for_which_there_is_no_room(room, tmp_path):
    """A checkpoint cut off anywhere by a limit on file sizes is a one-line error; the old one stays."""
    state = {"a": torch.zeros(3000), "b": {"x": torch.zeros(200_000)}, "c": "text"}
    folder = RunFolder(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder.write_checkpoint({"a": 1})
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(NegbenchError, match=r"^cannot write .*checkpoint.pt: File too large$"):
            folder.write_checkpoint(state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert leftovers(tmp_path) == []
    assert folder.checkpoint() == {"a": 1}


def test_the_report(subtests, vector_flags, disk, capsys, run_command):
    runs_flags = ["--runs-dir", str(disk / "runs")]
    grid = ["compare", "--lr=fixed", "--strategies", "qure", "--seeds", "1", "--name", "c", "--no-report"]
    assert negbench([*grid, *vector_flags, *runs_flags, "--tracking-uri", "none"]) == 0
    for room in (2**14, 2**16):  # amid the tables, amid the figures
        with subtests.test(room=room):
            fill(disk, room)
            capsys.readouterr()
            line = run_command("report", "c", *runs_flags, code=2).err.splitlines()[-1]
            assert line.startswith("negbench: error: ")
            assert "No space left on device" in line
            assert leftovers(disk) == []
            empty(disk)
            os.sync()
    assert negbench(["report", "c", *runs_flags]) == 0
    assert (disk / "runs" / "c" / "report" / "index.html").stat().st_size > 10_000
