from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import kl_div

from negbench.losses.bradley_terry import BradleyTerry
from negbench.testing import toy_scores


def test_unit_vectors_at_known_angles() -> None:
    # a query at 0 degrees, its target at 60 (cosine 0.5), negatives at 90 (0) and 120 (-0.5)
    got = BradleyTerry(tau=0.5)(torch.tensor([0.5]), torch.tensor([[0.0, -0.5]]))
    want = (math.log1p(math.exp(-1)) + math.log1p(math.exp(-2))) / 2
    assert got.item() == pytest.approx(want, rel=1e-6)


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


def test_one_negative_is_the_kl_of_the_papers() -> None:
    toy = toy_scores(6, 1, seed=3)
    pairs = torch.stack([toy.positive, toy.negatives[:, 0]], dim=1) / 0.07
    certain = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(6, 2)
    want = kl_div(pairs.log_softmax(1), certain, reduction="batchmean")
    torch.testing.assert_close(BradleyTerry()(toy.positive, toy.negatives), want)


def test_limits() -> None:
    positive, negatives = torch.tensor([0.9]), torch.tensor([[-0.9]])
    assert BradleyTerry(tau=1e-3)(positive, negatives) == 0
    assert BradleyTerry(tau=1e-3)(negatives[0], positive[None]).item() == pytest.approx(1800)
    assert BradleyTerry(tau=1e9)(positive, negatives).item() == pytest.approx(math.log(2))
