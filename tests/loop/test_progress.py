"""What is told while a run trains: lines in its log file, points within epochs, and a store that does not answer."""

import re
import threading
from dataclasses import replace

import pytest

from negbench.data.scene import DataCache
from negbench.loop import progress
from negbench.loop.runs import RunContext, compute_or_reuse
from negbench.loop.types import Callbacks
from negbench.store import tracking
from tests.runs import config_of, run


def test_lines_and_points_within_epochs(vector_sets, tmp_path, monkeypatch):
    """Four epochs of three steps: a line for each, and a point after the second of each epoch."""
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(progress, "POINT", 2)
    losses = []
    config = config_of(vector_sets, "in-batch")
    done = run(config, tmp_path, stepped=lambda parts, state, batch: losses.append(len(state.losses)))
    lines = (done.path / "train.log").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 12
    pattern = (
        r"\S+ \S+ epoch 2, step 5 of 12: .* steps?/?s?.*, loss [\d.]+, .* of training left, .* [MG]iB, waiting \d+%"
    )
    assert re.fullmatch(pattern, lines[4])
    points = [point for point in done.folder.metrics() if "train/step_loss" in point]
    assert [point["step"] for point in points] == [2, 5, 8, 11]
    whole = [point["train/loss"] for point in done.folder.metrics() if "train/loss" in point]
    assert points[0]["train/step_loss"] == pytest.approx(whole[0], rel=0.5)


def test_a_store_that_does_not_answer_stops_no_training(vector_sets, tmp_path, monkeypatch):
    """The store takes the first points only when the last epoch is over; then it has all of them, each once."""
    monkeypatch.setattr(tracking, "_FLUSH_SECONDS", 0.0)
    over = threading.Event()
    sent = []
    slow = []
    log_values = tracking.log_values

    def log_values_late(client, run_id, params, points):
        if threading.current_thread() is not threading.main_thread():
            slow.append(over.wait(60))
        sent.extend(points)
        log_values(client, run_id, params, points)

    def end_waiting(values, step, epoch):
        if epoch == 3 and "train/loss" in values:
            over.set()

    monkeypatch.setattr(tracking, "log_values", log_values_late)
    context = replace(RunContext.open(tmp_path), cache=DataCache(), callbacks=Callbacks(point=end_waiting))
    done = compute_or_reuse(config_of(vector_sets, "in-batch"), context)
    assert done.tracking_error is None
    assert slow[0] is True
    losses = [(step, value) for name, value, step in sent if name == "train/loss"]
    assert losses == [(point["step"], point["train/loss"]) for point in done.folder.metrics() if "train/loss" in point]
