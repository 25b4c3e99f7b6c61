from __future__ import annotations

import torch

from negbench.contracts import ScoreView
from negbench.strategies.perc_pos import PercPos
from negbench.testing import as_sets, ranking, toy_views


def test_hand_table() -> None:
    scores = torch.tensor([[0.5, 0.25, 0.375, 0.4375, 0.75, -0.5]])  # the target is column 0, its limit 0.375
    view = ScoreView(scores, torch.tensor([0]))
    assert as_sets(PercPos(share=0.75).pool(view)) == [{1, 2, 5}]
    assert as_sets(PercPos(share=0.75, k=2).pool(view)) == [{1, 2}]
    assert as_sets(PercPos(share=0.75, variant="published").pool(view)) == [{1, 2, 5}]


def test_a_target_below_zero() -> None:
    scores = torch.tensor([[-0.5, -0.375, -0.4375, -0.625, -0.75]])
    view = ScoreView(scores, torch.tensor([0]))
    assert as_sets(PercPos(share=0.75).pool(view)) == [{3, 4}]  # limit -0.625
    # limit -0.375: the published form lets in what beats the target
    assert as_sets(PercPos(share=0.75, variant="published").pool(view)) == [{1, 2, 3, 4}]


def _naive(view: ScoreView, row: int, strategy: PercPos) -> set[int]:
    scores = view.scores[row].tolist()
    positive = scores[int(view.target[row])]
    limit = strategy.share * positive
    if strategy.variant == "sign-safe" and positive < 0:
        limit = positive / 1 * (2 - strategy.share)
    return set([j for j in ranking(view, row) if scores[j] <= limit][: strategy.k])


def test_against_loops() -> None:
    for strategy in [
        PercPos(share=s, k=k, variant=v) for s in (0.5, 0.75, 1.0) for k in (3, 99) for v in ("sign-safe", "published")
    ]:
        for view in toy_views():
            assert as_sets(strategy.pool(view)) == [_naive(view, i, strategy) for i in range(len(view.target))]
