"""Stacks: the numbers of runs one by one, whatever the strategy and the loss; failures and interruptions of a few."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from negbench.api import make_strategy
from negbench.config import RunConfig
from negbench.contracts import ScoreView
from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.executors import Here
from negbench.grid.cells import Cell, compute, plan, stacks
from negbench.loop.runs import Bench, RunResult, open_run, plan_run, run_config, run_stack
from negbench.loop.stacked import Stack
from negbench.mining.curves import Curves
from negbench.registry import registry
from negbench.runfolder import RunFolder
from negbench.scoring import evaluation
from negbench.systems.system import load_config

SHORT = ("train.epochs=2",)
Cells = Sequence[tuple[str, int]]  # strategy and seed
CORPUS: Cells = [("qure", 0), ("cirqrs", 0), ("dqe", 0), ("all-corpus", 1), ("top-k", 1), ("qure", 1)]


def config_of(strategy: str, seed: int, loss: str, sets: Sequence[str]) -> RunConfig:
    return load_config(flags={"strategy": {"name": strategy}, "loss": {"name": loss}, "seed": seed}, sets=list(sets))


def planned(where: Path, cells: Cells, loss: str, sets: Sequence[str]) -> list[Cell]:
    return plan([config_of(name, seed, loss, sets) for name, seed in cells], where, Display(), Scenes())


def computed(where: Path, cells: Cells, loss: str, sets: Sequence[str], *, stacked: bool = True) -> list[RunFolder]:
    """Folders in the order of the cells; the stack is really one."""
    chosen = planned(where, cells, loss, [*sets, f"train.stacked={str(stacked).lower()}"])
    assert [cell.config.train.stacked for cell in chosen] == [stacked] * len(cells)
    assert len(stacks(chosen, 1)) == (1 if stacked else len(cells))
    found = {outcome.cell.hash: outcome for outcome, _ in compute(chosen, Here(), runs=where, tracking_uri="none")}
    assert [found[cell.hash].error for cell in chosen] == [None] * len(cells)
    return [RunFolder(where / str(found[cell.hash].run_id)) for cell in chosen]


def assert_same_run(stacked: RunFolder, alone: RunFolder) -> None:
    """But for rounding, times, memory, and what names the run."""
    left, right = stacked.weights(), alone.weights()
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], atol=5e-6, rtol=1e-4)
    points = list(zip(stacked.metrics(), alone.metrics(), strict=True))
    for ours, theirs in points:
        assert ours == pytest.approx(theirs, abs=2e-4, rel=2e-3, nan_ok=True)
    assert stacked.ranks()["target_rank"].tolist() == alone.ranks()["target_rank"].tolist()
    for key in ("metrics", "steps", "negatives_seen", "draws", "refresh_epochs", "reported_epoch", "remarks"):
        assert stacked.result[key] == alone.result[key], key
    files = [{p.name for p in folder.path.iterdir()} for folder in (stacked, alone)]
    assert files[0] == files[1]
    for table in sorted(name for name in files[0] if name.startswith("mining-")):
        drawn = [folder.path / table for folder in (stacked, alone)]
        assert _draws(drawn[0]) == _draws(drawn[1])


def _draws(path: Path) -> list[list[int]]:
    import pandas as pd

    return [list(row) for row in pd.read_parquet(path)["negatives"]]


def assert_like_one_by_one(where: Path, cells: Cells, loss: str, sets: Sequence[str]) -> None:
    alone = computed(where / "alone", cells, loss, sets, stacked=False)
    for ours, theirs in zip(computed(where / "stacked", cells, loss, sets), alone, strict=True):
        assert_same_run(ours, theirs)


@pytest.mark.parametrize("loss", ["bradley-terry", "info-nce", "margin-kl"])
@pytest.mark.parametrize("cells", [CORPUS, [("in-batch", 0), ("in-batch", 1)], [("hycole", 0), ("hycole", 1)]], ids=len)
def test_numbers_are_those_of_the_runs_one_by_one(
    tmp_path: Path, vector_sets: list[str], cells: Cells, loss: str
) -> None:
    assert_like_one_by_one(tmp_path, cells, loss, [*vector_sets, *SHORT])


@pytest.mark.parametrize(
    ("cells", "loss", "more"),
    [
        ([("qure", 0), ("top-k", 1)], "info-nce", ("train.num_negatives=3", "train.max_grad_norm=0.05")),
        ([("dqe", 0), ("qure", 0)], "margin-kl", ("mining.exclude_relevant=true", "mining.replacement=true")),
        ([("in-batch", 0), ("in-batch", 1)], "info-nce", ("train.num_negatives=4", "mining.exclude_reference=true")),
        ([("hycole", 0), ("hycole", 1)], "info-nce", ("hybrid.slots='joint'", "train.max_grad_norm=0.05")),
        ([("qure", 0), ("qure", 1)], "bradley-terry", ("eval.select='dev'", "eval.dev_seed=0", "eval.every=2")),
    ],
    ids=["clipped", "kept out", "thinned", "joint", "dev"],
)
def test_options_of_a_run_hold_in_a_stack(
    tmp_path: Path, vector_sets: list[str], cells: Cells, loss: str, more: tuple[str, ...]
) -> None:
    assert_like_one_by_one(tmp_path, cells, loss, [*vector_sets, *SHORT, *more])


@pytest.mark.parametrize("cells", [[("qure", 0), ("dqe", 0)], [("in-batch", 0)]], ids=["drawn", "in batch"])
def test_aspects_and_text_that_is_encoded_once(tmp_path: Path, toy_sets: list[str], cells: Cells) -> None:
    sets = [*toy_sets, *SHORT, "backbone.attribute_weights=true"]
    assert_like_one_by_one(tmp_path, cells, "margin-kl", sets)


def test_worlds_of_vectors(tmp_path: Path) -> None:
    sets = ["dataset='vectors'", "dataset.train_images=60", "dataset.train_queries=40", "dataset.val_images=40"]
    sets += ["dataset.val_queries=20", "backbone='vectors'", "backbone.tokens=3", "backbone.hidden=16", *SHORT]
    assert_like_one_by_one(tmp_path, [("qure", 0), ("all-corpus", 1)], "bradley-terry", sets)


@pytest.mark.parametrize("tau", [None, 0.3])
def test_a_strategy_is_told_what_the_loss_divides_by(
    tmp_path: Path, vector_sets: list[str], tau: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[bool, list[float]] = {}
    for stacked in (False, True):
        told = seen.setdefault(stacked, [])

        def pool(self: Any, view: ScoreView, told: list[float] = told) -> Tensor:
            told.append(view.temperature)
            return view.allowed

        monkeypatch.setattr(type(make_strategy("in-batch")), "pool", pool)
        sets = [*vector_sets, *SHORT, *([] if tau is None else [f"loss.tau={tau}"])]
        computed(tmp_path / str(stacked), [("in-batch", 0)], "info-nce", sets, stacked=stacked)
    assert seen[True] == pytest.approx(seen[False], rel=1e-4)
    assert len(set(seen[True])) == 1 if tau else len(set(seen[True])) > 2


def test_one_stack_gives_the_same_bits_and_another_the_same_numbers(tmp_path: Path, vector_sets: list[str]) -> None:
    sets = [*vector_sets, *SHORT]
    first, again = (computed(tmp_path / name, CORPUS, "bradley-terry", sets) for name in "ab")
    for one, other in zip(first, again, strict=True):
        assert all(torch.equal(value, other.weights()[name]) for name, value in one.weights().items())
        assert one.metrics() == other.metrics()
    (alone,) = computed(tmp_path / "c", CORPUS[:1], "bradley-terry", sets)
    assert_same_run(alone, first[0])


def test_a_single_run_is_a_stack_of_one(tmp_path: Path, vector_sets: list[str]) -> None:
    bench = Bench.open(tmp_path, "none")
    runs = [
        run_config(config_of("qure", 0, "info-nce", [*vector_sets, *SHORT, *more]), bench)
        for more in ((), ("train.stacked=true",))
    ]
    assert runs[0].run_id != runs[1].run_id
    assert_same_run(runs[1].folder, runs[0].folder)
    assert runs[1].details["seconds"]["train"] > 0


# --- what runs share -------------------------------------------------------------------------------------------------

LONGER = ("train.epochs=4", "schedule.n_def=2", "schedule.warmup=2")


def test_runs_of_a_seed_are_one_model_until_they_draw_other_negatives(
    tmp_path: Path, vector_sets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch, models, ranked = Stack.train_epoch, list[list[list[int]]](), list[int]()
    rank = evaluation.rank

    def watched(stack: Stack) -> None:
        epoch(stack)
        models.append([list(model) for model in stack.models])
        assert all(len(value) == len(stack.models) for value in stack.trained.values())

    def counted(*arguments: Any) -> Any:
        ranked.append(1)
        return rank(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Stack, "train_epoch", watched)
        patch.setattr(evaluation, "rank", counted)
        stacked = computed(tmp_path / "stacked", CORPUS, "bradley-terry", [*vector_sets, *LONGER])
    # in the warm-up all draw from the whole corpus
    assert models == [[[0, 1, 2], [3, 4, 5]]] * 2 + [[[0], [1], [2], [3], [4], [5]]] * 2
    # start: either modality alone, too; each warm-up epoch; the two others; the end: either modality alone
    assert len(ranked) == 2 * 3 + 2 * 2 + 2 * 6 + 6 * 2
    alone = computed(tmp_path / "alone", CORPUS, "bradley-terry", [*vector_sets, *LONGER], stacked=False)
    for ours, theirs in zip(stacked, alone, strict=True):
        assert_same_run(ours, theirs)
        assert ours.result["regime_by_refresh"] == [
            pytest.approx(card, abs=2e-4, rel=2e-3, nan_ok=True) for card in theirs.result["regime_by_refresh"]
        ]
        for path in sorted(theirs.path.glob("curves-*.npz")):
            _assert_same_curves(*(Curves.load(folder.path / path.name) for folder in (ours, theirs)))


def _assert_same_curves(ours: Curves, theirs: Curves) -> None:
    for field in dataclasses.fields(Curves):
        np.testing.assert_allclose(getattr(ours, field.name), getattr(theirs, field.name), atol=1e-4, rtol=1e-3)


def test_the_cost_of_a_turn_is_shared_evenly(tmp_path: Path, vector_sets: list[str]) -> None:
    sets = [*vector_sets, *SHORT, "train.stacked=true"]
    scenes = Scenes()
    runs = [open_run(config_of(name, 0, "info-nce", sets), Display(), scenes) for name in ("qure", "top-k")]
    stack = Stack(runs, Display())
    first, second = (run.display.seconds for run in stack.runs)
    first["evaluate"] = 2.0
    with stack.turn([0, 1]):
        first["evaluate"] += 3.0
        second["mine"] = 1.0
    assert first == {"evaluate": 3.5, "mine": 0.5}
    assert second == {"evaluate": 1.5, "mine": 0.5}


# --- what is stacked -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "more", "why"),
    [
        ("qure", ("backbone.fusion='combiner'",), "backbone 'precomputed' with these options cannot be stacked"),
        ("qure", ("loss.kl_over='corpus'",), "the loss takes the whole corpus"),
        ("qure", ("hybrid.temperature='own'",), "temperatures of its own"),
        ("in-batch-cube", (), "takes all triples of a batch"),
        ("qure", ("train.precision='bf16'",), "a stack is trained in fp32"),
        ("in-batch", ("mining.margin=0.1",), "planes and filters of a batch are made in every step"),
    ],
)
def test_what_cannot_be_stacked_is_the_run_that_it_would_be(
    vector_sets: list[str], strategy: str, more: tuple[str, ...], why: str
) -> None:
    plain = plan_run(config_of(strategy, 0, "margin-kl", [*vector_sets, *more]), Scenes())
    asked = plan_run(config_of(strategy, 0, "margin-kl", [*vector_sets, *more, "train.stacked=true"]), Scenes())
    assert not asked.config.train.stacked
    assert asked.hash == plain.hash
    assert why in asked.alone
    assert plain.alone == ""


def test_a_filter_of_a_corpus_strategy_can_be_stacked(vector_sets: list[str]) -> None:
    asked = plan_run(
        config_of("qure", 0, "info-nce", [*vector_sets, "mining.margin=0.1", "train.stacked=true"]), Scenes()
    )
    assert (asked.config.train.stacked, asked.alone) == (True, "")


def test_stacks_hold_what_fits_together(tmp_path: Path, vector_sets: list[str], toy_sets: list[str]) -> None:
    stacked = [*vector_sets, "train.stacked=true"]
    every = [(name, seed) for name in ("qure", "in-batch", "top-k", "hycole") for seed in (0, 1)]
    cells = planned(tmp_path, every, "info-nce", stacked)
    named = [[(cell.config.strategy.name, cell.seed) for cell in group] for group in stacks(cells, 1)]
    assert named == [
        [("qure", 0), ("qure", 1), ("top-k", 0), ("top-k", 1)],
        [("in-batch", 0), ("in-batch", 1)],
        [("hycole", 0), ("hycole", 1)],
    ]
    assert [len(group) for group in stacks(cells, 2)] == [2, 2, 1, 1, 1, 1]
    faster = planned(tmp_path, [("qure", 2)], "info-nce", [*stacked, "train.lr=0.5"])
    assert len(stacks([*cells, *faster], 1)) == 4
    assert [[cell.seed for cell in group] for group in stacks(cells[:2] + cells[4:6], 2)] == [[0, 0], [1, 1]]
    random = planned(tmp_path, [("qure", 0), ("qure", 1)], "info-nce", [*toy_sets, "train.stacked=true"])
    assert len(stacks(random, 1)) == 2  # encoders drawn from the seed: other features


# --- failures --------------------------------------------------------------------------------------------------------

FAULTY = """
from dataclasses import dataclass
import torch
from torch import Tensor
from negbench.contracts import Strategy
from negbench.errors import NegbenchError

