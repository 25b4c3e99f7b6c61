from __future__ import annotations

import torch

from negbench.contracts import ScoreView
from negbench.strategies.in_batch import InBatch
from negbench.testing import as_sets, toy_views

SCORES = torch.tensor([[0.5, 0.9, -0.1], [0.2, 0.2, 0.2], [-0.3, -0.5, -0.1]])


def test_hand_table() -> None:
    view = ScoreView(SCORES, torch.tensor([0, 1, 2]))
    assert as_sets(InBatch().pool(view)) == [{1, 2}, {0, 2}, {0, 1}]


def test_scores_do_not_matter() -> None:
    target = torch.tensor([0, 1, 2])
    want = InBatch().pool(ScoreView(SCORES, target))
    assert torch.equal(InBatch().pool(ScoreView(-SCORES.abs() - 1, target)), want)


def test_disallowed_columns_are_left_out() -> None:
    allowed = torch.tensor([[True, False, True], [True, True, True], [False, False, True]])
    assert as_sets(InBatch().pool(ScoreView(SCORES, torch.tensor([0, 1, 2]), allowed))) == [{2}, {0, 2}, set()]


def test_against_loops() -> None:
    for view in toy_views():
        for row, pool in enumerate(as_sets(InBatch().pool(view))):
            allowed = view.allowed[row].tolist()
            assert pool == {j for j in range(len(allowed)) if allowed[j] and j != int(view.target[row])}


def test_scope_slots_and_refreshes() -> None:
    assert (InBatch.scope, InBatch.corrupts, InBatch.n_def) == ("batch", ("target",), 1)
