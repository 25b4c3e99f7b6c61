from __future__ import annotations

import math

import pytest
import torch

from negbench.contracts import ScoreView
from negbench.errors import NegbenchError
from negbench.strategies.distance_weighted import DistanceWeighted
from negbench.testing import as_sets, toy_views


def _naive(view: ScoreView, row: int, strategy: DistanceWeighted) -> list[float]:
    n, weight = strategy.width or view.dim, []
    for j, score in enumerate(view.scores[row].tolist()):
        far = math.sqrt(2 - 2 * score)
        d = max(far, strategy.cutoff)
        near = bool(view.allowed[row, j]) and far < strategy.limit
        weight.append(d ** (2 - n) * (1 - d * d / 4) ** ((3 - n) / 2) if near else 0.0)
    total = sum(weight)
    return [w / total if total else 0.0 for w in weight]


def test_against_loops() -> None:
    for strategy in [DistanceWeighted(), DistanceWeighted(width=8, cutoff=0.9, limit=1.9)]:
        for view in toy_views():
            weights = strategy.pool(view)
            total = weights.sum(1, keepdim=True)
            shares = (weights / torch.where(total > 0, total, 1.0)).tolist()
            for i, got in enumerate(shares):
                assert got == pytest.approx(_naive(view, i, strategy), rel=1e-9, abs=1e-300)


def test_drawn_images_are_spread_evenly_over_distance() -> None:
    # distances on a sphere in n dimensions have the density d^(n-2) (1 - d^2/4)^((n-3)/2); its inverse as weight
    # leaves the same mass in bins of equal width
    generator = torch.Generator().manual_seed(0)
    images = torch.nn.functional.normalize(torch.randn(200_000, 5, generator=generator, dtype=torch.float64), dim=1)
    scores = torch.cat([torch.tensor([0.5]), images[:, 0]])[None]
    weights = DistanceWeighted(width=5, cutoff=0.6, limit=1.8).pool(ScoreView(scores, torch.tensor([0])))[0]
    bins = ((2 - 2 * scores[0]).sqrt() - 0.6).div(0.2).floor().long()
    mass = torch.stack([weights[bins == b].sum() for b in range(6)])
    torch.testing.assert_close(mass / mass.mean(), torch.ones(6, dtype=torch.float64), rtol=0.05, atol=0)


def test_nothing_within_the_limit_underflows() -> None:
    view = ScoreView(torch.tensor([[0.0, 0.96875, 0.5, 0.0625, 0.0]]), torch.tensor([0]))
    assert as_sets(DistanceWeighted(width=100_000).pool(view)) == [{1, 2, 3}]  # sqrt(2) is beyond 1.4


def test_the_width_is_that_of_the_embeddings() -> None:
    view = toy_views()[0]
    assert view.dim == 64
    assert DistanceWeighted().pool(view).tolist() == DistanceWeighted(width=64).pool(view).tolist()
    assert DistanceWeighted().pool(view).tolist() != DistanceWeighted(width=16).pool(view).tolist()
    by_hand = ScoreView(torch.tensor([[0.0, -0.5, 0.5]]), torch.tensor([0]))
    with pytest.raises(NegbenchError, match="width must be given: the scores' own is not at least 3, got 0"):
        DistanceWeighted().pool(by_hand)
    assert as_sets(DistanceWeighted(width=3).pool(by_hand)) == [{2}]
