from __future__ import annotations

from negbench.contracts import ScoreView
from negbench.strategies.fnc import Fnc
from negbench.testing import as_sets, toy_view


def naive(view: ScoreView, row: int, strategy: Fnc) -> set[int]:
    likeness = view.planes["target"][row].tolist()
    members = [j for j, there in enumerate(view.allowed[row].tolist()) if there]
    nearest = sorted(members, key=lambda j: (-likeness[j], j))[: strategy.k]
    return {j for j in members if not (j in nearest and likeness[j] > strategy.threshold)}


def test_against_loops() -> None:
    for strategy in [Fnc(), Fnc(threshold=0.0, k=2), Fnc(threshold=-0.5, k=5)]:
        lost = 0
        for seed in range(12):
            view = toy_view(10, 10, seed=seed, ties=seed % 2 == 1)
            want = [naive(view, row, strategy) for row in range(10)]
            assert as_sets(strategy.pool(view)) == want
            lost += int(view.allowed.sum()) - sum(map(len, want))
        assert lost
