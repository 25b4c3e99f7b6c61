"""Two processes that share a step have the gradients of one: compared as they are, before any optimiser scales them."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from negbench.contracts import RowDropout
from negbench.loop.assemble_team import join
from negbench.loop.objective import Batch, Objective
from negbench.loop.types import OpenRun
from negbench.machine.team import ALONE, Team
from negbench.settings.config import MiningConfig
from tests.runs import config_of, untrained
from tests.steps import Gradients, batch_of, check_equal, gradients_of, made_guide, objective_of

LossAndGradients = tuple[float, Gradients]


@pytest.fixture
def compute_shared(forked: Callable[..., Any], tmp_path: Path) -> Callable[..., list[LossAndGradients]]:
    """Return a function that computes a step in two processes; it returns loss and gradients of each."""

    def compute(make: Callable[[Team], Objective], batch: Batch, micro_batch: int) -> list[LossAndGradients]:
        def compute_one(number: int) -> None:
            team = Team(number, 2)
            join(team, tmp_path / "meeting")
            torch.save(gradients_of(make(team), batch, micro_batch), tmp_path / f"{number}.pt")

        processes = [forked(partial(compute_one, number)) for number in range(2)]
        for process in processes:
            printed = process.communicate()
            assert process.returncode == 0, printed
        return [torch.load(tmp_path / f"{number}.pt", weights_only=True) for number in range(2)]

    return compute


def check_shared(make: Callable[[Team], Objective], batch: Batch, micro_batch: int, compute_shared: Any) -> None:
    """Check that both processes have the loss and the gradients of one process, and the same bits as each other."""
    alone = gradients_of(make(ALONE), batch, 0)
    first, second = compute_shared(make, batch, micro_batch)
    loss, gradients = first
    other_loss, other_gradients = second
    assert loss == other_loss
    for name, gradient in gradients.items():
        other = other_gradients[name]
        assert (gradient is None) == (other is None), name
        if gradient is not None and other is not None:
            assert torch.equal(gradient, other), name
    check_equal(first, alone)


STEPS = {
    "in-batch": ("in-batch", "info-nce", 0, {}),
    "a mined rule": ("qure", "bradley-terry", 0, {}),
    "slots in parts": ("hycole", "info-nce", 2, {}),
    "margin-kl with aspects": ("qure", "margin-kl", 0, {}),
}


@pytest.mark.parametrize(("strategy", "loss", "micro_batch", "options"), STEPS.values(), ids=STEPS)
def test_a_trained_tower_with_terms_and_aspects(strategy, loss, micro_batch, options, tuned, compute_shared):
    """Every call of a backbone, three temperatures, and the learned weights of the aspects."""

    def make(team: Team) -> Objective:
        return objective_of(tuned, strategy, loss, team=team, **options)

    batch = batch_of(tuned, strategy)
    check_shared(make, batch, micro_batch, compute_shared)
    _, gradients = gradients_of(make(ALONE), batch, 0)
    sizes = {}  # of the gradients of parameters that no call of the backbone returns
    for name, gradient in gradients.items():
        if name.endswith("logit_scale") or name.startswith("scalars"):
            sizes[name] = 0.0 if gradient is None else float(gradient.abs().max())
    assert max(sizes.values()) > 0, sizes


INPUTS = {"siglip": "in-batch", "guide-kl": "in-batch+qure", "multi-positive": "in-batch"}


@pytest.mark.parametrize(("loss", "strategy"), INPUTS.items(), ids=INPUTS)
def test_a_learned_bias_a_guide_and_further_positives(loss, strategy, tuned, compute_shared):
    mining = MiningConfig(exclude_relevant=loss == "multi-positive")
    guide = {"guide": made_guide(tuned)}

    def make(team: Team) -> Objective:
        return objective_of(tuned, strategy, loss, mining, team=team, terms=False, offline=guide)

    batch = batch_of(tuned, strategy)
    check_shared(make, batch, 2, compute_shared)
    _, gradients = gradients_of(make(ALONE), batch, 0)
    assert ("scalars.bias" in gradients) == (loss == "siglip")
    if loss == "siglip":
        assert float(gradients["scalars.bias"].abs()) > 0


@pytest.fixture(scope="module")
def open_with_dropout(toy_root: Path) -> Callable[[str], OpenRun]:
    """Return a function that opens a run of a toy BLIP-2 or BLIP."""

    def open_toy(name: str) -> OpenRun:
        options: Sequence[str] = ("init='random'", "size='toy'", "attribute_weights=true")
        sets = [f"dataset.root='{toy_root}'", "train.batch_size=6", *(f"backbone.{option}" for option in options)]
        return untrained(config_of(sets, "qure", backbone={"name": name}))

    return open_toy


@pytest.mark.parametrize("name", ["blip2", "blip"])
def test_masks_of_dropout_belong_to_rows_whoever_computes_them(name, open_with_dropout, compute_shared):
    """Micro-batches, too; BLIP's tower trains. A step of another number draws other masks."""
    run = open_with_dropout(name)
    assert [part for part in run.backbone.modules() if isinstance(part, RowDropout) and part.p > 0]
    batch = batch_of(run, "qure")

    def make(team: Team) -> Objective:
        return objective_of(run, "qure", "margin-kl", team=team, terms=False)

    check_shared(make, batch, 2, compute_shared)


def test_the_corpus_in_every_step(open_with_dropout, compute_shared, monkeypatch):
    """Images pass in parts, of which each process computes its own."""
    monkeypatch.setattr("negbench.loop.objective.EMBED_BATCH", 32)
    monkeypatch.setattr("negbench.loop.training_calls.EMBED_BATCH", 32)
    run = open_with_dropout("blip2")

    def make(team: Team) -> Objective:
        return objective_of(run, "qure", "margin-kl", team=team, terms=False, kl_over="corpus")

    check_shared(make, batch_of(run, "qure"), 0, compute_shared)
