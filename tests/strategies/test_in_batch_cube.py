from __future__ import annotations

import torch

from negbench.contracts import ScoreView
from negbench.strategies.in_batch_cube import InBatchCube
from negbench.testing import as_sets, ranking, toy_views

SCORES = torch.tensor([[0.5, 0.9, -0.1, 0.5, -0.7]])


def test_hand_table() -> None:
    view = ScoreView(SCORES, torch.tensor([1]))
    assert as_sets(InBatchCube(k=1).pool(view)) == [{0}]  # a tie with column 3: the lower one
    assert as_sets(InBatchCube(k=3).pool(view)) == [{0, 2, 3}]
    assert as_sets(InBatchCube(k=9).pool(view)) == as_sets(InBatchCube(k=None).pool(view)) == [{0, 2, 3, 4}]


def test_against_loops() -> None:
    for k in [1, 4, 20]:
        for view in toy_views():
            for row, pool in enumerate(as_sets(InBatchCube(k=k).pool(view))):
                assert pool == set(ranking(view, row)[:k])
