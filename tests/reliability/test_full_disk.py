"""A disk or a quota that ends amid a file, by a limit on file sizes: checkpoints and the report."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from negbench.cli.main import run as negbench
from negbench.errors import NegbenchError
from negbench.store.runfolder import RunFolder


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("room", [0, 100, 1000, 5000, 12_000, 20_000, 100_000, 800_000, 812_000, 813_000])
def test_a_checkpoint_for_which_there_is_no_room(room, tmp_path):
    """A checkpoint that is cut off anywhere is a one-line error; the old one stays."""
    state = {"a": torch.zeros(3000), "b": {"x": torch.zeros(200_000)}, "c": "text"}
    folder = RunFolder(tmp_path)
    folder.write_checkpoint({"a": 1})
    message = r"^cannot write .*checkpoint.pt: File too large$"
    with limited_files(room), pytest.raises(NegbenchError, match=message):
        folder.write_checkpoint(state)
    assert list(tmp_path.rglob("*.partial")) == []
    assert folder.checkpoint() == {"a": 1}


def test_the_report(vector_flags, tmp_path, refused):
    place = ["--runs-dir", str(tmp_path)]
    grid = ["compare", "--lr=fixed", "--strategies", "qure", "--seeds", "1", "--name", "c", "--no-report"]
    assert negbench([*grid, *vector_flags, *place, "--tracking-uri", "none"]) == 0
    for size in (2**9, 2**14):  # amid the tables, amid the figures
        with limited_files(size):
            refused(["report", "c", *place], "File too large")
        assert list(tmp_path.rglob("*.partial")) == []
    assert negbench(["report", "c", *place]) == 0
    assert (tmp_path / "c" / "report" / "index.html").stat().st_size > 10_000
