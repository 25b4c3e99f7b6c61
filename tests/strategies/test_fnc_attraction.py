from __future__ import annotations

import pytest
import torch

from negbench.api import make_strategy
from negbench.contracts import ScoreView
from negbench.errors import OptionError
from negbench.testing import as_sets, toy_view


@pytest.mark.parametrize("options", [{}, {"threshold": 0.0, "k": 2}, {"threshold": -0.5, "k": 5}], ids=str)
def test_what_elimination_drops_is_a_positive(options: dict[str, float]) -> None:
    """The same negatives, and every allowed member is one or the other."""
    more = 0
    for seed in range(8):
        view = toy_view(10, 10, seed=seed, ties=seed % 2 == 1)
        attraction, elimination = make_strategy("fnc-attraction", **options), make_strategy("fnc", **options)
        kept, found = as_sets(elimination.pool(view)), as_sets(attraction.positives(view) > 0)
        assert as_sets(attraction.pool(view)) == kept
        for row, target in enumerate(view.target.tolist()):
            members = {j for j in range(10) if view.allowed[row, j]}
            assert found[row] == (members - kept[row]) | {target}
        assert set(attraction.positives(view).flatten().tolist()) <= {0.0, 1.0}
        more += sum(map(len, found)) - 10
    assert more


def test_by_hand() -> None:
    likeness = torch.tensor([[1.0, 0.75, 0.9, 0.8, -0.2]])
    view = ScoreView(torch.full((1, 5), -3.0), torch.tensor([0]), planes={"target": likeness})
    assert make_strategy("fnc-attraction", k=2).positives(view).tolist() == [[1, 0, 1, 1, 0]]
    none_allowed = ScoreView(view.scores, view.target, torch.zeros(1, 5, dtype=torch.bool), planes={"target": likeness})
    assert make_strategy("fnc-attraction").positives(none_allowed).tolist() == [[1, 0, 0, 0, 0]]


def test_bad_options_are_quoted() -> None:
    with pytest.raises(OptionError, match="k must be a whole number >= 1, got 0"):
        make_strategy("fnc-attraction", k=0)
