"""What a command still needs: by hand, from the runs so far, over trials, cells and later looks."""

from dataclasses import replace
from pathlib import Path

import pytest

from negbench.analysis.verdicts import Rules
from negbench.campaign.compare import compare_cells
from negbench.campaign.plan import plan_comparison
from negbench.grid.cells import Cell
from negbench.grid.forecast import Forecast, RunTimer
from negbench.grid.looks import Looks
from negbench.settings.options import Compare
from negbench.store.runfolder import RunFolder


def planned(sets: list[str], runs: Path, seeds: str) -> list[Cell]:
    asked = Compare(strategies="all-corpus,top-k", seeds=seeds, sets=tuple(sets), lr="fixed", name="c")
    return sorted(plan_comparison(asked, runs).cells, key=lambda cell: cell.labels["strategy"])


def computed(folder: Path, seconds: float) -> Path:
    run = RunFolder(folder)
    counts = {"reported_epoch": 1, "steps": 1, "negatives_seen": 1}
    texts = {"main_metric": "r", "selected_on": "last", "remarks": []}
    nothing = {"metrics": {}, "behaviour": {}, "behaviour_by_refresh": []}
    taken = {"seconds": {"train": 0.75 * seconds, "mine": 0.25 * seconds}, "peak_memory_mib": {"process": 30}}
    run.write_result({**counts, **texts, **nothing, **taken})
    return run.path


def test_the_rest_takes_as_long_as_runs_of_the_same_place_or_else_of_any(longer, tmp_path):
    """Two places of two seeds; runs of four epochs."""
    one, again, *others = planned(longer, tmp_path, "2")
    forecast = Forecast()
    assert forecast.add_computed(one, computed(tmp_path / "one", 40.0))
    text = "2 more to compute: about 80 s with 1 worker, 1 MiB (estimated after the first one)"
    assert forecast.text(others, 1) == text
    assert [forecast.add_computed(others[0], computed(tmp_path / f"{i}", 10)) for i in range(3)] == [False, False, True]
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
    finished, *_ = planned([*longer, "train.batch_size=8"], tmp_path, "1")
    forecast = Forecast()
    forecast.add(finished, computed(tmp_path / "finished", 40.0))
    settings = [*longer, f"train.batch_size={batch_size}", f"train.epochs={epochs}"]
    *_, top_k = planned(settings, tmp_path, "1")  # another place
    assert forecast.seconds([top_k]) == pytest.approx((seconds, seconds))


def test_a_dry_run_prices_batch_sizes_without_finished_runs_by_their_steps(longer, tmp_path, monkeypatch):
    """Of three sizes one is finished, with 18 s of training and 6 s of all else; none can be timed."""
    monkeypatch.setattr(RunTimer, "seconds", lambda self, run: 0.0)
    dial = ("train.batch_size=4,8,16",)
    settings = tuple(setting for setting in longer if not setting.startswith("train.batch_size"))
    options = Compare(strategies="top-k", seeds="1", sets=settings, dials=dial, lr="fixed", name="c")
    cells = list(plan_comparison(options, tmp_path).cells)
    assert [cell.config.train.batch_size for cell in cells] == [4, 8, 16]
    cells[1] = replace(cells[1], folder=computed(tmp_path / "eight", 24.0).name)
    line = "the other 2 runs: 57 s of computing; 30 MiB of memory for each worker (from runs with other settings)"
    assert Forecast().price(cells, tmp_path) == [line]  # 36 + 6 and 9 + 6 seconds


def test_what_follows_the_trials_is_counted_with_looks_and_further_trials(subtests, longer, tmp_path):
    """Two groups of four epochs a run and two seeds; up to four further rates of each, at each seed."""
    plan = plan_comparison(Compare(strategies="all-corpus,top-k", seeds="3,1", sets=tuple(longer)), tmp_path)
    for looks, more in ((None, 0), (Looks((3, 1), 5), 2 * 3 * 4)):
        with subtests.test(looks=looks):
            first = next(compare_cells(plan, Rules(looks=looks)))
            assert (first.ahead, first.later_epochs) == (plan.cells, 2 * 4 * 2 * 4 + more)


def test_finished_runs_of_a_place_come_before_timed_parts_and_these_before_other_places(longer, tmp_path, monkeypatch):
    """Two places of three seeds; in the first 10 s and 30 s are known, for four epochs each."""
    cells = planned(longer, tmp_path, "3")
    monkeypatch.setattr(RunTimer, "seconds", lambda self, run: 100.0)
    assert Forecast((0.0, 12.0)).price(cells, tmp_path)[0].startswith("the 6 runs: 10 min to 15 min of computing; ")
    cells[0], cells[1] = (replace(cells[i], folder=computed(tmp_path / f"run-{i}", 10.0 + 20 * i).name) for i in (0, 1))
    text = "of computing; 30 MiB of memory for each worker"
    forecast = Forecast()
    assert forecast.price(cells, tmp_path) == [f"the other 4 runs: 5 min {text} (timed on this machine)"]
    forecast.add(cells[3], computed(tmp_path / "top-k", 50.0))
    assert forecast.seconds(cells[2:]) == (170.0, 170.0)  # a run that was computed is known, no longer timed
    assert Forecast().price(cells[:3], tmp_path) == [f"the other 1 runs: 20 s {text}"]
    monkeypatch.setattr(RunTimer, "seconds", lambda self, run: 100.0 * (run.config.strategy.name == "all-corpus"))
    assert Forecast().price(cells, tmp_path)[0].startswith(f"the other 4 runs: 80 s {text} (from")
    assert Forecast().price(cells[2:], tmp_path) == Forecast().price(cells[:2], tmp_path) == []  # unknown; nothing left
