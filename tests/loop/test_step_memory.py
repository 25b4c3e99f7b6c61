"""Memory of a step: the estimate from shapes alone against tensors that are followed through real steps."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from negbench.loop import step_memory
from negbench.loop.batches import epoch_batches
from negbench.loop.checkpoint import seeded_randomness
from negbench.loop.step_memory import Architecture, MemoryCount, StepRows, step_bytes
from negbench.loop.step_plan import StepPlan
from negbench.loop.train import train_step, training_parts
from negbench.loop.types import OpenRun, State
from negbench.plugins.registry import registry
from tests.runs import config_of, untrained

WIDE = "{vit_hidden_size=64, qformer_hidden_size=64, qformer_layers=4, qformer_intermediate_size=256}"
BLIP2 = ["backbone.name=blip2", "backbone.init=random", "backbone.size=toy", f"backbone.config={WIDE}"]
BLIP = ["backbone.name=blip", "backbone.init=random", "backbone.size=toy"]
CLIP = ["backbone.name=clip", "backbone.init=random", "backbone.size=toy", "backbone.frozen=false"]
CASES = {"blip2": (BLIP2, "qure"), "blip": (BLIP, "in-batch"), "clip": (CLIP, "hycole")}


def open_toy_run(root: Path, sets: list[str], strategy: str) -> OpenRun:
    shared = [f"dataset.root='{root}'", "train.epochs=1", "train.batch_size=36", "compute.device=cpu"]
    return untrained(config_of([*shared, *sets], strategy))


def measure_step(run: OpenRun) -> int:
    """Return the most bytes of tensors during the second step of a run: its optimizer and gradients are there."""
    strategy = registry.make("strategies", run.config.strategy.name, **run.config.strategy.options)
    parts = training_parts(run, strategy)
    state = State()
    if strategy.scope == "corpus":
        targets = run.scene.train.dataset.target_columns
        state.negatives = (targets[:, None] + 1 + torch.arange(run.config.train.draws)) % len(run.scene.train.images)
    with seeded_randomness(0, torch.device("cpu")):
        run.backbone.train()
        first, second = list(epoch_batches(run, parts.objective, state, parts.streams, strategy))[:2]
        train_step(run, parts, state, first)
        state.step += 1
        count = MemoryCount()
        for parameter in run.backbone.parameters():
            if parameter.grad is not None:
                count.add(parameter.grad)
        with count:
            train_step(run, parts, state, second)
    return count.peak


@pytest.mark.parametrize(("sets", "strategy"), CASES.values(), ids=CASES)
def test_the_estimate_is_what_a_step_takes(sets, strategy, toy_root, tmp_path, monkeypatch):
    """Gradients, inputs and activations within 20 %; weights and moments are counted, not estimated."""
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    run = open_toy_run(toy_root, sets, strategy)
    parts = step_memory.step_memory(run, StepPlan())
    trained = sum(p.nbytes for p in run.backbone.parameters() if p.requires_grad)
    assert parts["moments"] == 2 * trained
    assert parts["gradients"] == trained
    estimate = sum(parts.values()) - parts["weights"] - parts["moments"]
    assert estimate == pytest.approx(measure_step(run), rel=0.2)


def test_memory_counted_is_what_is_alive():
    """By hand: 400 bytes made, a view and a change in place are no more, 800 more at the peak."""
    before = torch.zeros(100)
    count = MemoryCount()
    with count:
        after = before + 1
        before.mul_(2)
        view = after[:50]
        assert count.now == 400
        twice = torch.cat([after, after])
        assert count.now == 1200
        del twice
        assert count.now == 400
        product = torch.ones(3, 4) @ torch.ones(4, 5)
    assert count.peak == 1200
    assert count.operations == 2 * 3 * 4 * 5
    assert len(view) + product.numel() == 65


def memory_of_rows(architecture: Architecture, name: str, rows: int, *, recompute: bool) -> step_memory.CallMemory:
    if recompute:
        return step_memory.CallMemory(10, 200, output=8, operations=30, forward=10) * rows
    return step_memory.CallMemory(1000, 100, output=8, operations=30, forward=10) * rows


def test_micro_batches_hold_one_part_at_a_time(toy_root, monkeypatch):
    """By hand: 32 queries and 64 images of 1,000 bytes and 100 passing; in parts of 4 only those, and the leaves.

    Of four processes each has 8 queries and 16 images, and the leaves of all.
    """
    run = open_toy_run(toy_root, BLIP2, "qure")
    monkeypatch.setattr(Architecture, "call", memory_of_rows)
    architecture = Architecture.of(run)
    rows = StepRows({"queries": 32, "candidates": 64}, read=96, scores=0)

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
    run = open_toy_run(toy_root, sets, "qure")
    monkeypatch.setattr(Architecture, "call", memory_of_rows)
    architecture = Architecture.of(run)
    rows = StepRows({"queries": 32, "candidates": 64}, read=96, scores=0)
    alone = step_bytes(architecture, rows, StepPlan(processes=1), gpu=False)
    of_two = step_bytes(architecture, rows, StepPlan(processes=2), gpu=False)
    part = "features" if run.backbone.frozen_images else "pixels"
    assert of_two[part] * 96 == alone[part] * whole


def test_many_images_pass_in_parts(toy_root, monkeypatch):
    """By hand: of 2,000 images 512 keep activations; all have leaves, 4 rows of features are kept, 1,024 in use."""
    run = open_toy_run(toy_root, BLIP2, "qure")
    monkeypatch.setattr(Architecture, "call", memory_of_rows)
    architecture = Architecture.of(run)
    row = 4 * math.prod(architecture.features)
    monkeypatch.setattr(step_memory, "KEPT_BYTES", 4 * row)
    rows = StepRows({"queries": 32, "candidates": 2000}, read=2032, scores=0, corpus=2000)
    plain = step_bytes(architecture, rows, StepPlan(), gpu=False)
    assert plain["features"] == row * (32 + 1024 + 4)
    assert plain["activations"] == 32 * 1000 + 512 * 1000 + 512 * 100 + 2 * 8 * 2000
    with_bank = step_bytes(architecture, replace(rows, bank=3000, bank_read=3000), StepPlan(), gpu=False)
    assert with_bank["activations"] - plain["activations"] == 8 * 3000
    assert with_bank["features"] - plain["features"] == row * 1024


OPERATIONS = {  # of 32 queries and some images, 30 a row, 10 of them forward
    "whole": ({"candidates": 64}, {}, StepPlan(), {"queries": 960, "candidates": 1920}),
    "micro-batches pass forward twice": ({"candidates": 64}, {}, StepPlan(4), {"queries": 1280, "candidates": 2560}),
    "many images do": ({"candidates": 2000}, {}, StepPlan(), {"queries": 960, "candidates": 80_000}),
    "a bank passes forward": (
        {"candidates": 64},
        {"bank": 100, "bank_read": 100},
        StepPlan(),
        {"queries": 960, "candidates": 1920, "bank": 1000},
    ),
    "each of two processes half": ({"candidates": 64}, {}, StepPlan(0, False, 2), {"queries": 480, "candidates": 960}),
    "a queue does not": ({"candidates": 64}, {"bank": 100}, StepPlan(), {"queries": 960, "candidates": 1920}),
}


@pytest.mark.parametrize(("calls", "more", "plan", "expected"), OPERATIONS.values(), ids=OPERATIONS)
def test_operations_of_a_step(calls, more, plan, expected, toy_root, monkeypatch):
    run = open_toy_run(toy_root, BLIP2, "qure")
    monkeypatch.setattr(Architecture, "call", memory_of_rows)
    rows = StepRows({"queries": 32, **calls}, read=0, scores=0, **more)
    assert step_memory.step_operations(Architecture.of(run), rows, plan) == expected


def test_a_pass_forward_is_a_third_of_a_call(toy_root, tmp_path, monkeypatch):
    """A product takes as much for its value as for each of its two gradients; the images' features get none."""
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    call = Architecture.of(open_toy_run(toy_root, BLIP2, "qure")).call("queries", 8)
    assert 1 / 3 <= call.forward / call.operations < 0.4


