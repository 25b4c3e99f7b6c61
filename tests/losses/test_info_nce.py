from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from negbench.losses.info_nce import InfoNCE
from negbench.testing import toy_scores


def test_unit_vectors_at_known_angles() -> None:
    # target at 60 degrees (cosine 0.5), negatives at 90 (0) and 180 (-1)
    got = InfoNCE(tau=0.5)(torch.tensor([0.5]), torch.tensor([[0.0, -1.0]]))
    assert got.item() == pytest.approx(math.log(1 + math.exp(-1) + math.exp(-3)), rel=1e-6)


def test_in_batch_scores_are_cross_entropy_on_the_diagonal() -> None:
    scores = 2 * torch.rand(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    mask = ~torch.eye(5, dtype=torch.bool)
    got = InfoNCE(tau=0.1)(scores.diagonal(), scores, mask)
    torch.testing.assert_close(got, cross_entropy(scores / 0.1, torch.arange(5)))


def test_against_loops() -> None:
    for seed in range(20):
        toy = toy_scores(seed=seed)
        mask = toy.mask.clone()
        mask[seed % 5] = False
        rows = []
        for p, n, m, w in zip(*(t.tolist() for t in (toy.positive, toy.negatives, mask, toy.weights)), strict=True):
            if any(m):
                rest = sum(w[j] * math.exp(n[j] / 0.2) for j in range(4) if m[j])
                rows.append(-math.log(math.exp(p / 0.2) / (math.exp(p / 0.2) + rest)))
        got = InfoNCE(tau=0.2)(toy.positive, toy.negatives, mask, toy.weights)
        assert got.item() == pytest.approx(sum(rows) / len(rows), rel=1e-12)
