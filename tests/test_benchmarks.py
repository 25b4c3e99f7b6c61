"""Smoke tests of the benchmarks that use internals of the training loop and the miner; no other test runs them."""

import sys
from pathlib import Path

import pytest

from negbench.worlds._synthesis import Spec

FOLDER = Path(__file__).parent / "benchmarks"


BENCHMARKS = [
    ("bench_engine", ("--rounds=1",), "in-batch      info-nce"),
    (
        "bench_answers",
        ("--most=3", "--times=1", "--seeds=2", "--epochs=1", "--strategies=top-k,all-corpus", "--set=eval.every=1",
         *(f"--set=dataset.{size}=40" for size in ("train_images", "train_queries", "val_images"))),
        " runs to decide first place, 6 for all pairs: ",
    ),
    ("bench_mining", ("--queries=120", "--images=80", "--repetitions=1", "--large", "90", "180"), "from 90 to 180"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments", "row"), BENCHMARKS)
def test_it_prints_its_table(name, arguments, row, forked, load_file):
    def bench() -> None:
        sys.argv = [f"{name}.py", *arguments]
        sys.path.insert(0, str(FOLDER))  # as when run as a script
        sys.modules |= dict.fromkeys(("sentence_transformers", "faiss"))  # type: ignore[arg-type]  # slow to import
        module = load_file(FOLDER / f"{name}.py")
        module.SPEC = Spec(twins=2, train_images=16, train_queries=16, val_images=16, val_queries=8)  # of bench_engine
        module.main()

    process = forked(bench)
    assert row in process.communicate()
    assert process.returncode == 0
