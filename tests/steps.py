"""A training step by itself: its objective and batch, and the gradients of the parameters by how it is computed."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from negbench.api import make_loss, make_strategy
from negbench.loop.objective import Batch, Objective
from negbench.loop.training_calls import TrainingCalls
from negbench.loop.types import OpenRun
from negbench.machine.team import ALONE, Team
from negbench.mining.planes import EmbeddedPlane, Plane
from negbench.settings.config import HybridConfig, MiningConfig

Gradients = dict[str, Tensor | None]

# `--set` values and options of losses that need some to have a gradient: a guide of the same weights would agree
LOSS_SETS = {"multi-positive": ("mining.exclude_relevant=true",), "guide-kl": ("loss.guide_tau=0.2",)}

BOUND = 5e-6  # of the largest gradient: sums in another order


def gradients_of(objective: Objective, batch: Batch, micro_batch: int) -> tuple[float, Gradients]:
    """Return the loss of a batch in parts of so many rows (0: whole), and the gradients by parameter."""
    calls: Any = objective.calls
    calls.micro_batch = micro_batch
    objective.backbone.train()
    objective.zero_grad()
    loss = objective(batch, step=5).loss
    calls.backward(loss, list(objective.parameters()))
    named = objective.named_parameters()
    return float(loss.detach()), {name: None if p.grad is None else p.grad.clone() for name, p in named}


def check_equal(one: tuple[float, Gradients], other: tuple[float, Gradients]) -> None:
    """Check that two steps have the same loss and the same gradients, none of them by default."""
    loss, gradients = one
    other_loss, other_gradients = other
    assert loss == pytest.approx(other_loss, rel=1e-5)
    trained = {name: value for name, value in gradients.items() if value is not None}
    assert trained.keys() == {name for name, value in other_gradients.items() if value is not None}
    largest = max(float(value.abs().max()) for value in trained.values())
    assert largest > 0
    for name, value in trained.items():
        assert float((value - other_gradients[name]).abs().max()) <= BOUND * largest, name


def objective_of(
    opened: OpenRun,
    strategy: str,
    loss: str,
    mining: MiningConfig | None = None,
    *,
    team: Team = ALONE,
    terms: bool = True,
    offline: Mapping[str, Plane] | None = None,
    **options: Any,
) -> Objective:
    """Return the objective of a run's backbone under another strategy and loss, with hybrid terms or without."""
    hybrid = HybridConfig()
    if terms:
        hybrid = HybridConfig(alpha=0.4, beta=0.1, temperature="backbone" if loss == "margin-kl" else "own")
    calls = TrainingCalls(opened.backbone, seed=3, team=team)
    rule = make_strategy(strategy)
    return Objective(calls, rule, make_loss(loss, **options), opened.scene, mining or MiningConfig(), hybrid, offline)


def batch_of(opened: OpenRun, strategy: str) -> Batch:
    rows = torch.tensor([3, 40, 11, 25, 6, 7])
    drawn = torch.arange(12).reshape(6, 2) * 5 if make_strategy(strategy).scope == "corpus" else None
    return Batch(rows, drawn, {name: value[rows] for name, value in opened.scene.train.tokens.items()})


def made_guide(opened: OpenRun) -> EmbeddedPlane:
    """Return a guide of random embeddings."""
    generator = torch.Generator().manual_seed(2)
    data = opened.scene.train.dataset
    queries = normalize(torch.randn(len(data.queries), 8, generator=generator), dim=-1)
    images = normalize(torch.randn(len(data.images), 1, 8, generator=generator), dim=-1)
    return EmbeddedPlane(queries, images)
