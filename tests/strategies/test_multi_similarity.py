from __future__ import annotations

import torch

from negbench.contracts import ScoreView
from negbench.strategies.multi_similarity import MultiSimilarityMining
from negbench.testing import as_sets, toy_views


def test_hand_table() -> None:
    scores = torch.tensor([[0.5, 0.75, 0.5, 0.375, 0.25, -0.5]])
    for shift in (0.0, -2.0):
        view = ScoreView(scores + shift, torch.tensor([0]))
        assert as_sets(MultiSimilarityMining(epsilon=0.25).pool(view)) == [{1, 2, 3}]  # a gap equal to epsilon is out
        assert as_sets(MultiSimilarityMining(epsilon=0).pool(view)) == [{1}]


def test_against_loops() -> None:
    for epsilon in [0.0, 0.1, 0.5]:
        for view in toy_views():
            want = []
            for i, row in enumerate(view.scores.tolist()):
                positive = row[int(view.target[i])]
                want.append({j for j, s in enumerate(row) if view.allowed[i, j] and s + epsilon > positive})
            assert as_sets(MultiSimilarityMining(epsilon=epsilon).pool(view)) == want
