"""The rules that take all that is allowed: their pool depends on no score."""

from __future__ import annotations

import pytest
import torch

from negbench.api import make_strategy
from negbench.contracts import BatchStrategy, Strategy
from negbench.testing import as_sets, toy_views

SCORES = torch.tensor([[0.5, 0.9, -0.1], [0.2, 0.2, 0.2], [-0.3, -0.5, -0.1]])
SLOTS = {
    "all-corpus": None,
    "in-batch": ("target",),
    "in-batch-both": ("target", "query"),
    "hycole": ("reference", "modification", "target"),
    "no-duplicates": ("target",),
    "bank": ("bank",),
    "xbm": ("target", "bank"),
    "mochi": ("bank",),
}


@pytest.fixture(params=SLOTS)
def rule(request: pytest.FixtureRequest) -> Strategy:
    found: Strategy = make_strategy(request.param)
    slots = SLOTS[request.param]
    assert (found.scope, found.n_def) == ("corpus" if slots is None else "batch", 1)
    assert slots == (found.corrupts if isinstance(found, BatchStrategy) else None)
    return found


def test_against_loops(rule: Strategy) -> None:
    for view in toy_views():
        for row, pool in enumerate(as_sets(rule.pool(view))):
            allowed = view.allowed[row].tolist()
            assert pool == {j for j in range(len(allowed)) if allowed[j] and j != int(view.target[row])}
