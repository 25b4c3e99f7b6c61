"""The optimiser's options: the rates of torch's one cycle, betas, eps, and epochs without their last, short batch."""

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

from negbench.errors import NegbenchError
from negbench.loop import train
from negbench.loop.runs import compute_or_reuse
from tests.runs import config_of, run

LR = 0.01
STEPS = 2  # of an epoch of 48 queries
ONE_CYCLE = ("train.lr_schedule=one-cycle", "train.beta2=0.98", "train.eps=1e-7", "train.batch_size=24")

# the first as SPRC trains on FashionIQ, the second as on CIRR: 80 epochs of which fewer are run
CYCLES = {
    "FashionIQ": (
        ("train.lr_warmup_epochs=1.5", "train.lr_start_ratio=0.01", "train.min_lr_ratio=1e-6"),
        {"epochs": 4, "pct_start": 1.5 / 4, "div_factor": 100.0},
    ),
    "CIRR": (
        ("train.lr_warmup_epochs=1.6", "train.min_lr_ratio=4e-6", "train.lr_schedule_epochs=80"),
        {"epochs": 80, "pct_start": 1 / 50},
    ),
    "at most half rises": (
        ("train.lr_warmup_epochs=9", "train.lr_start_ratio=0.01", "train.min_lr_ratio=1e-6"),
        {"epochs": 4, "pct_start": 0.5, "div_factor": 100.0},
    ),
}


def torch_cycle(epochs: int, **options: float) -> list[tuple[float, float]]:
    """Return rate and beta1 of every step of four epochs, by torch's scheduler as the released code makes it."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=LR, betas=(0.9, 0.98), eps=1e-7)
    schedule = OneCycleLR(optimizer, max_lr=LR, steps_per_epoch=STEPS, epochs=epochs, **options)
    rates = []
    for _ in range(4 * STEPS):
        (group,) = optimizer.param_groups
        beta1, _ = group["betas"]
        rates.append((group["lr"], beta1))
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(("sets", "options"), CYCLES.values(), ids=CYCLES)
def test_one_cycle_is_torchs(sets, options, vector_sets, tmp_path):
    more = (*ONE_CYCLE, f"train.lr={LR}", "train.epochs=4", *sets)
    rates = []
    constants = set()

    def note_rates(parts, state, batch):
        group = max(parts.optimizer.param_groups, key=lambda group: group["lr"])
        beta1, _ = group["betas"]
        rates.append((group["lr"], beta1))
        for group in parts.optimizer.param_groups:
            _, beta2 = group["betas"]
            constants.add((beta2, group["eps"]))

    run(config_of(vector_sets, "in-batch", *more), tmp_path, stepped=note_rates)
    assert rates == [pytest.approx(pair, rel=1e-9) for pair in torch_cycle(**options)]
    assert constants == {(0.98, 1e-7)}


def test_a_run_that_is_resumed_goes_on_with_its_cycle(vector_sets, tmp_path, interrupted):
    config = config_of(vector_sets, "in-batch", *ONE_CYCLE, "train.epochs=3", "train.lr_warmup_epochs=1.5")
    whole = run(config, tmp_path / "whole").folder.weights()
    resumed = compute_or_reuse(config, interrupted(config, tmp_path / "half", 2)).folder.weights()
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


def test_a_short_batch_is_left_out(vector_sets, tmp_path, monkeypatch):
    """Of 48 queries 20, 20; the other eight differ from epoch to epoch; the loss is the mean over those that count."""
    rows: list[list[int]] = []
    losses: list[float] = []
    step = train.train_step

    def note_step(run, parts, state, batch):
        result = step(run, parts, state, batch)
        rows.append(batch.rows.tolist())
        losses.append(float(result.loss.detach()))
        return result

    monkeypatch.setattr(train, "train_step", note_step)
    config = config_of(vector_sets, "in-batch", "train.batch_size=20", "train.drop_last=true", "train.epochs=3")
    result = run(config, tmp_path)
    assert [len(batch) for batch in rows] == [20] * 6
    assert result.details["steps"] == 6
    epochs = [{*rows[n], *rows[n + 1]} for n in (0, 2, 4)]
    assert [len(epoch) for epoch in epochs] == [40] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    logged = [point["train/loss"] for point in result.folder.metrics() if "train/loss" in point]
    assert logged == [pytest.approx((losses[n] + losses[n + 1]) / 2) for n in (0, 2, 4)]
    rates = [point["train/lr"] for point in result.folder.metrics() if "train/lr" in point]
    assert rates[-1] == pytest.approx(0.01 * result.folder.config.train.lr)  # the schedule ends with the run


REFUSED = {
    "no step": (
        ("train.drop_last=true", "train.batch_size=64"),
        r"^train\.drop_last .* 64, and there are 48 train que",
    ),
    "two masters of beta1": (("train.lr_schedule=one-cycle", "train.beta1=0.8"), r"^train\.beta1 = 0\.8: one-cycle"),
    "by the epoch": (("train.lr_schedule=one-cycle", "train.lr_update=epoch"), r"^train\.lr_update = 'epoch': one-cy"),
    "too short": (("train.lr_schedule_epochs=2", "train.epochs=3"), r"^train\.lr_schedule_epochs = 2: the run has 3 "),
}


@pytest.mark.parametrize(("sets", "message"), REFUSED.values(), ids=REFUSED)
def test_what_contradicts_is_one_line(sets, message, vector_sets, tmp_path):
    with pytest.raises(NegbenchError, match=message) as caught:
        run(config_of(vector_sets, "in-batch", *sets), tmp_path)
    assert "\n" not in str(caught.value)
