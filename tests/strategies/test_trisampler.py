from __future__ import annotations

import math

import pytest
import torch

from negbench.contracts import ScoreView
from negbench.strategies.trisampler import Trisampler
from negbench.testing import as_sets, ranking, toy_views


def naive(view: ScoreView, row: int, k: int) -> list[float]:
    scores, likeness = view.scores[row].tolist(), view.planes["target"][row].tolist()
    positive, weights = scores[int(view.target[row])], [0.0] * len(scores)
    for j in ranking(view, row)[:k]:
        weights[j] = math.exp(-((scores[j] - positive) ** 2) / 4) * max(0.0, likeness[j] - scores[j])
    return weights


@pytest.mark.parametrize("k", [3, 100])
def test_against_loops(k: int) -> None:
    for view in toy_views():
        pool = Trisampler(k=k).pool(view)
        for row, weights in enumerate(pool.tolist()):
            assert weights == pytest.approx(naive(view, row, k), rel=1e-9)


def test_by_hand_below_zero() -> None:
    """Image 1 is nearer to the query than to the target, image 2 the other way round, image 3 is out of the two."""
    view = ScoreView(
        torch.tensor([[-0.5, -0.1, -0.3, -0.9]]),
        torch.tensor([0]),
        planes={"target": torch.tensor([[1.0, -0.2, 0.7, 0.9]])},
    )
    pool = Trisampler(k=2).pool(view)
    assert as_sets(pool) == [{2}]
    assert float(pool[0, 2]) == pytest.approx(math.exp(-0.01) * 1.0, rel=1e-6)


def test_nothing_nearer_to_the_target_is_an_empty_pool() -> None:
    view = ScoreView(
        torch.tensor([[0.5, 0.4, 0.3]]), torch.tensor([0]), planes={"target": torch.tensor([[1, 0.1, 0.2]])}
    )
    assert as_sets(Trisampler().pool(view)) == [set()]
