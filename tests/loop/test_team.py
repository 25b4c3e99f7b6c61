"""Two processes that compute one run together have the gradients, draws and ranks of one."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from negbench.errors import NegbenchError, OptionError, PausedError
from negbench.loop import assemble_team
from negbench.loop.helper import help_run
from negbench.machine import signals
from negbench.machine.signals import Stopped, TimeUp, limit_hours
from negbench.machine.team import Team
from negbench.store.run_result import RunResult
from negbench.store.runfolder import RunFolder
from tests.runs import config_of, run

TWO = "compute.processes=2"


@pytest.fixture
def helper_processes(monkeypatch: pytest.MonkeyPatch, forked: Callable[..., Any]) -> list[Any]:
    """Start helpers as forked processes, which inherit all imports; return those started."""
    processes: list[Any] = []

    def start(task: assemble_team.TeamTask) -> Any:
        processes.append(forked(partial(help_run, task)))
        return processes[-1]

    monkeypatch.setattr(assemble_team, "start_helper", start)
    return processes


def check_alike(one: RunFolder, other: RunFolder) -> None:
    """Check that two runs drew the same negatives, and have the same curves and weights but for the last bits."""
    for mine, theirs in zip(one.metrics(), other.metrics(), strict=True):
        assert mine.keys() == theirs.keys(), f"epoch {mine['epoch']}"
        want = pytest.approx(list(theirs.values()), rel=1e-4, abs=1e-5, nan_ok=True)
        assert list(mine.values()) == want, f"epoch {mine['epoch']}"
    weights = other.weights()
    for name, value in one.weights().items():
        torch.testing.assert_close(value, weights[name], rtol=1e-4, atol=1e-5, msg=name)


CASES = {
    "in-batch": ("in-batch", "info-nce", ()),
    "a mined rule": ("qure", "bradley-terry", ()),
    "slots": ("hycole", "info-nce", ("compute.micro_batch=5",)),
    "candidates": ("dqe", "margin-kl", ("loss.kl_over=corpus",)),
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Embed 16 images or queries at a time outside of steps; return the sizes of the blocks that are embedded here."""
    monkeypatch.setattr("negbench.data.scene.batch_size", lambda most, largest: 16)
    embedded: list[int] = []
    blocks_of_process = Team.blocks_of_process

    def note_blocks(team: Team, blocks: Any) -> Any:
        blocks_here = blocks_of_process(team, blocks)
        embedded.extend(len(block) for block in blocks_here)
        return blocks_here

    monkeypatch.setattr(Team, "blocks_of_process", note_blocks)
    return embedded


def test_refreshes_and_val_are_divided_and_have_the_bits_of_one_process(sets, tmp_path, helper_processes, small_blocks):
    """Ranks and pools: no step moves the weights by more than the last bits here."""
    more = ["train.lr=1e-30", "train.weight_decay=0", "eval.select=dev", "eval.dev_fraction=0.3"]
    one = run(config_of([*sets, *more], "qure"), tmp_path / "one")
    two = run(config_of([*sets, *more, TWO], "qure"), tmp_path / "two")
    assert small_blocks
    assert set(small_blocks) <= {16, *range(16)}
    pd.testing.assert_frame_equal(two.folder.ranks(), one.folder.ranks())
    pd.testing.assert_frame_equal(two.folder.table("mining-00"), one.folder.table("mining-00"))


@pytest.mark.parametrize("case", CASES)
def test_two_processes_compute_what_one_does(case, sets, tmp_path, helper_processes):
    strategy, loss, more = CASES[case]
    config = config_of([*sets, "eval.reported=false", *more], strategy, loss={"name": loss})
    pair = config_of([*sets, "eval.reported=false", *more, TWO], strategy, loss={"name": loss})
    one = run(config, tmp_path / "one")
    two = run(pair, tmp_path / "two")
    assert len(helper_processes) == 1
    assert two.details["computed"][0]["processes"] == 2
    assert two.folder.manifest["hash"] == one.folder.manifest["hash"]
    check_alike(two.folder, one.folder)


@pytest.mark.slow
def test_a_trained_tower_is_shared_too(toy_root, tmp_path, helper_processes, small_blocks):
    """Each process decodes and encodes its pictures; the gradients of the others' queries reach them."""
    options = ("init='random'", "size='toy'", "frozen=false", "pad='none'")
    data = [f"dataset.root='{toy_root}'", *(f"backbone.{option}" for option in options)]
    steps = ["train.batch_size=9", "train.epochs=1", "eval.reported=false", "eval.dev_fraction=0.75"]
    config = config_of([*data, *steps], "hycole", backbone={"name": "clip"})
    pair = config_of([*data, *steps, TWO], "hycole", backbone={"name": "clip"})
    check_alike(run(pair, tmp_path / "two").folder, run(config, tmp_path / "one").folder)


