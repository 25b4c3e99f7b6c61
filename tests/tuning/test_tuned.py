"""Equal tuning: what is searched, the same number of trials for all, and both tables from the runs themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from negbench.cli.main import run as negbench
from negbench.commands.compare import build_grid
from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.errors import OptionError
from negbench.files import read_json
from negbench.grid.cells import plan
from negbench.grid.tuning import Tuning, read_tunings, write_tunings
from negbench.tuning.book import open_book
from negbench.tuning.tuned import DEV_FRACTION, SEED, Combination, combinations


def combined(
    tmp_path: Path, sets: list[str], strategies: str, search: tuple[str, ...] = (), **axes: str
) -> list[Combination]:
    named = {"strategies": strategies, "losses": None, "backbones": None, "datasets": None, "seeds": "2", **axes}
    configs = build_grid(named, {}, None, sets, None).configs()
    return combinations(configs, plan(configs, tmp_path, Display(), Scenes()), search)


OWN = {"strategy.k", "schedule.n_def", "schedule.warmup"}  # what top-k's search moves


# --- what is searched ----------------------------------------------------------------------------------------------


def test_every_strategy_has_its_own_knobs_and_none_its_number_of_negatives(
    vector_sets: list[str], tmp_path: Path
) -> None:
    found = {each.labels["strategy"]: each for each in combined(tmp_path, vector_sets, "top-k,all-corpus,in-batch,dqe")}
    specs = {name: each.spec for name, each in found.items()}
    assert specs["all-corpus"] is None
    assert specs["in-batch"] is None
    assert {k.key for k in specs["top-k"].space.knobs} == OWN  # type: ignore[union-attr]
    assert "train.num_negatives" not in {k.key for k in specs["dqe"].space.knobs}  # type: ignore[union-attr]
    assert [config.seed for config in found["dqe"].configs] == [0, 1]


def test_trials_have_a_seed_and_a_part_of_train_of_their_own(vector_sets: list[str], tmp_path: Path) -> None:
    (one,) = combined(tmp_path, vector_sets, "top-k")
    assert one.spec is not None
    assert one.spec.seeds == (SEED,)
    assert one.spec.config.eval.dev_fraction == DEV_FRACTION
    (trial,) = {one.spec.space.config(one.spec.config, one.spec.space.default, SEED)}
    assert not trial.eval.reported
    (far,) = combined(tmp_path, vector_sets, "top-k", seeds=f"3,{SEED + 5}")
    assert far.spec is not None
    assert far.spec.seeds == (SEED + 6,)
    (told,) = combined(tmp_path, [*vector_sets, "eval.dev_fraction=0.4"], "top-k")
    assert told.spec is not None
    assert told.spec.config.eval.dev_fraction == 0.4


def test_a_range_for_all_is_searched_by_all(
    vector_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = combined(tmp_path, vector_sets, "top-k,all-corpus", ("train.lr=0.001:0.1:log",))
    keys = [{knob.key for knob in each.spec.space.knobs} for each in found if each.spec is not None]
    assert keys == [OWN | {"train.lr"}, {"train.lr"}]
    with pytest.raises(OptionError, match="compared at equal numbers"):
        combined(tmp_path, vector_sets, "top-k", ("num_negatives=1:5",))
    assert negbench(["compare", "--search", "train.lr=1:2", "--runs-dir", str(tmp_path), "--dry-run"]) == 2
    assert "add --tuned N" in capsys.readouterr().err


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_comparison_at_equal_tuning(
    vector_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], words_of: Callable[[Path], str]
) -> None:
    sets = [part for text in vector_sets for part in ("--set", text)]
    command = ["compare", "--strategies", "top-k,after-target,all-corpus", "--seeds", "2", "--name", "c", "--no-audit"]
    command += ["--runs-dir", str(tmp_path), "--tracking-uri", "none", *sets, "--tuned"]
    assert negbench([*command, "3", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "tuning: 3 trials for each of 2 strategies" in out
    assert "nothing to tune: all-corpus" in out
    assert not (tmp_path / "c").exists()
    assert negbench([*command, "3"]) == 0
    assert "c: at published defaults and at equal tuning (3 trials each)" in capsys.readouterr().out
    budget, tunings = read_tunings(tmp_path / "c")
    assert budget == 3
    assert {each.labels["strategy"]: each.trials for each in tunings} == {
        "top-k": 3,
        "after-target": 3,
        "all-corpus": 0,
    }
    searched = [each for each in tunings if each.study]
    for each in searched:
        values = [trial.values[0] for trial in open_book(tmp_path, each.study).frozen() if trial.values]
        assert (each.default, each.best) == (values[0], max(values))
        assert each.seconds > 0
        for config in (tmp_path / each.study / "cells").glob("*/config.json"):
            kept = read_json(config)
            assert kept["config"]["seed"] == SEED
            assert kept["dataset"]["scored"] == "dev"  # the reported split is not even loaded
    _check_tuned_runs(tmp_path, searched)
    _check_gains(tmp_path)
    page = words_of(tmp_path / "c" / "report" / "index.html")
    assert "At equal tuning" in page
    assert "Nothing to tune: all-corpus." in page
    command.insert(1, "--no-report")
    assert negbench([*command, "3"]) == 0
    again = capsys.readouterr().err
    assert "trial 0" not in again
    assert "more to compute" not in again
    assert negbench([*command, "4"]) == 0
    assert "trial 3" in capsys.readouterr().err
    assert {each.trials for each in read_tunings(tmp_path / "c")[1] if each.study} == {4}


def _check_tuned_runs(runs: Path, searched: list[Tuning]) -> None:
    """The tuned comparison holds the best trials' settings, on all of train, and knobless strategies as they are."""
    cells = read_json(runs / "c-tuned" / "comparison.json")["cells"]
    assert {cell["strategy"] for cell in cells} == {"top-k", "after-target", "all-corpus"}
    for cell in cells:
        config = read_json(runs / cell["run"] / "config.json")["config"]
        for each in searched:
            if each.labels["strategy"] == cell["strategy"]:
                flat = {f"{a}.{b}": v for a in ("strategy", "schedule") for b, v in config[a].items()}
                assert {key: flat[key] for key in each.found or {}} == each.found
        assert config["eval"]["reported"]
        assert config["train"]["num_negatives"] == 1
    default = {cell["hash"] for cell in read_json(runs / "c" / "comparison.json")["cells"]}
    assert {cell["hash"] for cell in cells if cell["strategy"] == "all-corpus"} < default


