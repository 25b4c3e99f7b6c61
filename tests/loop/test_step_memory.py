"""Memory of a step: the estimate from shapes alone against tensors that are followed through real steps."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from negbench.loop import step_memory
from negbench.loop.batches import epoch_batches
from negbench.loop.checkpoint import own_randomness
from negbench.loop.step_memory import Architecture, Ledger, StepRows, step_bytes
from negbench.loop.step_plan import StepPlan
from negbench.loop.train import _step, training_parts
from negbench.loop.types import OpenRun, State
from negbench.plugins.registry import registry
from tests.runs import config_of, untrained

WIDE = "{vit_hidden_size=64, qformer_hidden_size=64, qformer_layers=4, qformer_intermediate_size=256}"
BLIP2 = ["backbone.name=blip2", "backbone.init=random", "backbone.size=toy", f"backbone.config={WIDE}"]
BLIP = ["backbone.name=blip", "backbone.init=random", "backbone.size=toy"]
CLIP = ["backbone.name=clip", "backbone.init=random", "backbone.size=toy", "backbone.frozen=false"]
CASES = {"blip2": (BLIP2, "qure"), "blip": (BLIP, "in-batch"), "clip": (CLIP, "hycole")}


def opened(root: Path, sets: list[str], strategy: str) -> OpenRun:
    shared = [f"dataset.root='{root}'", "train.epochs=1", "train.batch_size=36", "compute.device=cpu"]
    return untrained(config_of([*shared, *sets], strategy))


def followed(run: OpenRun) -> int:
    """Return the most bytes of tensors during the second step of a run: its optimizer and gradients are there."""
    strategy = registry.make("strategies", run.config.strategy.name, **run.config.strategy.options)
    parts, state = training_parts(run, strategy), State()
    if strategy.scope == "corpus":
        targets = run.scene.train.dataset.target_columns
        state.negatives = (targets[:, None] + 1 + torch.arange(run.config.train.draws)) % len(run.scene.train.images)
    with own_randomness(0, torch.device("cpu")):
        run.backbone.train()
        first, second = list(epoch_batches(run, parts.objective, state, parts.streams, strategy))[:2]
        _step(run, parts, state, first)
        state.step += 1
        ledger = Ledger()
        for parameter in run.backbone.parameters():
            if parameter.grad is not None:
                ledger.add(parameter.grad)
        with ledger:
            _step(run, parts, state, second)
    return ledger.peak


@pytest.mark.parametrize(("sets", "strategy"), CASES.values(), ids=CASES)
def test_the_estimate_is_what_a_step_takes(sets, strategy, toy_root, tmp_path, monkeypatch):
    """Gradients, inputs and activations within 20 %; weights and moments are counted, not estimated."""
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    run = opened(toy_root, sets, strategy)
    told = step_memory.step_memory(run, StepPlan())
    trained = sum(p.nbytes for p in run.backbone.parameters() if p.requires_grad)
    assert told["moments"] == 2 * trained
    assert told["gradients"] == trained
    estimate = sum(told.values()) - told["weights"] - told["moments"]
    assert estimate == pytest.approx(followed(run), rel=0.2)


def test_a_ledger_counts_what_is_alive():
    """By hand: 400 bytes made, a view and a change in place are no more, 800 more at the peak."""
    before = torch.zeros(100)
    ledger = Ledger()
    with ledger:
        kept = before + 1
        before.mul_(2)
        view = kept[:50]
        assert ledger.now == 400
        twice = torch.cat([kept, kept])
        assert ledger.now == 1200
        del twice
        assert ledger.now == 400
        product = torch.ones(3, 4) @ torch.ones(4, 5)
    assert ledger.peak == 1200
    assert ledger.operations == 2 * 3 * 4 * 5
    assert len(view) + product.numel() == 65


def made_up(architecture: Architecture, name: str, rows: int, *, recompute: bool) -> step_memory.CallMemory:
    held, passing = (1000, 100) if not recompute else (10, 200)
    return step_memory.CallMemory(held, passing, output=8, operations=0) * rows


def test_micro_batches_hold_one_part_at_a_time(toy_root, monkeypatch):
    """By hand: 32 queries and 64 images of 1,000 bytes and 100 passing; in parts of 4 only those, and the leaves.

    Of four processes each has 8 queries and 16 images, and the leaves of all.
    """
    run = opened(toy_root, BLIP2, "qure")
    monkeypatch.setattr(Architecture, "call", made_up)
    architecture, rows = Architecture.of(run), StepRows({"queries": 32, "candidates": 64}, read=96, scores=0)

    def activations(plan: StepPlan) -> int:
        return step_bytes(architecture, rows, plan, gpu=False)["activations"]

    assert activations(StepPlan()) == 96 * 1000 + 64 * 100
    assert activations(StepPlan(recompute=True)) == 96 * 10 + 64 * 200
    assert activations(StepPlan(4)) == 4 * 1000 + 4 * 100 + 2 * 8 * 96
    assert activations(StepPlan(processes=4)) == 24 * 1000 + 16 * 100 + 2 * 8 * 96
    assert activations(StepPlan(4, processes=4)) == activations(StepPlan(4))
    assert activations(StepPlan(16, processes=4)) == 16 * 1000 + 16 * 100 + 2 * 8 * 96


@pytest.mark.parametrize(("sets", "whole"), [(BLIP2, 96), (BLIP, 48)], ids=["features", "pixels"])
def test_each_process_reads_the_pixels_of_its_own_pictures(sets, whole, toy_root, monkeypatch):
    """Stored features are read whole in every process."""
    run = opened(toy_root, sets, "qure")
    monkeypatch.setattr(Architecture, "call", made_up)
    architecture, rows = Architecture.of(run), StepRows({"queries": 32, "candidates": 64}, read=96, scores=0)
    alone, two = (step_bytes(architecture, rows, StepPlan(processes=count), gpu=False) for count in (1, 2))
    read = "features" if run.backbone.frozen_images else "pixels"
    assert two[read] * 96 == alone[read] * whole


ROWS = {
    "drawn": ("qure", ["train.num_negatives=2"], {"queries": 36, "candidates": 96}),
    "batch": ("in-batch", [], {"queries": 36, "candidates": 36}),
    "crossed": ("hycole", [], {"queries": 36, "candidates": 36, "cross_queries": 36}),
    "corpus": (
        "qure",
        ["loss.name=margin-kl", "loss.kl_over=corpus"],
        {"queries": 36, "sub_queries": 36, "candidates": 96},
    ),
}


@pytest.mark.parametrize(("strategy", "more", "calls"), ROWS.values(), ids=ROWS)
def test_rows_of_a_step(strategy, more, calls, toy_root):
    run = opened(toy_root, [*BLIP2, *more], strategy)
    assert StepRows.of(run.config, run.scene.train.dataset, run.backbone).calls == calls


def test_traces_are_kept_by_backbone_and_precision(toy_root, tmp_path, monkeypatch):
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    run = opened(toy_root, BLIP2, "qure")
    traced = []
    monkeypatch.setattr(step_memory, "trace", lambda *given, **how: traced.append(given[1]) or made_up(*given, **how))
    for _ in range(2):
        step_memory.step_memory(run, StepPlan())
    assert sorted(traced) == ["candidates", "queries"]
    other = Architecture(run.backbone, "bf16", run.config, run.scene.train.dataset.images)
    other.call("queries", 8)
    assert len(traced) == 3


def test_tracing_changes_nothing(toy_root, tmp_path, monkeypatch):
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    run = opened(toy_root, BLIP2, "qure")
    before = {name: value.clone() for name, value in run.backbone.state_dict().items()}
    random, modes = torch.get_rng_state(), [module.training for module in run.backbone.modules()]
    Architecture.of(run).call("queries", 8)
    after: dict[str, Tensor] = run.backbone.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in run.backbone.modules()] == modes
    assert all(parameter.grad is None for parameter in run.backbone.parameters())


def test_rows_and_pairs_are_told_apart(toy_root, monkeypatch):
    """7 bytes for each row of a side and 3 for each pair, from two traces."""
    run = opened(toy_root, CLIP, "hycole")

    def squares(_: Architecture, name: str, rows: int, *, recompute: bool) -> step_memory.CallMemory:
        return step_memory.CallMemory(7 * rows + 3 * rows**2, 0, output=0, operations=0)

    monkeypatch.setattr(step_memory, "trace", squares)
    monkeypatch.setattr(Architecture, "_kept", lambda self, part, make: make())
    assert Architecture.of(run).call("cross_queries", 100).held == pytest.approx(7 * 100 + 3 * 100**2)
