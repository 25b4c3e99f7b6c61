"""What a command still needs: by hand, from the runs so far, over trials, cells and later looks."""

from dataclasses import replace

from negbench.grid.compare import plan_comparison
from negbench.grid.estimate import Estimate, Rehearsals, price
from negbench.grid.looks import Looks
from negbench.settings.options import Compare
from negbench.store.runfolder import RunFolder


def test_runs_to_come_take_as_long_per_epoch_as_those_so_far(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.write_result({"seconds": {"train": 30.0, "mine": 10.0}})
    estimate = Estimate()
    assert estimate.add(folder.path, 10)  # 4 s an epoch
    text = "2 more to compute: about 2 min with 1 worker, 1 MiB (estimated from the first one)"
    assert estimate.text([10, 20], 1) == text
    estimate.later = (15.0, 60.0)
    text = "2 more to compute, then the rest of the command: about 3 min to 6 min with 1 worker, 1 MiB"
    assert estimate.text([10, 20], 1) == f"{text} (estimated from the first one)"
    assert "about 2 min to 3 min with 2 workers" in estimate.text([10, 20], 2, elsewhere=True)
    assert [estimate.add(folder.path, 30) for _ in range(3)] == [False, False, True]  # 1.6 s an epoch by now
    assert "about 72 s to 2 min with 1 worker, 1 MiB (estimated from the first 4)" in estimate.text([10, 20], 1)


def test_what_follows_the_trials_is_counted_with_looks_and_further_trials(vector_sets, tmp_path):
    """Two groups of four epochs a run and two seeds; up to two further trials of each."""
    asked = Compare(strategies="all-corpus,top-k", seeds="3,1", sets=tuple(vector_sets), name="c")
    plan = plan_comparison(asked, tmp_path)
    assert plan.epochs_after_trials(None) == (4 * 4, 4 * 4 + 2 * 2 * 4)
    assert plan.epochs_after_trials(Looks((3, 1), 5)) == (4 * 4, 4 * 4 + 2 * 2 * 4 + 2 * 3 * 4)


def test_finished_runs_of_a_place_come_before_rehearsals_and_these_before_other_places(
    vector_sets, tmp_path, monkeypatch
):
    """Two places of three seeds; in the first 10 s and 30 s are known, for four epochs each."""
    asked = Compare(strategies="all-corpus,top-k", seeds=3, sets=tuple(vector_sets), lr="fixed", name="c")
    cells = plan_comparison(asked, tmp_path).cells
    monkeypatch.setattr(Rehearsals, "seconds", lambda self, run: 100.0)
    assert price(cells, tmp_path, 12)[0].startswith("the 6 runs: 10 min to 15 min of computing; ")
    first = [number for number, cell in enumerate(cells) if cell.labels["strategy"] == "all-corpus"]
    for number, seconds in zip(first, (10.0, 30.0), strict=False):
        run = RunFolder(tmp_path / f"run-{number}")
        run.write_result({"seconds": {"train": seconds}, "peak_memory_mib": {"process": seconds}})
        cells[number] = replace(cells[number], folder=run.run_id)
    text = "of computing; 30 MiB of memory for each worker"
    assert price(cells, tmp_path) == [f"the other 4 runs: 5 min {text} (rehearsed on this machine)"]  # 20 s + 300 s
    kept = [cell for cell in cells if cell.labels["strategy"] == "all-corpus"]
    assert price(kept, tmp_path) == [f"the other 1 runs: 20 s {text}"]
    monkeypatch.setattr(Rehearsals, "seconds", lambda self, run: 0.0)  # none is possible: 5 s an epoch
    assert price(cells, tmp_path)[0].startswith(f"the other 4 runs: 80 s {text}")
    assert price([cell for cell in cells if cell not in kept], tmp_path) == []
    assert price(kept[:2], tmp_path) == []  # nothing is left
