from __future__ import annotations

import torch

from negbench.strategies.oracle_all import OracleAll
from negbench.testing import as_sets, toy_views

SCORES = torch.tensor([[0.5, 0.9, -0.1, -0.7]])


def test_against_loops() -> None:
    for view in toy_views():
        assert view.relevant is not None
        for row, pool in enumerate(as_sets(OracleAll().pool(view))):
            columns = range(view.scores.shape[1])
            assert pool == {j for j in columns if view.allowed[row, j] and not view.relevant[row, j]}
