"""The engine on a GPU (`make gpu`): it starts as on a CPU at every precision, and resumes to the bit."""

import math

import pytest
import torch

from negbench.loop.runs import run_config
from negbench.plugins.registry import registry
from negbench.store.run_result import RunResult
from tests.runs import config_of, run

pytestmark = pytest.mark.gpu

BOUNDS = {"fp32": 1e-3, "bf16": 0.03, "fp16": 0.03}  # of the first epoch's loss; fp16 may skip the first step


def first_loss(result: RunResult) -> float:
    return next(float(point["train/loss"]) for point in result.folder.metrics() if "train/loss" in point)


@pytest.mark.parametrize("strategy", [*registry.plugins("strategies"), "in-batch+qure", "in-batch:1>qure"])
def test_every_strategy_starts_as_on_a_cpu(subtests, strategy, sets, tmp_path):
    """Batches are the same on both; draws are where strategies draw on the CPU."""
    want = first_loss(run(config_of(sets, strategy, "compute.device=cpu"), tmp_path / "cpu"))
    for precision, bound in BOUNDS.items():
        with subtests.test(precision=precision):
            got = run(config_of(sets, strategy, f"train.precision={precision}"), tmp_path / precision)
            started = got.folder.manifest["started"]
            assert (started["device"], started["precision"]) == ("cuda", precision)
            assert first_loss(got) == pytest.approx(want, rel=bound, abs=bound / 10), precision
            assert all(map(math.isfinite, got.metrics.values()))


@pytest.mark.parametrize("strategy", ["qure", "cirqrs", "dqe", "in-batch", "xbm"])
def test_resumed_to_the_bit(strategy, sets, tmp_path, interrupted):
    config = config_of(sets, strategy)
    straight = run(config, tmp_path / "straight").folder.weights()
    resumed = run_config(config, interrupted(config, tmp_path / "half", 1)).folder.weights()
    assert all(torch.equal(resumed[name], value) for name, value in straight.items())
