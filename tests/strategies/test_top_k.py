from __future__ import annotations

import torch

from negbench.contracts import ScoreView
from negbench.strategies.top_k import TopK
from negbench.testing import as_sets, ranking, toy_views

# row 0: target 1; row 1: target 4, column 1 disallowed, columns 0 and 3 tie
SCORES = torch.tensor([[0.5, 0.9, -0.1, 0.7, -0.8, 0.6], [0.3, 0.9, -0.2, 0.3, 0.1, -0.4]])
VIEW = ScoreView(SCORES, torch.tensor([1, 4]), torch.tensor([[True] * 6, [True, False, True, True, True, True]]))


def test_hand_table() -> None:
    for k, want in [
        (1, [{3}, {0}]),
        (2, [{3, 5}, {0, 3}]),
        (3, [{3, 5, 0}, {0, 3, 2}]),
        (9, [{0, 2, 3, 4, 5}, {0, 2, 3, 5}]),
    ]:
        assert as_sets(TopK(k=k).pool(VIEW)) == want


def test_against_loops() -> None:
    for k in [1, 4, 100]:
        for view in toy_views():
            assert as_sets(TopK(k=k).pool(view)) == [set(ranking(view, i)[:k]) for i in range(len(view.target))]


def test_halving() -> None:
    scores = torch.linspace(1, -1, 41)[None]
    sizes = [
        int(TopK(k=20, halve=True).pool(ScoreView(scores, torch.tensor([7]), refresh=refresh)).sum())
        for refresh in range(7)
    ]
    assert sizes == [20, 10, 5, 2, 1, 1, 1]
    assert int(TopK(k=20).pool(ScoreView(scores, torch.tensor([7]), refresh=3)).sum()) == 20
