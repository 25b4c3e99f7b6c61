"""Smoke tests of the benchmarks that use internals of the training loop and the miner; no other test runs them."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "row"),
    [
        ("bench_engine", ("--rounds", "1"), "in-batch      info-nce"),
        (
            "bench_answers",
            ("--most=3", "--times=1", "--seeds=2", "--epochs=1", "--strategies=top-k,all-corpus", "--set=eval.every=1"),
            " runs to decide first place, 6 for all pairs: ",
        ),
        ("bench_mining", ("--queries", "120", "--images", "80", "--large", "90", "180"), "cost grows from 90 to 180"),
    ],
)
def test_it_prints_its_table(name, arguments, row, forked):
    def bench() -> None:
        sys.argv = [f"{name}.py", *arguments]
        sys.path.insert(0, str(FOLDER))  # as when run as a script
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")

    process = forked(bench)
    assert row in process.communicate()
    assert process.returncode == 0
