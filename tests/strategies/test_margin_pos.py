from __future__ import annotations

import pytest
import torch

from negbench.contracts import ScoreView
from negbench.strategies.margin_pos import MarginPos
from negbench.testing import as_sets, ranking, toy_views


def test_hand_table() -> None:
    scores = torch.tensor([[0.5, 0.25, 0.375, 0.4375, 0.75, -0.5]])
    for shift in (0.0, -2.0):
        view = ScoreView(scores + shift, torch.tensor([0]))
        assert as_sets(MarginPos(margin=0.125).pool(view)) == [{1, 2, 5}]
        assert as_sets(MarginPos(margin=0.125, k=2).pool(view)) == [{1, 2}]
        assert as_sets(MarginPos(margin=0).pool(view)) == [{1, 2, 3, 5}]


@pytest.mark.parametrize(("margin", "k"), [(0.0, 4), (0.25, 3), (0.5, 99)])
def test_against_loops(margin: float, k: int) -> None:
    for view in toy_views():
        want = []
        for i in range(len(view.target)):
            scores = view.scores[i].tolist()
            limit = scores[int(view.target[i])] - margin
            want.append(set([j for j in ranking(view, i) if scores[j] <= limit][:k]))
        assert as_sets(MarginPos(margin=margin, k=k).pool(view)) == want