def _check_gains(runs: Path) -> None:
    def mean(name: str, strategy: str) -> float:
        cells = read_json(runs / name / "comparison.json")["cells"]
        results = [read_json(runs / c["run"] / "result.json") for c in cells if c["strategy"] == strategy]
        return float(np.mean([result["metrics"][result["main_metric"]] for result in results]))

    frame = pd.read_csv(runs / "c" / "tuned.csv").set_index("strategy")
    for strategy, row in frame.iterrows():
        name = str(strategy)
        assert row["R@10 at defaults"] == pytest.approx(100 * mean("c", name), abs=0.006)
        assert row["R@10 tuned"] == pytest.approx(100 * mean("c-tuned", name), abs=0.006)
        if row["tuning gains"] != "-":
            gain = 100 * (mean("c-tuned", name) - mean("c", name))
            assert float(row["tuning gains"].split()[0]) == pytest.approx(gain, abs=0.006)
    assert frame.loc["all-corpus", "found"] == "nothing to tune"


@pytest.mark.slow
def test_workers_make_the_same_trials(
    vector_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [part for text in vector_sets for part in ("--set", text)]
    for name, workers in (("one", "1"), ("two", "2")):
        command = [
            "compare",
            "--strategies",
            "top-k,after-target",
            "--seeds",
            "1",
            "--name",
            name,
            "--workers",
            workers,
        ]
        command += ["--runs-dir", str(tmp_path), "--tracking-uri", "none", "--no-audit", "--no-report", "--tuned", "2"]
        assert negbench([*command, *sets]) == 0
    kept = [read_tunings(tmp_path / name)[1] for name in ("one", "two")]
    assert [each.found for each in kept[0]] == [each.found for each in kept[1]]
    assert [each.best for each in kept[0]] == [each.best for each in kept[1]]


def test_a_search_that_fails_is_told_and_the_others_go_on(
    vector_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from negbench.errors import NegbenchError
    from negbench.tuning import trials

    real = trials.run_config

    def failing(config: Any, *args: Any, **options: Any) -> Any:
        if config.strategy.name == "top-k":
            raise NegbenchError("mend this")
        return real(config, *args, **options)

    monkeypatch.setattr(trials, "run_config", failing)
    command = ["compare", "--strategies", "top-k,after-target", "--seeds", "1", "--name", "c", "--no-audit"]
    command += ["--runs-dir", str(tmp_path), "--tracking-uri", "none", "--no-report", "--tuned", "1"]
    assert negbench([*command, *(part for text in vector_sets for part in ("--set", text))]) == 2
    told = capsys.readouterr()
    assert "1 of 2 searches failed (top-k: trial 0, the default, failed: mend this)" in told.err
    assert "after-target" in told.out.rpartition("at equal tuning")[2]


def test_tunings_are_read_as_written(tmp_path: Path) -> None:
    found = [Tuning({"strategy": "x"}, "s", ("a", "b"), 3, 1.5, 0.1, 0.2, {"a": 1}), Tuning({"strategy": "y"})]
    write_tunings(tmp_path, 3, found)
    assert read_tunings(tmp_path) == (3, found)
    assert read_tunings(tmp_path / "absent") == (0, [])
