"""The engine on a GPU (`make gpu`): it starts as on a CPU at every precision, and resumes to the bit."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from negbench.loop.runs import compute_or_reuse
from negbench.loop.step_memory import step_memory
from negbench.plugins.registry import registry
from negbench.store.run_result import RunResult
from tests.runs import config_of, run, untrained

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
            result = run(config_of(sets, strategy, f"train.precision={precision}"), tmp_path / precision)
            started = result.folder.manifest["started"]
            assert (started["device"], started["precision"]) == ("cuda", precision)
            assert first_loss(result) == pytest.approx(want, rel=bound, abs=bound / 10), precision
            assert {name for name, value in result.metrics.items() if not math.isfinite(value)} == set()


@pytest.mark.parametrize("strategy", ["qure", "cirqrs", "dqe", "in-batch", "xbm"])
def test_resumed_to_the_bit(strategy, sets, tmp_path, interrupted):
    config = config_of(sets, strategy)
    straight = run(config, tmp_path / "straight").folder.weights()
    resumed = compute_or_reuse(config, interrupted(config, tmp_path / "half", 1)).folder.weights()
    for name, value in straight.items():
        assert torch.equal(resumed[name], value), name


def layer_norm(values: Tensor) -> Tensor:
    return functional.layer_norm(values, values.shape[-1:])


def softmax(values: Tensor) -> Tensor:
    return values.softmax(-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("operation", [layer_norm, softmax], ids=lambda function: function.__name__)
def test_norms_and_softmax_stay_float32_under_autocast(operation, dtype):
    """As estimates of memory assume (`negbench.loop.step_memory`); a CPU computes both in the narrow type."""
    values = torch.randn(4, 8, device="cuda", dtype=dtype)
    with torch.autocast("cuda", dtype):
        assert operation(values).dtype == torch.float32


@pytest.mark.parametrize("backbone", ["blip2", "blip", "clip"])
def test_a_step_takes_no_more_than_its_estimate(backbone, toy_root, tmp_path):
    """The estimate includes what CUDA holds besides, which for toy models is nearly all of it."""
    options = ["backbone.init=random", "backbone.size=toy", "train.epochs=1", "train.batch_size=36"]
    if backbone == "clip":
        options.append("backbone.frozen=false")
    config = config_of([f"dataset.root='{toy_root}'", *options], "in-batch", backbone={"name": backbone})
    opened = untrained(config)
    estimate = sum(step_memory(opened, opened.step_plan).values())
    result = run(config, tmp_path)
    assert result.details["peak_memory_mib"] * 2**20 < estimate


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("strategy", ["qure", "in-batch", "hycole"])
def test_two_gpus_compute_what_one_does(strategy, sets, tmp_path):
    """Gradients are summed with nccl."""
    more = ["train.precision=fp32", "eval.reported=false"]
    one = run(config_of([*sets, *more], strategy), tmp_path / "one")
    two = run(config_of([*sets, *more, "compute.processes=2"], strategy), tmp_path / "two")
    assert two.details["computed"][0]["processes"] == 2
    weights = two.folder.weights()
    for name, value in one.folder.weights().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-4, msg=name)