def test_a_killed_process_ends_the_run_with_one_line_and_it_resumes_with_another_number(
    sets, tmp_path, helper_processes
):
    config = config_of([*sets, "eval.reported=false", TWO], "qure")

    def kill(_: object, state: Any, __: object) -> None:
        if state.step == 2:  # in the second epoch
            os.kill(helper_processes[0].pid, signal.SIGKILL)

    with pytest.raises(PausedError) as error:
        run(config, tmp_path, stepped=kill)
    assert str(error.value) == (
        "process 2 of 2 of the run is gone: it was killed by signal 9; rerun the command: it resumes from its last "
        "checkpoint"
    )
    folder = RunFolder(next(path.parent for path in tmp_path.glob("*/config.json")))
    assert folder.status == "interrupted"
    alone = config_of([*sets, "eval.reported=false"], "qure")
    resumed = run(alone, tmp_path)
    assert [row["processes"] for row in resumed.details["computed"]] == [2, 1]
    check_alike(resumed.folder, run(alone, tmp_path / "one").folder)


def run_in_parts(where: Path, steps: Sequence[int], configs: Sequence[Any]) -> RunResult:
    """Compute a run that is stopped in each of these steps, each part by its own configuration."""
    *stopped, last = configs
    for step, config in zip(steps, stopped, strict=True):
        with pytest.raises(Stopped):
            run(config, where, stepped=stop_after(step))
        signals._noted.clear()
        (file,) = where.glob("*/checkpoint.pt")
        assert torch.load(file, weights_only=True)["state"]["step"] == step, f"step {step}"
    return run(last, where)


def stop_after(step: int) -> Any:
    """Return a hook that notes SIGTERM in the step of this number, as its handler does."""

    def note_signal(parts: Any, state: Any, batch: Any) -> None:
        if state.step + 1 == step:
            signals._noted.append((15, time.monotonic()))

    return note_signal


def test_signals_that_end_a_run_leave_its_helpers_alone(sets, tmp_path, helper_processes):
    """Regression: a scheduler that sends SIGUSR1 to every process killed the helpers, and the run was "gone"."""

    def signal_helper(parts: Any, state: Any, batch: Any) -> None:
        if state.step == 1:
            for number in signals.ENDING:
                os.kill(helper_processes[0].pid, number)

    done = run(config_of([*sets, "eval.reported=false", TWO], "in-batch"), tmp_path, stepped=signal_helper)
    assert done.details["computed"][0]["processes"] == 2


def check_same_bits(parts: RunFolder, whole: RunFolder) -> None:
    """Check that two runs have equal curves, ranks and weights."""
    assert parts.metrics() == whole.metrics()
    pd.testing.assert_frame_equal(parts.ranks(), whole.ranks())
    weights = whole.weights()
    for name, value in parts.weights().items():
        assert torch.equal(value, weights[name]), name


def test_a_stop_within_an_epoch_has_the_bits_of_no_stop(sets, tmp_path, helper_processes, monkeypatch):
    """Two processes, stopped in the first step of each epoch, at the second after a refresh."""
    monkeypatch.setattr(signals, "_noted", [])
    pair = config_of([*sets, "eval.reported=false", TWO], "in-batch+qure")
    whole = run(pair, tmp_path / "whole").folder
    parts = run_in_parts(tmp_path / "parts", (1, 3), (pair, pair, pair)).folder
    check_same_bits(parts, whole)


def test_a_time_limit_ends_both_processes_after_the_same_step(sets, tmp_path, helper_processes, monkeypatch):
    """`--max-hours` is up in the third step, which is within the second epoch; the run resumes bit for bit."""
    monkeypatch.setattr(signals, "_noted", [])
    pair = config_of([*sets, "eval.reported=false", TWO], "in-batch+qure")
    whole = run(pair, tmp_path / "whole").folder
    monkeypatch.setenv("NEGBENCH_UNTIL", "inf")

    def end_in_third(_: object, state: Any, __: object) -> None:
        if state.step == 2:
            limit_hours(1e-9)

    with pytest.raises(TimeUp, match="--max-hours") as ended:
        run(pair, tmp_path / "parts", stepped=end_in_third)
    monkeypatch.delenv("NEGBENCH_UNTIL")
    assert ended.value.code == 124
    assert helper_processes[-1].poll() is not None
    (file,) = (tmp_path / "parts").glob("*/checkpoint.pt")
    assert torch.load(file, weights_only=True)["state"]["step"] == 3
    check_same_bits(run(pair, tmp_path / "parts").folder, whole)


