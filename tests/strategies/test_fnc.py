from __future__ import annotations

import pytest
import torch

from negbench.contracts import ScoreView
from negbench.strategies.fnc import Fnc
from negbench.testing import as_sets, toy_view


def naive(view: ScoreView, row: int, strategy: Fnc) -> set[int]:
    likeness = view.planes["target"][row].tolist()
    members = [j for j, there in enumerate(view.allowed[row].tolist()) if there]
    nearest = sorted(members, key=lambda j: (-likeness[j], j))[: strategy.k]
    return {j for j in members if not (j in nearest and likeness[j] > strategy.threshold)}


@pytest.mark.parametrize("strategy", [Fnc(), Fnc(threshold=0.0, k=2), Fnc(threshold=-0.5, k=5)], ids=str)
def test_against_loops(strategy: Fnc) -> None:
    lost = 0
    for seed in range(12):
        view = toy_view(10, 10, seed=seed, ties=seed % 2 == 1)
        want = [naive(view, row, strategy) for row in range(10)]
        assert as_sets(strategy.pool(view)) == want
        lost += int(view.allowed.sum()) - sum(map(len, want))
    assert lost


def test_by_hand() -> None:
    """The target's own likeness of 1 takes no place; scores, even below zero, have no say."""
    likeness = torch.tensor([[1.0, 0.75, 0.9, 0.8, -0.2]])
    view = ScoreView(torch.full((1, 5), -3.0), torch.tensor([0]), planes={"target": likeness})
    assert as_sets(Fnc().pool(view)) == [{4}]
    assert as_sets(Fnc(k=2).pool(view)) == [{1, 4}]
    assert as_sets(Fnc(threshold=0.8).pool(view)) == [{1, 3, 4}]
    assert as_sets(Fnc(threshold=-1).pool(view)) == [set()]
