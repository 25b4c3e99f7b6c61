from __future__ import annotations

import math

import pytest
import torch

from negbench.contracts import ScoreView
from negbench.strategies.pair_margin import PairMargin
from negbench.testing import as_sets, toy_views


@pytest.mark.parametrize("margin", [0.8, 1.5, 2.0])
def test_against_loops(margin: float) -> None:
    for view in toy_views():
        for row, got in enumerate(as_sets(PairMargin(margin=margin).pool(view))):
            scores = view.scores[row].tolist()
            assert got == {j for j, s in enumerate(scores) if view.allowed[row, j] and math.sqrt(2 - 2 * s) < margin}


def test_by_hand() -> None:
    """0.8 is a cosine of 0.68; at 2 only the opposite direction is left out."""
    view = ScoreView(torch.tensor([[-0.5, 0.69, 0.67, 1.0, -1.0]]), torch.tensor([0]))
    assert as_sets(PairMargin().pool(view)) == [{1, 3}]
    assert as_sets(PairMargin(margin=2).pool(view)) == [{1, 2, 3}]
    assert as_sets(PairMargin(margin=0.1).pool(ScoreView(view.scores - 0.5, view.target))) == [set()]
