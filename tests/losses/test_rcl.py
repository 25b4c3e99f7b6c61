from __future__ import annotations

import math

import pytest
import torch

from negbench.losses.rcl import RCL
from negbench.testing import toy_scores


def test_closed_form() -> None:
    # one negative: 1 - p of the negative is the target's share, so the loss is that of a pair
    got = RCL(tau=0.5)(torch.tensor([0.5]), torch.tensor([[-0.5]]))
    assert got.item() == pytest.approx(math.log1p(math.exp(-2)), rel=1e-6)
    # all three equal: two negatives, each with p = 1/3
    assert RCL()(torch.tensor([-0.3]), torch.tensor([[-0.3, -0.3]])).item() == pytest.approx(-2 * math.log(2 / 3))


@pytest.mark.parametrize("seed", range(10))
def test_against_the_softmax(seed: int) -> None:
    toy = toy_scores(seed=seed)
    mask = toy.mask.clone()
    mask[seed % 5] = False
    rows = []
    for i in range(5):
        if mask[i].any():
            here = toy.negatives[i][mask[i]] / 0.3 + toy.weights[i][mask[i]].log()
            p = torch.cat([toy.positive[i, None] / 0.3, here]).softmax(0)
            rows.append(-(1 - p[1:]).log().sum())
    torch.testing.assert_close(RCL(tau=0.3)(toy.positive, toy.negatives, mask, toy.weights), torch.stack(rows).mean())


def test_one_negative_far_above_all_is_exact() -> None:
    # p rounds to 1 in float32, and log(1 - p) would be -inf: the other terms give it
    positive, negatives = torch.tensor([-1.0]), torch.tensor([[1.0, -1.0]])
    want = 200 - math.log(2)  # -log((e^-100 + e^-100) / e^100), and nothing from the second
    assert RCL(tau=0.01)(positive, negatives).item() == pytest.approx(want, rel=1e-6)
