"""What a command still needs: by hand, from the runs so far, over trials, cells and later looks."""

from negbench.grid.compare import plan_comparison
from negbench.grid.estimate import Estimate
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