ROWS = {
    "drawn": ("qure", ["train.num_negatives=2"], {"queries": 36, "candidates": 96}, (0, 0, 0)),
    "batch": ("in-batch", [], {"queries": 36, "candidates": 36}, (0, 0, 0)),
    "crossed": ("hycole", [], {"queries": 36, "candidates": 36, "cross_queries": 36}, (0, 0, 0)),
    "corpus": (
        "qure",
        ["loss.name=margin-kl", "loss.kl_over=corpus"],
        {"queries": 36, "sub_queries": 36, "candidates": 96},
        (96, 0, 0),
    ),
    "bank": ("bank", [], {"queries": 36, "candidates": 36}, (0, 96, 96)),
    "queue": ("xbm", ["strategy.queue=500"], {"queries": 36, "candidates": 36}, (0, 500, 0)),
}


@pytest.mark.parametrize(("strategy", "more", "calls", "others"), ROWS.values(), ids=ROWS)
def test_rows_of_a_step(strategy, more, calls, others, toy_root):
    run = open_toy_run(toy_root, [*BLIP2, *more], strategy)
    rows = StepRows.of(run.config, run.scene.train.dataset, run.backbone)
    assert rows.calls == calls
    assert (rows.corpus, rows.bank, rows.bank_read) == others


def test_traces_are_kept_by_backbone_and_precision(toy_root, tmp_path, monkeypatch, spy_on):
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    run = open_toy_run(toy_root, BLIP2, "qure")
    monkeypatch.setattr(step_memory, "trace", memory_of_rows)
    traced = spy_on(step_memory, "trace")
    for _ in range(2):
        step_memory.step_memory(run, StepPlan())
    assert sorted(name for _, name, *_ in traced) == ["candidates", "queries"]
    other = Architecture(run.backbone, "bf16", run.config, run.scene.train.dataset.images)
    other.call("queries", 8)
    assert len(traced) == 3


