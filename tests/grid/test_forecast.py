"""What a command still needs: by hand, from the runs so far, over trials, cells and later looks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from negbench.analysis.verdicts import Rules
from negbench.campaign.compare import compare_cells
from negbench.campaign.plan import plan_comparison
from negbench.grid.cells import Cell
from negbench.grid.forecast import Forecast, RunTimer
from negbench.grid.looks import Looks
from negbench.settings.options import Compare
from negbench.store.runfolder import RunFolder
from tests.made import RESULT


def plan(sets: list[str], runs: Path, seeds: str) -> list[Cell]:
    """Return the cells of all-corpus, then those of top-k."""
    options = Compare(strategies="all-corpus,top-k", seeds=seeds, sets=tuple(sets), lr="fixed", name="c")
    return sorted(plan_comparison(options, runs).cells, key=lambda cell: cell.labels["strategy"])


def write_finished(folder: Path, seconds: float) -> Path:
    """Write a run that took these seconds, of which three quarters were training, and 30 MiB."""
    run = RunFolder(folder)
    seconds_of_parts = {"train": 0.75 * seconds, "mine": 0.25 * seconds}
    run.write_result({**RESULT, "seconds": seconds_of_parts, "peak_memory_mib": {"process": 30}})
    return run.path


def test_the_rest_takes_as_long_as_runs_of_the_same_group_or_else_of_any(longer, tmp_path):
    """Two groups of two seeds; runs of four epochs."""
    one, again, *others = plan(longer, tmp_path, "2")
    forecast = Forecast()
    assert forecast.add_computed(one, write_finished(tmp_path / "one", 40.0))
    text = "2 more to compute: about 80 s with 1 worker, 1 MiB (estimated after the first one)"
    assert forecast.text(others, 1) == text
    added = [forecast.add_computed(others[0], write_finished(tmp_path / f"{number}", 10)) for number in range(3)]
    assert added == [False, False, True]
    assert "about 50 s with 1 worker, 1 MiB (estimated after the first 4)" in forecast.text([again, others[1]], 1)
    forecast.later = (8.0, 32.0)
    assert ", then the rest of the command: about 2 min to 4 min with 1 worker" in forecast.text([again, others[1]], 1)
    assert "about 50 s to 2 min with 2 workers" in forecast.text([again, others[1]], 2, elsewhere=True)


@pytest.mark.parametrize(
    ("batch_size", "epochs", "seconds"),
    [(8, 4, 30 + 10), (16, 4, 15 + 10), (64, 4, 3.75 + 10), (2, 4, 120 + 10), (16, 8, 30 + 20)],
    ids=["the same size", "twice the size", "eight times", "a quarter", "twice the size and the epochs"],
)
def test_runs_of_another_batch_size_take_as_long_for_each_step_and_besides_for_each_epoch(
    longer, tmp_path, batch_size, epochs, seconds
):
    """Finished: four epochs in batches of 8 queries; 30 s of training, 10 s of all else."""
    finished, *_ = plan([*longer, "train.batch_size=8"], tmp_path, "1")
    forecast = Forecast()
    forecast.add(finished, write_finished(tmp_path / "finished", 40.0))
    settings = [*longer, f"train.batch_size={batch_size}", f"train.epochs={epochs}"]
    *_, top_k = plan(settings, tmp_path, "1")  # another group
    assert forecast.seconds([top_k]) == pytest.approx((seconds, seconds))


def test_a_dry_run_prices_batch_sizes_without_finished_runs_by_their_steps(longer, tmp_path, monkeypatch):
    """Of three sizes one is finished, with 18 s of training and 6 s of all else; none can be timed."""
    monkeypatch.setattr(RunTimer, "seconds", lambda self, run: 0.0)
    dial = ("train.batch_size=4,8,16",)
    settings = tuple(setting for setting in longer if not setting.startswith("train.batch_size"))
    options = Compare(strategies="top-k", seeds="1", sets=settings, dials=dial, lr="fixed", name="c")
    cells = list(plan_comparison(options, tmp_path).cells)
    assert [cell.config.train.batch_size for cell in cells] == [4, 8, 16]
    cells[1] = replace(cells[1], folder=write_finished(tmp_path / "eight", 24.0).name)
    line = "the other 2 runs: 57 s of computing; 30 MiB of memory for each worker (from runs with other settings)"
    assert Forecast().price(cells, tmp_path) == [line]  # 36 + 6 and 9 + 6 seconds


def test_what_follows_the_trials_is_counted_with_looks_and_further_trials(subtests, longer, tmp_path):
    """Two groups of four epochs a run and two seeds; up to four further rates of each, at each seed."""
    plan = plan_comparison(Compare(strategies="all-corpus,top-k", seeds="3,1", sets=tuple(longer)), tmp_path)
    for looks, more in ((None, 0), (Looks((3, 1), 5), 2 * 3 * 4)):
        with subtests.test(looks=looks):
            first = next(compare_cells(plan, Rules(looks=looks)))
            assert (first.ahead, first.later_epochs) == (plan.cells, 2 * 4 * 2 * 4 + more)


def test_finished_runs_of_a_group_come_before_timed_parts_and_these_before_other_groups(longer, tmp_path, monkeypatch):
    """Two groups of three seeds; in the first 10 s and 30 s are known, for four epochs each."""
    cells = plan(longer, tmp_path, "3")
    monkeypatch.setattr(RunTimer, "seconds", lambda self, run: 100.0)
    assert Forecast((0.0, 12.0)).price(cells, tmp_path)[0].startswith("the 6 runs: 10 min to 15 min of computing; ")
    cells[0] = replace(cells[0], folder=write_finished(tmp_path / "run-0", 10.0).name)
    cells[1] = replace(cells[1], folder=write_finished(tmp_path / "run-1", 30.0).name)
    text = "of computing; 30 MiB of memory for each worker"
    forecast = Forecast()
    assert forecast.price(cells, tmp_path) == [f"the other 4 runs: 5 min {text} (timed on this machine)"]
    forecast.add(cells[3], write_finished(tmp_path / "top-k", 50.0))
    assert forecast.seconds(cells[2:]) == (170.0, 170.0)  # a run that was computed is known, no longer timed
    assert Forecast().price(cells[:3], tmp_path) == [f"the other 1 runs: 20 s {text}"]

    def time_run(timer: RunTimer, run: Any) -> float:
        return 100.0 if run.config.strategy.name == "all-corpus" else 0.0

    monkeypatch.setattr(RunTimer, "seconds", time_run)
    (line,) = Forecast().price(cells, tmp_path)
    assert line.startswith(f"the other 4 runs: 80 s {text} (from")
    assert Forecast().price(cells[2:], tmp_path) == []  # unknown
    assert Forecast().price(cells[:2], tmp_path) == []  # nothing left
