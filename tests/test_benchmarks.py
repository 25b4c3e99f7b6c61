"""The benchmarks that reach into the loop and the miner run: nothing else would notice that they no longer fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "row"),
    [
        ("bench_engine", ("--rounds", "1", "--repeats", "1"), "hycole        info-nce"),
        ("bench_stacked", ("--cells", "2", "--set", "train.epochs=1", "--set", "dataset.train_queries=20"), "train"),
        ("bench_mining", ("--queries", "120", "--images", "80"), "qure"),
    ],
)
def test_it_prints_its_table(name: str, arguments: tuple[str, ...], row: str) -> None:
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    assert row in done.stdout
