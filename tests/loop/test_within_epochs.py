"""A run that ends within an epoch, by a signal or for want of memory, resumes bit for bit after its last step."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from negbench.errors import PausedError
from negbench.loop import checkpoint
from negbench.loop.objective import Objective
from negbench.machine import signals
from negbench.machine.signals import Stopped, TimeUp, limit_hours
from negbench.store.runfolder import RunFolder
from tests.runs import config_of, run

SETS = ["train.epochs=3", "train.batch_size=10", "schedule.n_def=2"]  # five steps an epoch
BLIP2 = ["backbone.name=blip2", "backbone.init=random", "backbone.size=toy", "train.epochs=1", "train.batch_size=24"]
MOVING = {"seconds", "peak_memory_mib"}  # differ from run to run


@pytest.fixture(autouse=True)
def no_signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave no signal and no time limit to other tests."""
    monkeypatch.setattr(signals, "_noted", [])
    yield
    os.environ.pop("NEGBENCH_UNTIL", None)


def record_of(folder: RunFolder) -> dict[str, Any]:
    result = {key: value for key, value in folder.result.items() if key not in MOVING}
    return {
        "result": json.dumps(result, sort_keys=True),
        "points": json.dumps(folder.metrics()),
        "ranks": folder.ranks().to_json(),
        "weights": {name: value.tolist() for name, value in folder.weights().items()},
    }


def stop_after(step: int) -> Any:
    """Return a hook that notes SIGTERM in the step of this number, as its handler does."""

    def note_signal(parts: Any, state: Any, batch: Any) -> None:
        if state.step + 1 == step:
            signals._noted.append((15, time.monotonic()))

    return note_signal


def run_in_parts(config: Any, where: Path, steps: list[int]) -> RunFolder:
    """Compute a run that is stopped in each of these steps."""
    for step in steps:
        with pytest.raises(Stopped):
            run(config, where, stepped=stop_after(step))
        signals._noted.clear()
        (folder,) = where.glob("*/checkpoint.pt")
        assert torch.load(folder, weights_only=True)["state"]["step"] == step, f"step {step}"
    return run(config, where).folder


CASES = {
    "corpus": ("qure", ["train.num_negatives=2"]),
    "batch": ("in-batch", []),
    "kept": ("in-batch", ["train.num_negatives=3"]),
    "bank": ("bank", []),
    "queue": ("xbm", []),
    "ordered": ("ngame", []),
    "synthetic": ("mochi", []),
    "union": ("in-batch+qure", []),
    "switch": ("all-corpus:1>in-batch", []),
    "many": ("qure", ["train.num_negatives=12", "loss.name=margin-kl", "loss.kl_over=corpus"]),
}


@pytest.mark.parametrize(("strategy", "more"), CASES.values(), ids=CASES)
def test_a_stop_within_an_epoch_changes_nothing(strategy, more, vector_sets, tmp_path):
    config = config_of([*vector_sets, *SETS], strategy, *more)
    whole = run(config, tmp_path / "whole").folder
    parts = run_in_parts(config, tmp_path / "parts", [1, 7, 10, 14])
    assert record_of(parts) == record_of(whole)


def test_dropout_goes_on_where_it_was(toy_sets, tmp_path):
    config = config_of([*toy_sets[:1], *BLIP2], "qure")
    whole = run(config, tmp_path / "whole").folder
    assert record_of(run_in_parts(config, tmp_path / "parts", [2])) == record_of(whole)


def test_a_time_limit_ends_after_a_step(vector_sets, tmp_path):
    config = config_of([*vector_sets, *SETS], "qure")
    limit_hours(1e-9)
    with pytest.raises(TimeUp, match="--max-hours") as ended:
        run(config, tmp_path)
    assert ended.value.code == 124
    (file,) = tmp_path.glob("*/checkpoint.pt")
    assert torch.load(file, weights_only=True)["state"]["step"] == 1


def test_long_epochs_have_checkpoints_in_between(vector_sets, tmp_path, monkeypatch):
    """Each step is due, so a kill in the seventh loses none of the six before."""
    monkeypatch.setattr(checkpoint, "WITHIN", 0.0)

    def interrupt(parts: Any, state: Any, batch: Any) -> None:
        if state.step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config_of([*vector_sets, *SETS], "qure"), tmp_path, stepped=interrupt)
    (file,) = tmp_path.glob("*/checkpoint.pt")
    assert torch.load(file, weights_only=True)["state"]["step"] == 6


def test_without_memory_a_run_pauses_and_resumes(vector_sets, tmp_path, monkeypatch):
    """The queue, which grows before the loss is computed, does not have the failed step's images twice."""
    config = config_of([*vector_sets, *SETS], "xbm")
    whole = run(config, tmp_path / "whole").folder
    forward = Objective.forward

    def run_out_of_memory(objective: Objective, batch: Any, step: int) -> Any:
        result = forward(objective, batch, step)
        if step == 7:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return result

    monkeypatch.setattr(Objective, "forward", run_out_of_memory)
    message = (
        r"out of memory in step 8: it held .*, and cpu has .*: rerun .* --set compute.micro_batch=5; the run resumes"
    )
    with pytest.raises(PausedError, match=message):
        run(config, tmp_path / "parts")
    monkeypatch.setattr(Objective, "forward", forward)
    (file,) = (tmp_path / "parts").glob("*/checkpoint.pt")
    assert RunFolder(file.parent).status == "interrupted"
    assert record_of(run(config, tmp_path / "parts").folder) == record_of(whole)
