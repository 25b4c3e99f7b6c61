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
         "--set=dataset.train_images=40", "--set=dataset.train_queries=40", "--set=dataset.val_images=40"),
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


@pytest.mark.slow
def test_a_loop_of_ones_own_trains_beside_a_comparison(load_file, monkeypatch, capsys):
    """Two epochs in a small world of one of the three sets."""
    bench = load_file(FOLDER / "bench_loop.py")
    monkeypatch.setattr(bench, "SETS", {"hidden answers": bench.SETS["hidden answers"]})
    monkeypatch.setattr(sys, "argv", ["bench_loop.py", "--small", "--seeds=2"])
    with pytest.raises(SystemExit) as exited:
        bench.main()
    assert exited.value.code == 0
    title, row = capsys.readouterr().out.strip().splitlines()[-2:]
    assert title.split() == ["data", "set", "guess", "negbench", "the", "loop"]
    assert row.startswith("hidden answers   hurts ")


@pytest.mark.parametrize(
    ("loop", "code", "word"),
    [((-1, -2, -0.5), 1, "CONTRADICT"), ((1, 0.2, 2), 0, "agree"), ((-1, -3, 1), 0, "undecided")],
    ids=["other sign", "same sign", "undecided"],
)
def test_the_loop_contradicts_only_where_both_intervals_exclude_0(load_file, monkeypatch, capsys, loop, code, word):
    bench = load_file(FOLDER / "bench_loop.py")
    monkeypatch.setattr(bench, "ask_negbench", lambda *_: bench.Gain(1, 0.5, 2))
    monkeypatch.setattr(bench, "ask_loop", lambda *_: bench.Gain(*loop))
    monkeypatch.setattr(sys, "argv", ["bench_loop.py"])
    with pytest.raises(SystemExit) as exited:
        bench.main()
    assert exited.value.code == code
    assert capsys.readouterr().out.count(word) == 3
