from __future__ import annotations

import math

import pytest
import torch

from negbench.contracts import ScoreView
from negbench.strategies.simans import Simans
from negbench.testing import as_sets, ranking, toy_views


def _shares(weights: torch.Tensor) -> list[list[float]]:
    total = weights.sum(1, keepdim=True)
    return (weights / torch.where(total > 0, total, 1.0)).tolist()


def _naive(view: ScoreView, row: int, strategy: Simans) -> list[float]:
    scores = view.scores[row].tolist()
    positive, weight = scores[int(view.target[row])], [0.0] * len(scores)
    for j in ranking(view, row)[: strategy.k]:
        if strategy.variant == "absolute":
            weight[j] = math.exp(-strategy.a * abs(scores[j] - positive))
        else:
            sign = 1 if strategy.variant == "release" else -1
            weight[j] = math.exp(-strategy.a * (scores[j] - positive + sign * strategy.b) ** 2)
    total = sum(weight)
    return [w / total if total else 0.0 for w in weight]


STRATEGIES = [
    Simans(),
    Simans(a=20, b=0.25, k=7),
    Simans(a=20, b=0.25, k=7, variant="release"),
    Simans(a=3, variant="absolute"),
    Simans(a=0, k=3),
]


def test_against_loops() -> None:
    for strategy in STRATEGIES:
        for view in toy_views():
            for i, got in enumerate(_shares(strategy.pool(view))):
                assert got == pytest.approx(_naive(view, i, strategy), rel=1e-6)


def test_b_moves_the_likeliest_image_above_or_below_the_target() -> None:
    view = ScoreView(torch.tensor([[0.0, -0.5, -0.25, 0.25, 0.5]]) - 2, torch.tensor([0]))
    assert Simans(a=50, b=0.5).pool(view).argmax() == 4
    assert Simans(a=50, b=0.5, variant="release").pool(view).argmax() == 1


def test_nothing_underflows() -> None:
    view = ScoreView(torch.tensor([[1.0, -0.5, -0.75, -1.0]]), torch.tensor([0]))
    weights = Simans(a=1e6).pool(view)
    assert as_sets(weights) == [{1, 2, 3}]
    assert weights[0, 1] == 1
