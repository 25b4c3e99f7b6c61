"""Equal tuning: what is searched, the same number of trials for all, and both tables against the runs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import create_trial

from negbench.analysis.tuned_gain import Tuning
from negbench.display import Display
from negbench.errors import NegbenchError
from negbench.grid.axes import Axes
from negbench.grid.cells import plan_cells
from negbench.grid.comparison import ComparisonFolder
from negbench.loop.runs import DATA
from negbench.machine.files import read_json
from negbench.settings.options import Compare
from negbench.store.runfolder import RunFolder
from negbench.tuning.book import StudyStore, open_book
from negbench.tuning.equal_tuning import DEV_FRACTION, SEED, Combination, _columns, _result, combinations


def combined(tmp_path: Path, sets: list[str], strategies: str, seeds: int | str = 2) -> list[Combination]:
    configs = Axes.of(Compare(strategies=strategies, seeds=seeds, sets=tuple(sets))).configs()
    return combinations(plan_cells(configs, tmp_path, Display(), DATA))


OWN = {"strategy.k", "schedule.n_def", "schedule.warmup"}  # what top-k's search varies


# --- what is searched ----------------------------------------------------------------------------------------------


def test_every_strategy_has_its_own_knobs_and_none_its_number_of_negatives(longer, tmp_path):
    plans = {each.labels["strategy"]: each for each in combined(tmp_path, longer, "top-k,all-corpus,in-batch,dqe")}
    specs = {name: each.spec for name, each in plans.items()}
    assert specs["all-corpus"] is None
    assert specs["in-batch"] is None
    assert {k.key for k in specs["top-k"].space.ranges} == OWN
    assert "train.num_negatives" not in {k.key for k in specs["dqe"].space.ranges}
    assert [config.seed for config in plans["dqe"].configs] == [0, 1]


def test_trials_have_a_seed_and_a_part_of_train_of_their_own(vector_sets, tmp_path):
    (one,) = combined(tmp_path, vector_sets, "top-k")
    assert one.spec.seeds == (SEED,)
    assert one.spec.config.eval.dev_fraction == DEV_FRACTION
    (trial,) = {one.spec.space.config(one.spec.config, one.spec.space.default, SEED)}
    assert not trial.eval.reported
    (far,) = combined(tmp_path, vector_sets, "top-k", seeds=f"3,{SEED + 5}")
    assert far.spec.seeds == (SEED + 6,)
    (combination,) = combined(tmp_path, [*vector_sets, "eval.dev_fraction=0.4"], "top-k")
    assert combination.spec.config.eval.dev_fraction == 0.4


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_comparison_at_equal_tuning(vector_flags, tmp_path, run_command, monkeypatch):
    listed, write = list[int](), ComparisonFolder.write

    def counted(self: ComparisonFolder, outcomes: Iterable[Any]) -> None:
        rows = list(outcomes)
        listed.append(len(rows))
        write(self, rows)

    monkeypatch.setattr(ComparisonFolder, "write", counted)
    command = ["compare", "--strategies", "top-k,after-target,all-corpus", "--seeds", "1", "--name", "c"]
    command += [*vector_flags, "--set", "train.epochs=2", "--runs-dir", str(tmp_path), "--no-report"]
    command += ["--tracking-uri", "none", "--tuned"]
    out = run_command(*command, "2", "--dry-run").out
    assert "tuning: 2 trials for each of 2 strategies" in out
    assert "nothing to tune: all-corpus" in out
    assert not (tmp_path / "c").exists()
    run_command(*command, "2")
    assert min(listed[listed.index(3) :]) == 3  # tuned cells are listed beside the three default ones
    searched = searches_of(tmp_path, 2)
    for each in searched:
        values = [trial.value for trial in open_book(tmp_path, each.study).frozen() if trial.value is not None]
        assert (each.default, each.best) == (values[0], max(values)), each
        assert each.seconds > 0, each
        for config in (tmp_path / each.study / "cells").glob("*/config.json"):
            kept = read_json(config)
            assert kept["config"]["seed"] == SEED, each
            assert kept["dataset"]["scored"] == "dev", each  # the reported split is not loaded
    _check_tuned_runs(tmp_path, searched)
    more = run_command(*command, "3").err
    assert "trial 2" in more
    assert "trial 0" not in more
    searched = searches_of(tmp_path, 3)
    for each in searched:  # a fourth trial, the best, as if of a larger budget
        study = open_book(tmp_path, each.study).study
        study.add_trial(
            create_trial(value=1.0, params=study.trials[1].params, distributions=study.trials[1].distributions)
        )
    again = run_command(*command, "3").err
    assert searches_of(tmp_path, 3) == searched
    assert "trial 0" not in again
    assert "more to compute" not in again


def test_equal_tuning_chooses_and_judges_by_another_metric(vector_flags, tmp_path, run_command):
    """By recall at 7, which no result.json holds: it follows from the ranks of the trials."""
    command = ["compare", "--strategies", "top-k", "--seeds", "1", "--name", "c", *vector_flags, "--tuned", "2"]
    command += [
        "--metric",
        "R@7",
        "--lr",
        "fixed",
        "--tracking-uri",
        "none",
        "--no-report",
        "--runs-dir",
        str(tmp_path),
    ]
    run_command(*command)
    document = read_json(tmp_path / "c" / "comparison.json")
    assert document["tuned"]["metric"] == "R@7"
    (tuning,) = [Tuning(**each) for each in document["tuned"]["tunings"]]
    book = open_book(tmp_path, tuning.study)
    assert book.spec.metric == "average/recall_at_7"
    assert book.study.metric_names == ["average R@7 (%)"]
    values = []
    for trial in book.frozen():
        (run,) = trial.user_attrs["runs"]
        frame = RunFolder(tmp_path / tuning.study / "cells" / run).ranks()
        values.append((frame["target_rank"] <= 7).groupby(frame["group"]).mean().mean())
        assert trial.value == pytest.approx(values[-1]), f"trial {trial.number}"
    assert (tuning.default, tuning.best) == pytest.approx((values[0], max(values)))
    verdicts = read_json(tmp_path / "c" / "statistics.json")["verdicts"]
    assert {row["metric"] for row in verdicts if row["main"]} == {"average/recall_at_7"}
    assert "scored by R@7" in (tmp_path / "c" / "answer.md").read_text(encoding="utf-8")


def searches_of(runs: Path, trials: int) -> list[Tuning]:
    """Return the tunings of 'c' that searched anything; check that every strategy had `trials` trials or none."""
    tuned = read_json(runs / "c" / "comparison.json")["tuned"]
    assert tuned["trials"] == trials
    tunings = [Tuning(**each) for each in tuned["tunings"]]
    had = {each.labels["strategy"]: each.trials for each in tunings}
    assert had == {"top-k": trials, "after-target": trials, "all-corpus": 0}
    return [each for each in tunings if each.study]


def _check_tuned_runs(runs: Path, searched: list[Tuning]) -> None:
    """Check that tuned cells use the best trials' settings and all of train; if none was searched, runs are shared."""
    cells = read_json(runs / "c" / "comparison.json")["cells"]
    default, tuned = ([cell for cell in cells if cell["settings"] == each] for each in ("default", "tuned"))
    assert len(cells) == 6
    places = [[(cell["strategy"], cell["seed"]) for cell in each] for each in (default, tuned)]
    assert places[0] == places[1]
    for cell in tuned:
        config = read_json(runs / cell["run"] / "config.json")["config"]
        for each in searched:
            if each.labels["strategy"] == cell["strategy"]:
                flat = {f"{a}.{b}": v for a in ("strategy", "schedule") for b, v in config[a].items()}
                assert {key: flat[key] for key in each.found or {}} == each.found, cell["run"]
        assert config["eval"]["reported"], cell["run"]
        assert config["train"]["num_negatives"] == 1, cell["run"]
    assert {cell["hash"] for cell in tuned if cell["strategy"] == "all-corpus"} < {cell["hash"] for cell in default}


def test_failed_trials_are_counted_until_a_rerun_computes_them(subtests, vector_sets, tmp_path):
    """tests/report/test_tuned_gain.py has the answer, and the mark of the row."""
    (one,) = combined(tmp_path, vector_sets, "top-k")
    for broken, facts in (((1, 2), {"failed_trials": "2 of 3"}), ((), {})):
        with subtests.test(broken=broken):

            def objective(trial: Any, broken: tuple[int, ...] = broken) -> float:
                if trial.number in broken:
                    raise NegbenchError("mend this")
                return float(trial.number == 0)

            book = StudyStore(tmp_path / "s", one.spec, trials=3)
            book.requeue_failed()
            book.work(objective, print)
            tuning, configs = _result(one, book, "")
            assert (tuning.trials, tuning.failed, tuning.best) == (3, len(broken), 1.0)
            assert _columns(tuning) == {**tuning.labels, "settings": "tuned", **facts}
            assert [config.seed for config in configs] == [0, 1]
    assert [(tuning.error, configs) for tuning, configs in [_result(one, book, "mend this")]] == [("mend this", [])]
