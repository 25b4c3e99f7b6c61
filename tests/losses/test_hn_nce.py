from __future__ import annotations

import math

import pytest
import torch

from negbench.losses.hn_nce import HnNCE
from negbench.losses.info_nce import InfoNCE
from negbench.testing import toy_scores


def test_closed_form() -> None:
    got = HnNCE(tau=0.5, alpha=0.5)(torch.tensor([0.2]), torch.tensor([[0.4]]))  # one negative: its weight is 1
    assert got.item() == pytest.approx(math.log(0.5 * math.exp(0.4) + math.exp(0.8)) - 0.4, rel=1e-6)


def test_the_rows_of_a_batch() -> None:
    """Query to target, over a batch's own matrix; `test_released` has a number of CoVR's code."""
    for alpha in [0.5, 1.0]:
        for beta in [0.0, 0.5, 2.0]:
            scores = 2 * torch.rand(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
            rows = []
            for i in range(6):
                row = (scores[i] / 0.2).tolist()
                rest = [j for j in range(6) if j != i]
                share = sum(math.exp(beta * row[j]) for j in rest)
                below = alpha * math.exp(row[i])
                below += sum(5 * math.exp(beta * row[j]) / share * math.exp(row[j]) for j in rest)
                rows.append(math.log(below) - row[i])
            got = HnNCE(tau=0.2, alpha=alpha, beta=beta)(scores.diagonal(), scores, ~torch.eye(6, dtype=torch.bool))
            assert got.item() == pytest.approx(sum(rows) / 6, rel=1e-12)


def test_a_weight_of_two_is_the_negative_twice() -> None:
    toy = toy_scores(4, 3, seed=2)
    twice = HnNCE()(toy.positive, torch.cat([toy.negatives, toy.negatives[:, :1]], dim=1))
    weights = torch.tensor([[2.0, 1.0, 1.0]], dtype=torch.float64).expand(4, 3)
    torch.testing.assert_close(HnNCE()(toy.positive, toy.negatives, None, weights), twice)


def test_alpha_one_and_beta_zero_are_info_nce() -> None:
    toy = toy_scores(6, 5, seed=1)
    call = (toy.positive, toy.negatives, toy.mask, toy.weights)
    torch.testing.assert_close(HnNCE(beta=0.0)(*call), InfoNCE()(*call))
