from __future__ import annotations

import torch

from negbench.contracts import ScoreView
from negbench.strategies.after_target import AfterTarget
from negbench.strategies.oracle_after_target import OracleAfterTarget
from negbench.testing import as_sets, ranking_below, toy_views

SCORES = torch.tensor([[0.5, 0.9, 0.4, -0.1, -0.7]])
RELEVANT = torch.tensor([[True, False, True, False, False]])


def test_hand_table() -> None:
    view = ScoreView(SCORES, torch.tensor([0]), relevant=RELEVANT)
    assert as_sets(OracleAfterTarget(k=1).pool(view)) == [{3}]  # after-target would take 2, which is relevant
    assert as_sets(OracleAfterTarget(k=9).pool(view)) == [{3, 4}]


def test_against_loops() -> None:
    for k in [1, 4, 100]:
        for view in toy_views():
            assert view.relevant is not None
            want = [
                set([j for j in ranking_below(view, i) if not view.relevant[i, j]][:k]) for i in range(len(view.target))
            ]
            assert as_sets(OracleAfterTarget(k=k).pool(view)) == want


def test_nothing_else_relevant_is_after_target() -> None:
    for view in toy_views(5):
        none = ScoreView(view.scores, view.target, view.allowed, relevant=torch.zeros_like(view.allowed))
        assert torch.equal(OracleAfterTarget(k=3).pool(none), AfterTarget(k=3).pool(view))
