from __future__ import annotations

import pytest
import torch

from negbench.contracts import ScoreView
from negbench.errors import NegbenchError
from negbench.strategies.oracle_all import OracleAll
from negbench.testing import as_sets, toy_views

SCORES = torch.tensor([[0.5, 0.9, -0.1, -0.7]])


def test_hand_table() -> None:
    relevant = torch.tensor([[True, False, True, False]])
    view = ScoreView(SCORES, torch.tensor([0]), relevant=relevant)
    assert as_sets(OracleAll().pool(view)) == [{1, 3}]
    assert as_sets(OracleAll().pool(ScoreView(SCORES - 2, torch.tensor([0]), relevant=relevant))) == [{1, 3}]


def test_against_loops() -> None:
    for view in toy_views():
        assert view.relevant is not None
        for row, pool in enumerate(as_sets(OracleAll().pool(view))):
            columns = range(view.scores.shape[1])
            assert pool == {j for j in columns if view.allowed[row, j] and not view.relevant[row, j]}


def test_everything_relevant_is_an_empty_pool() -> None:
    view = ScoreView(SCORES, torch.tensor([0]), relevant=torch.ones(1, 4, dtype=torch.bool))
    assert as_sets(OracleAll().pool(view)) == [set()]


def test_without_ground_truth_it_is_refused() -> None:
    with pytest.raises(NegbenchError, match="'oracle-all' needs ground truth"):
        OracleAll().pool(ScoreView(SCORES, torch.tensor([0])))
