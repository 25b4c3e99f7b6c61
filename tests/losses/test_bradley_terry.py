from __future__ import annotations

import math

import pytest
import torch

from negbench.losses.bradley_terry import BradleyTerry
from negbench.testing import toy_scores


def test_against_loops() -> None:
    for seed in range(20):
        toy = toy_scores(seed=seed)
        mask = toy.mask.clone()
        mask[seed % 5] = False
        rows = []
        for p, n, m, w in zip(*(t.tolist() for t in (toy.positive, toy.negatives, mask, toy.weights)), strict=True):
            terms = [(w[j], math.log1p(math.exp((n[j] - p) / 0.2))) for j in range(4) if m[j]]
            if terms:
                rows.append(sum(a * b for a, b in terms) / sum(a for a, _ in terms))
        got = BradleyTerry(tau=0.2)(toy.positive, toy.negatives, mask, toy.weights)
        assert got.item() == pytest.approx(sum(rows) / len(rows), rel=1e-12)


def test_limits() -> None:
    positive, negatives = torch.tensor([0.9]), torch.tensor([[-0.9]])
    assert BradleyTerry(tau=1e-3)(positive, negatives) == 0
    assert BradleyTerry(tau=1e-3)(negatives[0], positive[None]).item() == pytest.approx(1800)
    assert BradleyTerry(tau=1e9)(positive, negatives).item() == pytest.approx(math.log(2))
