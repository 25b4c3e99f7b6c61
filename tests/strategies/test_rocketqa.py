from __future__ import annotations

import torch

from negbench.contracts import ScoreView
from negbench.strategies.rocketqa import Rocketqa
from negbench.testing import as_sets, ranking, toy_views


def naive(view: ScoreView, row: int, strategy: Rocketqa) -> set[int]:
    ranked, guide = ranking(view, row), view.planes["guide"][row].tolist()
    taken: list[int] = []
    for j in ranked[: strategy.k]:
        if len(taken) < strategy.n and guide[j] < strategy.limit:
            taken.append(j)
    return set(taken or ranked[strategy.k :])


def test_against_loops() -> None:
    for strategy in [Rocketqa(k=6, n=2, limit=0.0), Rocketqa(k=2, n=4, limit=-0.5), Rocketqa(k=4, n=1, limit=0.9)]:
        beyond = 0
        for view in toy_views():
            want = [naive(view, row, strategy) for row in range(6)]
            assert as_sets(strategy.pool(view)) == want
            beyond += sum(len(pool) > strategy.n for pool in want)
        assert beyond or strategy.k > 2


def test_by_hand() -> None:
    """Ranks of scores below zero: 3, 1, 4, 0. The guide is sure of 1 and 0; with k 1 it is sure of none."""
    scores = torch.tensor([[-0.9, -0.2, -0.5, -0.1, -0.3]])
    guide = torch.tensor([[0.0, 0.05, 0.9, 0.8, torch.nan]])
    view = ScoreView(scores, torch.tensor([2]), planes={"guide": guide})
    assert as_sets(Rocketqa(k=4, n=2).pool(view)) == [{0, 1}]
    assert as_sets(Rocketqa(k=4, n=1).pool(view)) == [{1}]
    assert as_sets(Rocketqa(k=1).pool(view)) == [{0, 1, 4}]
    assert as_sets(Rocketqa(k=4, limit=-0.5).pool(view)) == [set()]
