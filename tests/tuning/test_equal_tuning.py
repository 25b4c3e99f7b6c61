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


def plan_combinations(tmp_path: Path, sets: list[str], strategies: str, seeds: int | str = 2) -> list[Combination]:
    configs = Axes.of(Compare(strategies=strategies, seeds=seeds, sets=tuple(sets))).configs()
    return combinations(plan_cells(configs, tmp_path, Display(), DATA))


SEARCHED_OF_TOP_K = {"strategy.k", "schedule.n_def", "schedule.warmup"}


# --- what is searched ----------------------------------------------------------------------------------------------


def test_every_strategy_has_its_own_knobs_and_none_its_number_of_negatives(longer, tmp_path):
    plans = {}
    for combination in plan_combinations(tmp_path, longer, "top-k,all-corpus,in-batch,dqe"):
        plans[combination.labels["strategy"]] = combination
    assert plans["all-corpus"].spec is None
    assert plans["in-batch"].spec is None
    assert {searched.key for searched in plans["top-k"].spec.space.ranges} == SEARCHED_OF_TOP_K
    assert "train.num_negatives" not in {searched.key for searched in plans["dqe"].spec.space.ranges}
    assert [config.seed for config in plans["dqe"].configs] == [0, 1]


def test_trials_have_a_seed_and_a_part_of_train_of_their_own(vector_sets, tmp_path):
    (combination,) = plan_combinations(tmp_path, vector_sets, "top-k")
    spec = combination.spec
    assert spec.seeds == (SEED,)
    assert spec.config.eval.dev_fraction == DEV_FRACTION
    assert not spec.space.config(spec.config, spec.space.default, SEED).eval.reported
    (with_that_seed,) = plan_combinations(tmp_path, vector_sets, "top-k", seeds=f"3,{SEED + 5}")
    assert with_that_seed.spec.seeds == (SEED + 6,)
    (with_dev,) = plan_combinations(tmp_path, [*vector_sets, "eval.dev_fraction=0.4"], "top-k")
    assert with_dev.spec.config.eval.dev_fraction == 0.4


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_comparison_at_equal_tuning(vector_flags, tmp_path, run_command, monkeypatch):
    row_counts: list[int] = []
    write = ComparisonFolder.write

    def count_rows(self: ComparisonFolder, outcomes: Iterable[Any]) -> None:
        rows = list(outcomes)
        row_counts.append(len(rows))
        write(self, rows)

    monkeypatch.setattr(ComparisonFolder, "write", count_rows)
    command = ["compare", "--strategies", "top-k,after-target,all-corpus", "--seeds", "1", "--name", "c"]
    command += [*vector_flags, "--set", "train.epochs=2", "--runs-dir", str(tmp_path), "--no-report"]
    command += ["--tracking-uri", "none", "--tuned"]
    out = run_command(*command, "2", "--dry-run").out
    assert "tuning: 2 trials for each of 2 strategies" in out
    assert "nothing to tune: all-corpus" in out
    assert not (tmp_path / "c").exists()
    run_command(*command, "2")
    assert min(row_counts[row_counts.index(3) :]) == 3  # tuned cells are listed beside the three default ones
    tunings = searches_of(tmp_path, 2)
    _check_trials(tmp_path, tunings)
    _check_tuned_runs(tmp_path, tunings)
    with_one_more = run_command(*command, "3").err
    assert "trial 2" in with_one_more
    assert "trial 0" not in with_one_more
    tunings = searches_of(tmp_path, 3)
    for tuning in tunings:  # a fourth trial, the best, as if of a larger budget
        study = open_book(tmp_path, tuning.study).study
        other = study.trials[1]
        study.add_trial(create_trial(value=1.0, params=other.params, distributions=other.distributions))
    again = run_command(*command, "3").err
    assert searches_of(tmp_path, 3) == tunings
    assert "trial 0" not in again
    assert "more to compute" not in again


