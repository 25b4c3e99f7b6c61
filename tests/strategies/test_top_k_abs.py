from __future__ import annotations

import pytest
import torch

from negbench.contracts import ScoreView
from negbench.strategies.top_k_abs import TopKAbs
from negbench.testing import as_sets, ranking, toy_views


def test_hand_table() -> None:
    view = ScoreView(torch.tensor([[0.5, 0.25, 0.375, 0.4375, 0.75, -0.5]]), torch.tensor([0]))
    assert as_sets(TopKAbs(limit=0.4375).pool(view)) == [{1, 2, 5}]  # a score equal to the limit is out
    assert as_sets(TopKAbs(limit=0.4375, k=1).pool(view)) == [{2}]
    assert as_sets(TopKAbs().pool(view)) == [{1, 2, 3, 5}]
    assert as_sets(TopKAbs(limit=-0.5).pool(view)) == [set()]


@pytest.mark.parametrize(("limit", "k"), [(-0.5, 3), (0.0, 3), (0.7, 99)])
def test_against_loops(limit: float, k: int) -> None:
    for view in toy_views():
        rows = range(len(view.target))
        want = [set([j for j in ranking(view, i) if float(view.scores[i, j]) < limit][:k]) for i in rows]
        assert as_sets(TopKAbs(limit=limit, k=k).pool(view)) == want
