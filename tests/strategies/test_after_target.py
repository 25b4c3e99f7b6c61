from __future__ import annotations

import torch

from negbench.contracts import ScoreView
from negbench.strategies.after_target import AfterTarget
from negbench.testing import as_sets, ranking_below, toy_views

# row 0: target 5 (0.6), 0 ties with it and stands before it, 3 is above; row 1: column 3 disallowed
SCORES = torch.tensor([[0.6, 0.5, -0.1, 0.7, -0.8, 0.6], [0.3, 0.9, -0.2, 0.2, 0.8, -0.4]])
VIEW = ScoreView(SCORES, torch.tensor([5, 4]), torch.tensor([[True] * 6, [True, True, True, False, True, True]]))


def test_hand_table() -> None:
    for k, want in [(1, [{1}, {0}]), (2, [{1, 2}, {0, 2}]), (50, [{1, 2, 4}, {0, 2, 5}])]:
        assert as_sets(AfterTarget(k=k).pool(VIEW)) == want


def test_against_loops() -> None:
    for k in [1, 4, 100]:
        for view in toy_views():
            assert as_sets(AfterTarget(k=k).pool(view)) == [
                set(ranking_below(view, i)[:k]) for i in range(len(view.target))
            ]


def test_a_tie_with_the_target_is_not_below_it() -> None:
    view = ScoreView(torch.tensor([[0.5, 0.5, 0.5, 0.25, 0.25]]), torch.tensor([1]))
    assert as_sets(AfterTarget(k=1).pool(view)) == [{3}]