def _check_trials(runs: Path, tunings: list[Tuning]) -> None:
    """Check that a tuning has its trials' values, and that they ran with the seed and the split of trials."""
    for tuning in tunings:
        values = [trial.value for trial in open_book(runs, tuning.study).frozen() if trial.value is not None]
        assert (tuning.default, tuning.best) == (values[0], max(values)), tuning
        assert tuning.seconds > 0, tuning
        for path in (runs / tuning.study / "cells").glob("*/config.json"):
            manifest = read_json(path)
            assert manifest["config"]["seed"] == SEED, tuning
            assert manifest["dataset"]["scored"] == "dev", tuning  # the reported split is not loaded


def test_equal_tuning_chooses_and_judges_by_another_metric(vector_flags, tmp_path, run_command):
    """By recall at 7, which no result.json holds: it follows from the ranks of the trials."""
    command = ["compare", "--strategies", "top-k", "--seeds", "1", "--name", "c", *vector_flags, "--tuned", "2"]
    command += ["--metric", "R@7", "--lr", "fixed", "--no-report"]
    run_command(*command, "--tracking-uri", "none", "--runs-dir", tmp_path)
    document = read_json(tmp_path / "c" / "comparison.json")
    assert document["tuned"]["metric"] == "R@7"
    (row,) = document["tuned"]["tunings"]
    tuning = Tuning(**row)
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
    tunings = [Tuning(**row) for row in tuned["tunings"]]
    counts = {tuning.labels["strategy"]: tuning.trials for tuning in tunings}
    assert counts == {"top-k": trials, "after-target": trials, "all-corpus": 0}
    return [tuning for tuning in tunings if tuning.study]


def _check_tuned_runs(runs: Path, tunings: list[Tuning]) -> None:
    """Check that tuned cells use the best trials' settings and all of train; if none was searched, runs are shared."""
    cells = read_json(runs / "c" / "comparison.json")["cells"]
    default = [cell for cell in cells if cell["settings"] == "default"]
    tuned = [cell for cell in cells if cell["settings"] == "tuned"]
    assert len(cells) == 6
    assert [(c["strategy"], c["seed"]) for c in default] == [(c["strategy"], c["seed"]) for c in tuned]
    for cell in tuned:
        config = read_json(runs / cell["run"] / "config.json")["config"]
        flat = {f"strategy.{name}": value for name, value in config["strategy"].items()}
        flat |= {f"schedule.{name}": value for name, value in config["schedule"].items()}
        for tuning in tunings:
            if tuning.labels["strategy"] == cell["strategy"]:
                assert {key: flat[key] for key in tuning.found or {}} == tuning.found, cell["run"]
        assert config["eval"]["reported"], cell["run"]
        assert config["train"]["num_negatives"] == 1, cell["run"]
    assert {cell["hash"] for cell in tuned if cell["strategy"] == "all-corpus"} < {cell["hash"] for cell in default}


def test_failed_trials_are_counted_until_a_rerun_computes_them(subtests, vector_sets, tmp_path):
    """tests/report/test_tuned_gain.py has the answer, and the mark of the row."""
    (combination,) = plan_combinations(tmp_path, vector_sets, "top-k")
    for broken, facts in (((1, 2), {"failed_trials": "2 of 3"}), ((), {})):
        with subtests.test(broken=broken):

            def objective(trial: Any, broken: tuple[int, ...] = broken) -> float:
                if trial.number in broken:
                    raise NegbenchError("mend this")
                return float(trial.number == 0)

            book = StudyStore(tmp_path / "s", combination.spec, trials=3)
            book.requeue_failed()
            book.work(objective, print)
            tuning, configs = _result(combination, book, "")
            assert (tuning.trials, tuning.failed, tuning.best) == (3, len(broken), 1.0)
            assert _columns(tuning) == {**tuning.labels, "settings": "tuned", **facts}
            assert [config.seed for config in configs] == [0, 1]
    tuning, configs = _result(combination, book, "mend this")
    assert tuning.error == "mend this"
    assert configs == []
