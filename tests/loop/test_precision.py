"""Half precision on a CPU: every strategy, loss and term, mined, trained, scored, against float32 within bounds.

`negbench.testing.BackboneTestCase.test_autocast` tests every backbone the same way.
"""

import os
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from negbench.campaign.forewarn import forewarnings
from negbench.contracts import Backbone, BatchStrategy, Loss, LossInput
from negbench.data.scene import DataCache
from negbench.display import Display
from negbench.errors import NegbenchError
from negbench.grid.cells import Cell
from negbench.grid.compute import encode_cells
from negbench.loop import helper
from negbench.loop.assemble_team import TeamTask
from negbench.loop.precision import Precision, automatic
from negbench.loop.runs import DATA, RunContext, compute_or_reuse, plan_run
from negbench.loop.step_plan import StepPlan
from negbench.machine.team import Team
from negbench.plugins.registry import registry
from negbench.settings.config import MiningConfig, RunConfig
from negbench.store.run_result import RunResult
from negbench.store.runfolder import RunFolder
from negbench.systems.system import load_config
from tests.runs import run
from tests.steps import LOSS_SETS, batch_of, made_guide, objective_of

# bounds for the first epoch's loss, with the same batches and draws at all precisions (bf16: 8 bits, fp16: 11)
BOUNDS = {"bf16": 0.03, "fp16": 0.01}
EVERY = "NEGBENCH_FUZZ" in os.environ


def cases() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield every loss over the corpus and over the batch, in bf16 and fp16; in `make fuzz` every strategy, in bf16.

    Pools from scores in fp16 are tested for every strategy by `negbench.testing.StrategyTestCase.test_precision`.
    """
    losses = [*registry.plugins("losses")]
    of_batch = ["in-batch+qure"]
    of_corpus = ["in-batch:1>qure"]
    for name in registry.plugins("strategies"):
        cls = registry.get("strategies", name)
        if name == "oracle-kind" or "listed" in cls.reads:  # these data list and judge no negatives
            continue
        if issubclass(cls, BatchStrategy):
            of_batch.append(name)
        else:
            of_corpus.append(name)
    for names in (of_batch, of_corpus):
        for number, (name, loss) in enumerate(zip(names, cycle(losses), strict=False)):
            if number < len(losses):
                yield name, loss, tuple(BOUNDS)
            elif EVERY:
                yield name, loss, ("bf16",)


@pytest.mark.parametrize(("strategy", "loss", "half"), [*cases()])
def test_every_strategy_and_loss(subtests, strategy, loss, half, sets, tmp_path):
    """Each is a trial's run, without baselines and curves; the test below has those.

    At other seeds of the dev part `in-batch-semi-hard` may pass the bound in bf16, as a score or two cross its margin:
    with the pools of float32 the loss differs by 0.2 % (seeds 0 to 4).
    """
    flags = {"strategy": {"name": strategy}, "loss": {"name": loss}}
    losses = {}
    weights = {}
    for precision in ("fp32", *half):  # two epochs of two steps each, with a refresh between them
        with subtests.test(precision=precision):
            with pytest.MonkeyPatch.context() as patch:
                if precision == "fp16":  # patched in: a run on a CPU refuses fp16
                    patch.setattr(Backbone, "autocast", lambda self: torch.autocast("cpu", torch.float16))
                more = [*LOSS_SETS.get(loss, ()), "eval.reported=false", "eval.dev_seed=3"]
                more.append(f"train.precision={'bf16' if precision == 'bf16' else 'fp32'}")
                result = run(load_config(flags=flags, sets=[*sets, *more]), tmp_path / precision)
            losses[precision] = losses_of(result)
            weights[precision] = result.folder.weights()
            assert np.isfinite(losses[precision]).all(), losses[precision]
            assert np.isfinite(list(result.metrics.values())).all(), result.metrics
            for name, value in weights[precision].items():
                assert value.isfinite().all(), name
    for precision in half:
        bound = BOUNDS[precision]
        assert losses[precision][0] == pytest.approx(losses["fp32"][0], rel=bound, abs=bound / 10), precision
        changed = [name for name, value in weights[precision].items() if not value.equal(weights["fp32"][name])]
        assert changed, f"{precision}: it was computed in float32"


def losses_of(result: RunResult) -> list[float]:
    """Return the training loss of each epoch."""
    return [point["train/loss"] for point in result.folder.metrics() if "train/loss" in point]


def test_a_resumed_run_keeps_the_precision_that_it_started_in(sets, tmp_path, interrupted, monkeypatch):
    """Started where "auto" is bf16, resumed where it is fp32; a manifest of earlier versions records neither."""
    config = load_config(flags={"strategy": {"name": "qure"}}, sets=sets)
    monkeypatch.setattr("negbench.loop.precision.automatic", lambda device: "bf16")
    straight = run(config, tmp_path / "straight").folder
    halves = [interrupted(config, tmp_path / f"half {n}", 1) for n in range(2)]
    monkeypatch.undo()
    earlier = RunFolder(halves[1].runs / straight.run_id)
    manifest = earlier.manifest
    started = manifest.pop("started")
    threads = torch.get_num_threads()
    assert started.items() >= {"device": "cpu", "precision": "bf16", "threads": threads}.items()
    earlier.write_manifest(manifest)
    in_one, in_two = (run(config, context.runs).folder.weights() for context in halves)
    for name, value in straight.weights().items():
        assert torch.equal(in_one[name], value), name
    assert [name for name, value in in_one.items() if not torch.equal(in_two[name], value)]


class _JoinedError(Exception):
    """Ends a helper once it has opened its run."""


def encode(config: RunConfig, context: RunContext) -> None:
    columns = {"backbone": "vectors", "dataset": "vectors"}
    encode_cells([Cell(plan_run(config, DATA), config, columns)], context.runs, Display())


def warn(config: RunConfig, context: RunContext) -> None:
    forewarnings([config], 0.01, Display(), DataCache(), runs=context.runs)


def help_with(config: RunConfig, context: RunContext) -> None:
    task = TeamTask(plan_run(config, DATA), context.runs, Team(1, 2), Path(), StepPlan(), precision="bf16")
    with pytest.raises(_JoinedError):
        helper._help(task)


@pytest.mark.parametrize(
    "open_started", [compute_or_reuse, encode, warn, help_with], ids=lambda function: function.__name__
)
def test_a_run_that_was_started_elsewhere_is_opened_in_its_own_precision_only(
    open_started, sets, tmp_path, interrupted, monkeypatch
):
    """Whatever opens it: other features than its own would be encoded for nothing."""
    config = load_config(flags={"strategy": {"name": "qure"}}, sets=sets)
    monkeypatch.setattr("negbench.loop.precision.automatic", lambda device: "bf16")
    half = interrupted(config, tmp_path, 1)
    monkeypatch.undo()

    def join(team: Team, meeting: Path) -> None:
        raise _JoinedError

    monkeypatch.setattr(helper, "join", join)
    opened: list[str] = []
    scene = DataCache.scene

    def note_precision(cache: DataCache, config: Any, splits: Any, backbone: Backbone, *more: Any) -> Any:
        opened.append(backbone.precision)
        return scene(cache, config, splits, backbone, *more)

    monkeypatch.setattr(DataCache, "scene", note_precision)
    open_started(config, half)
    assert opened == ["bf16"]
    if open_started is compute_or_reuse:
        assert compute_or_reuse(config, half).reused
        assert opened == ["bf16", "bf16"]


@pytest.mark.parametrize(("device", "computes"), [("cpu", True), ("cuda", True), ("cuda", False)])
def test_auto_is_bf16_only_on_a_gpu_that_computes_in_it(device, computes, monkeypatch):
    """A GPU that only emulates bf16 says that it supports it, unless emulation is excluded."""

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation or computes

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    assert automatic(torch.device(device)) == ("bf16" if device == "cuda" and computes else "fp32")


def in_fp16(config: RunConfig, started: str | None = None) -> Precision:
    """Return the precision of a run in fp16 on a CPU; its first losses overflow, as their scale is too large."""
    return Precision(torch.device("cpu"), "fp16", torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3))


def test_a_scaler_skips_what_overflows_and_is_resumed(sets, tmp_path, interrupted, monkeypatch):
    """A run in fp16 on a CPU, which commands refuse; its weights after the skipped steps are near float32's."""
    config = load_config(flags={"strategy": {"name": "in-batch"}}, sets=[*sets, "train.epochs=12"])
    monkeypatch.setattr(Precision, "of", in_fp16)
    scales: list[float] = []

    def note_scale(parts: Any, state: Any, batch: Any) -> None:
        scales.append(parts.scaler.get_scale())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = run(config, tmp_path / "whole", stepped=note_scale)
    assert scales[0] == 2.0**23  # a step that overflowed
    changes = [after - before for before, after in pairwise(scales)]
    assert 2 < changes.index(0) < len(scales) - 8  # the first that did not
    assert max(changes) > 0  # and the scale grows again
    losses = losses_of(whole)
    assert np.isfinite(losses).all(), losses
    assert losses[-1] < losses[0]
    resumed = compute_or_reuse(config, interrupted(config, tmp_path / "half", 10)).folder
    weights = whole.folder.weights()
    for name, value in resumed.weights().items():
        assert torch.equal(value, weights[name]), name