def test_when_the_first_process_is_killed_all_end_and_the_run_resumes_bit_for_bit(
    sets, tmp_path, helper_processes, forked, capfd
):
    pair = config_of([*sets, "eval.reported=false", TWO], "in-batch+qure")
    whole = run(pair, tmp_path / "whole").folder

    def kill_itself(_: object, state: Any, __: object) -> None:
        if state.step == 2:  # in the second epoch
            os.kill(os.getpid(), signal.SIGKILL)

    alive, open_end = os.pipe()  # both processes hold it open as long as they live
    capfd.readouterr()
    first = forked(lambda: run(pair, tmp_path / "parts", stepped=kill_itself))
    os.close(open_end)
    assert os.read(alive, 1) == b""
    os.close(alive)
    assert first.wait() == -signal.SIGKILL
    assert "Traceback" not in capfd.readouterr().err
    (folder,) = (tmp_path / "parts").glob("*/config.json")
    assert RunFolder(folder.parent).status == "interrupted"
    check_same_bits(run(pair, tmp_path / "parts").folder, whole)


@pytest.mark.parametrize("counts", [(2, 1, 2), (1, 2, 1)], ids=str)
def test_each_part_of_an_epoch_may_have_another_number_of_processes(
    counts, sets, tmp_path, helper_processes, monkeypatch
):
    """Batches, draws and ranks have equal bits; no step moves the weights by more than the last bits here."""
    monkeypatch.setattr(signals, "_noted", [])
    still = [*sets, "eval.reported=false", "train.lr=1e-30", "train.weight_decay=0"]
    configs = [config_of([*still, f"compute.processes={count}"], "qure") for count in counts]
    alone = run(config_of(still, "qure"), tmp_path / "one").folder
    parts = run_in_parts(tmp_path / "parts", (1, 3), configs)
    assert [row["processes"] for row in parts.details["computed"]] == list(counts)
    pd.testing.assert_frame_equal(parts.folder.ranks(), alone.ranks())
    check_alike(parts.folder, alone)


def test_a_helper_says_why_it_fails(sets, tmp_path, helper_processes, monkeypatch):
    monkeypatch.setattr("negbench.loop.helper.training_parts", lambda *_: 1 / 0)
    message = "process 2 of 2 of the run is gone: ZeroDivisionError: division by zero; rerun"
    with pytest.raises(PausedError, match=message):
        run(config_of([*sets, TWO], "qure"), tmp_path)


@pytest.mark.slow
def test_a_helper_is_a_process_of_its_own(sets, tmp_path):
    config = config_of([*sets, "eval.reported=false", TWO], "in-batch")
    alone = config_of([*sets, "eval.reported=false"], "in-batch")
    check_alike(run(config, tmp_path / "two").folder, run(alone, tmp_path / "one").folder)


def test_torchrun_is_refused(sets, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(NegbenchError, match=r"start it once, without torchrun, with --set compute\.processes=4"):
        run(config_of(sets, "qure"), tmp_path)


@pytest.mark.parametrize("size", ["", "auto", "1"])
def test_other_values_of_torchruns_variable_are_none(size, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assemble_team.check_processes(2, torch.device("cpu"))


def test_more_processes_than_gpus_are_refused():
    with pytest.raises(OptionError, match=r"compute\.processes = 2 needs as many GPUs, and this process sees 0"):
        assemble_team.check_processes(2, torch.device("cuda"))


@pytest.mark.parametrize(("gpus", "backend"), [(0, "gloo"), (2, "cpu:gloo,cuda:nccl")])
def test_gradients_are_summed_with_nccl_where_there_are_gpus(gpus, backend, tmp_path, monkeypatch):
    groups: list[tuple[str, int]] = []

    def init_process_group(backend: str, *, rank: int, **options: Any) -> None:
        groups.append((backend, rank))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.distributed, "init_process_group", init_process_group)
    assemble_team.join(Team(1, 2), tmp_path / "meeting")
    assert groups == [(backend, 1)]


@pytest.mark.parametrize(("rows", "count"), [(7, 2), (1, 3), (6, 3), (0, 2)])
def test_shares_are_even_and_complete(rows, count):
    shares = [Team(number, count).share(rows) for number in range(count)]
    sizes = [share.stop - share.start for share in shares]
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1
    assert [share.start for share in shares[1:]] == [share.stop for share in shares[:-1]]