@dataclass(frozen=True, kw_only=True)
class FailsLate(Strategy):
    \"\"\"Fails.\"\"\"
    key = "fails-late"
    def pool(self, view):
        if view.refresh:
            raise NegbenchError("no pool today")
        return view.allowed
"""


def test_a_run_that_fails_leaves_its_stack(
    tmp_path: Path, vector_sets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_files", dict(registry._files))
    monkeypatch.setattr(registry, "_classes", dict(registry._classes))
    plugin = tmp_path / "faulty.py"
    plugin.write_text(FAULTY, encoding="utf-8")
    registry.add_file(plugin)
    sets = [*vector_sets, "train.epochs=3", "schedule.n_def=3", "train.stacked=true"]
    cells = planned(tmp_path / "r", [("fails-late", 0), ("qure", 0), ("fails-late", 1), ("top-k", 1)], "info-nce", sets)
    outcomes = [outcome for outcome, _ in compute(cells, Here(), runs=tmp_path / "r", tracking_uri="none")]
    assert [outcome.error for outcome in outcomes] == ["no pool today", None, "no pool today", None]
    failed = next((tmp_path / "r").glob("fails-late*-s0-*"))
    assert RunFolder(failed).status == "failed"
    assert (failed / "error.txt").read_text(encoding="utf-8") == "no pool today\n"
    alone = computed(tmp_path / "a", [("qure", 0), ("top-k", 1)], "info-nce", sets[:-1], stacked=False)
    for outcome, theirs in zip(outcomes[1::2], alone, strict=True):
        assert_same_run(RunFolder(tmp_path / "r" / str(outcome.run_id)), theirs)


def test_an_interrupted_stack_begins_again(
    tmp_path: Path, vector_sets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells: Cells = [("qure", 0), ("top-k", 1)]
    sets = [*vector_sets, *SHORT]
    whole = computed(tmp_path / "whole", cells, "info-nce", sets)
    epoch, turns = Stack.train_epoch, list[int]()

    def killed(stack: Stack) -> None:
        turns.append(1)
        if len(turns) == 2:
            raise KeyboardInterrupt
        epoch(stack)

    with monkeypatch.context() as patch:
        patch.setattr(Stack, "train_epoch", killed)
        with pytest.raises(KeyboardInterrupt):
            computed(tmp_path / "cut", cells, "info-nce", sets)
    folders = [RunFolder(path.parent) for path in (tmp_path / "cut").glob("*/config.json")]
    assert [folder.status for folder in folders] == ["interrupted"] * 2
    for one, other in zip(computed(tmp_path / "cut", cells, "info-nce", sets), whole, strict=True):
        assert one.run_id == other.run_id
        assert one.metrics() == other.metrics()
        assert all(torch.equal(value, other.weights()[name]) for name, value in one.weights().items())


def test_overwrite_of_a_stack(tmp_path: Path, vector_sets: list[str]) -> None:
    sets = [*vector_sets, "train.epochs=1", "train.stacked=true"]
    cells: Cells = [("qure", 0), ("top-k", 1)]
    configs = [config_of(name, seed, "info-nce", sets) for name, seed in cells]
    benches = [Bench.open(tmp_path, "none")] * 2
    names = [run.run_id for run in run_stack(configs, benches) if isinstance(run, RunResult)]
    assert len(names) == 2
    again = planned(tmp_path, cells, "info-nce", sets)
    (RunFolder(tmp_path / names[1]).path / "result.json").unlink()
    found = run_stack(configs, benches, overwrite="never")
    assert isinstance(found[0], RunResult)
    assert found[0].reused
    assert "interrupted before, and --overwrite never leaves it" in str(found[1])
    (anew, _), (other, _) = compute(again, Here(), runs=tmp_path, tracking_uri="none", overwrite="always")
    assert [(o.cell.labels["strategy"], o.run_id, o.reused) for o in (anew, other)] == [
        ("qure", f"{names[0]}-2", False),
        ("top-k", f"{names[1]}-2", False),
    ]
    for name in names:
        assert RunFolder(tmp_path / f"{name}-2").manifest["hash"][:8] in name


def test_a_diverging_stack_says_so_run_by_run(tmp_path: Path, vector_sets: list[str]) -> None:
    sets = [*vector_sets, *SHORT, "train.lr=1e30", "train.stacked=true"]
    cells = planned(tmp_path, [("in-batch", 0), ("in-batch", 1)], "info-nce", sets)
    outcomes: list[Any] = [outcome for outcome, _ in compute(cells, Here(), runs=tmp_path, tracking_uri="none")]
    assert all("loss is nan" in outcome.error or "NaN" in outcome.error for outcome in outcomes)