@pytest.mark.parametrize("strategy", ["qure", "hycole"])
@pytest.mark.parametrize("loss", registry.plugins("losses"))
def test_a_loss_reads_float32(loss, strategy, tuned, monkeypatch):
    """Scores, temperatures, weights and aspects' scores, of the images and of the hybrid terms, under bf16.

    A guide and a learned bias, too; there are no terms beside these, and a guide scores images alone.
    """
    if (loss, strategy) == ("guide-kl", "hycole"):
        strategy = "in-batch+qure"
    terms = loss not in ("guide-kl", "siglip")
    mining = MiningConfig(exclude_relevant=loss == "multi-positive")
    guide = {"guide": made_guide(tuned)}
    objective = objective_of(tuned, strategy, loss, mining, terms=terms, offline=guide)
    batch = batch_of(tuned, strategy)
    types = Counter[torch.dtype]()
    value_of = objective.loss.value

    def note_types(self: Loss, given: LossInput) -> Tensor:
        for record in (given, *given.aspects):
            for value in vars(record).values():
                if isinstance(value, Tensor) and value.is_floating_point():
                    types[value.dtype] += 1
        loss_value = value_of(given)
        types[loss_value.dtype] += 1
        return loss_value

    monkeypatch.setattr(type(objective.loss), "value", note_types)
    monkeypatch.setattr(tuned.backbone, "precision", "bf16")
    with tuned.backbone.autocast():
        result = objective(batch)
    result.loss.backward()
    assert types.keys() == {torch.float32}
    assert types.total() > 3
    assert {p.grad.dtype for p in objective.parameters() if p.grad is not None} == {torch.float32}


def test_fp16_without_a_gpu_is_refused(sets, tmp_path):
    """fp16 without a GPU is refused, because it would be computed in float32."""
    config = load_config(flags={"strategy": {"name": "qure"}}, sets=[*sets, "train.precision=fp16"])
    with pytest.raises(NegbenchError, match="'fp16' needs a GPU"):
        run(config, tmp_path)
    assert not list(tmp_path.glob("*/config.json"))