def test_tracing_changes_nothing(toy_root, tmp_path, monkeypatch):
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    run = open_toy_run(toy_root, BLIP2, "qure")
    before = {name: value.clone() for name, value in run.backbone.state_dict().items()}
    random = torch.get_rng_state()
    modes = [module.training for module in run.backbone.modules()]
    Architecture.of(run).call("queries", 8)
    after: dict[str, Tensor] = run.backbone.state_dict()
    for name, value in before.items():
        assert torch.equal(value, after[name]), name
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in run.backbone.modules()] == modes
    assert [name for name, parameter in run.backbone.named_parameters() if parameter.grad is not None] == []


def test_rows_and_pairs_are_told_apart(toy_root, monkeypatch):
    """7 bytes for each row of a side and 3 for each pair, from two traces."""
    run = open_toy_run(toy_root, CLIP, "hycole")

    def squares(_: Architecture, name: str, rows: int, *, recompute: bool) -> step_memory.CallMemory:
        return step_memory.CallMemory(7 * rows + 3 * rows**2, 0, output=0, operations=0, forward=0)

    monkeypatch.setattr(step_memory, "trace", squares)
    monkeypatch.setattr(Architecture, "_read_or_make", lambda self, part, make: make())
    assert Architecture.of(run).call("cross_queries", 100).held == pytest.approx(7 * 100 + 3 * 100**2)


def test_traces_share_one_copy_of_the_backbone(toy_root, tmp_path, monkeypatch, spy_on):
    """Copying takes longer than a fifth of a trace; a trace finds the copy as the first one did, in any order."""
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    run = open_toy_run(toy_root, BLIP, "in-batch")
    calls = list(itertools.product(("image_features", "queries", "candidates"), (False, True)))
    first = {}
    for name, recompute in calls:
        first[name, recompute] = step_memory.trace(Architecture.of(run), name, 4, recompute=recompute)
    copies = spy_on(step_memory.copy, "deepcopy")
    architecture = Architecture.of(run)
    for name, recompute in reversed(calls):
        again = step_memory.trace(architecture, name, 4, recompute=recompute)
        assert again == first[name, recompute], (name, recompute)
    assert first["queries", True].held < first["queries", False].held
    assert len(copies) == 1
