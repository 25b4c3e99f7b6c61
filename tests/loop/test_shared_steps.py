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

Found = tuple[float, Gradients]


@pytest.fixture
def shared(forked: Callable[..., Any], tmp_path: Path) -> Callable[..., list[Found]]:
    """Return a function that computes a step in two processes; it returns loss and gradients of each."""

    def compute(make: Callable[[Team], Objective], batch: Batch, micro_batch: int) -> list[Found]:
        def one(number: int) -> None:
            team = Team(number, 2)
            join(team, tmp_path / "meeting")
            torch.save(gradients_of(make(team), batch, micro_batch), tmp_path / f"{number}.pt")

        processes = [forked(partial(one, number)) for number in range(2)]
        for process in processes:
            printed = process.communicate()
            assert process.returncode == 0, printed
        return [torch.load(tmp_path / f"{number}.pt", weights_only=True) for number in range(2)]

    return compute


def check_shared(make: Callable[[Team], Objective], batch: Batch, micro_batch: int, shared: Any) -> None:
    """Check that both processes have the loss and the gradients of one process, and the same bits as each other."""
    alone = gradients_of(make(ALONE), batch, 0)
    first, second = shared(make, batch, micro_batch)
    assert first[0] == second[0]
    for name, gradient in first[1].items():
        other = second[1][name]
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
def test_a_trained_tower_with_terms_and_aspects(strategy, loss, micro_batch, options, tuned, shared):
    """Every call of a backbone, three temperatures, and the learned weights of the aspects."""

    def make(team: Team) -> Objective:
        return objective_of(tuned, strategy, loss, team=team, **options)

    batch = batch_of(tuned, strategy)
    check_shared(make, batch, micro_batch, shared)
    _, found = gradients_of(make(ALONE), batch, 0)
    direct = [name for name in found if name.endswith("logit_scale") or name.startswith("scalars")]
    assert any(found[name] is not None and float(found[name].abs().max()) > 0 for name in direct), direct


INPUTS = {"siglip": "in-batch", "guide-kl": "in-batch+qure", "multi-positive": "in-batch"}


@pytest.mark.parametrize(("loss", "strategy"), INPUTS.items(), ids=INPUTS)
def test_a_learned_bias_a_guide_and_further_positives(loss, strategy, tuned, shared):
    mining = MiningConfig(exclude_relevant=loss == "multi-positive")
    guide = {"guide": made_guide(tuned)}

    def make(team: Team) -> Objective:
        return objective_of(tuned, strategy, loss, mining, team=team, terms=False, offline=guide)

    batch = batch_of(tuned, strategy)
    check_shared(make, batch, 2, shared)
    _, found = gradients_of(make(ALONE), batch, 0)
    assert ("scalars.bias" in found) == (loss == "siglip")
    assert all(float(found[name].abs()) > 0 for name in found.keys() & {"scalars.bias"})


@pytest.fixture(scope="module")
def with_dropout(toy_root: Path) -> Callable[[str], OpenRun]:
    """Return a function that opens a run of a toy BLIP-2 or BLIP."""

    def opened(name: str) -> OpenRun:
        options: Sequence[str] = ("init='random'", "size='toy'", "attribute_weights=true")
        sets = [f"dataset.root='{toy_root}'", "train.batch_size=6", *(f"backbone.{option}" for option in options)]
        return untrained(config_of(sets, "qure", backbone={"name": name}))

    return opened


@pytest.mark.parametrize("name", ["blip2", "blip"])
def test_masks_of_dropout_belong_to_rows_whoever_computes_them(name, with_dropout, shared):
    """Micro-batches, too; BLIP's tower trains. A step of another number draws other masks."""
    run = with_dropout(name)
    assert any(isinstance(part, RowDropout) and part.p > 0 for part in run.backbone.modules())
    batch = batch_of(run, "qure")

    def make(team: Team) -> Objective:
        return objective_of(run, "qure", "margin-kl", team=team, terms=False)

    check_shared(make, batch, 2, shared)


def test_the_corpus_in_every_step(with_dropout, shared, monkeypatch):
    """Images pass in parts, of which each process computes its own."""
    monkeypatch.setattr("negbench.loop.objective.EMBED_BATCH", 32)
    monkeypatch.setattr("negbench.loop.training_calls.EMBED_BATCH", 32)
    run = with_dropout("blip2")

    def make(team: Team) -> Objective:
        return objective_of(run, "qure", "margin-kl", team=team, terms=False, kl_over="corpus")

    check_shared(make, batch_of(run, "qure"), 0, shared)
