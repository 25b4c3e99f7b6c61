from __future__ import annotations

import math

import pytest
import torch

from negbench.losses.multi_similarity import MultiSimilarity
from negbench.testing import toy_scores


def test_closed_form() -> None:
    # all scores at base: log(2) / alpha + log(1 + M) / beta
    got = MultiSimilarity(alpha=2, beta=4, base=0.5)(torch.tensor([0.5]), torch.tensor([[0.5, 0.5]]))
    assert got.item() == pytest.approx(math.log(2) / 2 + math.log(3) / 4)


def test_against_loops() -> None:
    for seed in range(5):
        for loss in [MultiSimilarity(), MultiSimilarity(alpha=1, beta=10, base=-0.25)]:
            toy = toy_scores(seed=seed)
            mask = toy.mask.clone()
            mask[seed % 5] = False
            rows = []
            for p, n, m, w in zip(*(t.tolist() for t in (toy.positive, toy.negatives, mask, toy.weights)), strict=True):
                if any(m):
                    near = math.log(1 + math.exp(-loss.alpha * (p - loss.base))) / loss.alpha
                    far = sum(w[j] * math.exp(loss.beta * (n[j] - loss.base)) for j in range(4) if m[j])
                    rows.append(near + math.log(1 + far) / loss.beta)
            got = loss(toy.positive, toy.negatives, mask, toy.weights)
            assert got.item() == pytest.approx(sum(rows) / len(rows), rel=1e-12)


def test_a_steep_beta_is_the_hinge_of_the_hardest_negative() -> None:
    got = MultiSimilarity(alpha=1e6, beta=1e6)(torch.tensor([0.25]), torch.tensor([[0.75, 0.625, -1.0]]))
    assert got.item() == pytest.approx(0.25 + 0.25, rel=1e-4)
