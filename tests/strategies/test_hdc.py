from __future__ import annotations

import math

import torch

from negbench.contracts import ScoreView
from negbench.strategies.hdc import Hdc
from negbench.testing import as_sets


def test_hand_table() -> None:
    scores = torch.tensor([[0.9, 0.5, -0.1], [0.4, 0.1, 0.3], [-0.5, -0.6, -0.2]])
    view = ScoreView(scores, torch.arange(3))
    assert as_sets(Hdc().pool(view)) == [{1}, {0, 2}, set()]
    assert as_sets(Hdc(share=0.1).pool(view)) == [{1}, set(), set()]  # ceil(0.6) pairs
    assert as_sets(Hdc(share=1.0).pool(view)) == [{1, 2}, {0, 2}, {0, 1}]
    assert as_sets(Hdc().pool(ScoreView(scores - 2, torch.arange(3)))) == [{1}, {0, 2}, set()]


def test_against_loops() -> None:
    for share in [0.2, 0.5, 0.9]:
        for seed in range(5):
            generator = torch.Generator().manual_seed(seed)
            scores = torch.randint(-8, 9, (7, 7), generator=generator) / 8  # with ties
            allowed = torch.rand(7, 7, generator=generator) < 0.7
            pairs = [(float(scores[i, j]), i, j) for i in range(7) for j in range(7) if i != j and allowed[i, j]]
            last = sorted((s for s, _, _ in pairs), reverse=True)[math.ceil(share * len(pairs)) - 1]
            want = [{j for s, i, j in pairs if i == row and s >= last} for row in range(7)]
            assert as_sets(Hdc(share=share).pool(ScoreView(scores, torch.arange(7), allowed))) == want
