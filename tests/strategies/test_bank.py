from __future__ import annotations

from negbench.strategies.bank import Bank
from negbench.testing import as_sets, toy_view


def test_against_loops() -> None:
    for k in [None, 1, 4, 100]:
        for seed in range(9):
            view = toy_view(6, 20, seed=seed, sign=("mixed", "negative", "positive")[seed % 3], ties=seed % 2 == 1)
            for row, got in enumerate(as_sets(Bank(k=k).pool(view))):
                may = [j for j in range(20) if view.allowed[row, j]]
                assert got == set(sorted(may, key=lambda j: (-float(view.scores[row, j]), j))[:k])
