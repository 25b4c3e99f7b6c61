from __future__ import annotations

import torch

from negbench.contracts import ScoreView
from negbench.strategies.gist import Gist
from negbench.testing import as_sets, toy_view


def naive(view: ScoreView, row: int, strategy: Gist) -> set[int]:
    guide = view.planes["guide"][row].tolist()
    own = guide[int(view.target[row])]
    limit = own - strategy.margin * (abs(own) if strategy.relative else 1)
    return {j for j, there in enumerate(view.allowed[row].tolist()) if there and not guide[j] > limit}


def test_against_loops() -> None:
    for strategy in [Gist(), Gist(margin=0.25), Gist(margin=-0.5), Gist(margin=0.5, relative=True)]:
        sizes = set()
        for seed in range(12):
            view = toy_view(10, 10, seed=seed, ties=seed % 2 == 1)
            want = [naive(view, row, strategy) for row in range(10)]
            assert as_sets(strategy.pool(view)) == want
            sizes |= {len(pool) for pool in want}
        assert len(sizes) > 3


def test_by_hand_with_a_guide_below_zero() -> None:
    """g+ = -0.4: a relative margin of 0.5 keeps what is at most -0.6, where the unsafe form would keep -0.2."""
    guide = torch.tensor([[-0.4, -0.3, -0.5, -0.7], [0.9, 0.5, 0.5, 0.4]])
    view = ScoreView(torch.zeros(2, 4), torch.tensor([0, 1]), planes={"guide": guide})
    assert as_sets(Gist().pool(view)) == [{2, 3}, {2, 3}]  # a tie with the target stays
    assert as_sets(Gist(margin=0.5, relative=True).pool(view)) == [{3}, set()]


def test_what_the_guide_does_not_score_stays() -> None:
    guide = torch.tensor([[0.1, torch.nan, 0.5]])
    view = ScoreView(torch.zeros(1, 3), torch.tensor([0]), planes={"guide": guide})
    assert as_sets(Gist().pool(view)) == [{1}]
