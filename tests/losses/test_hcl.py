from __future__ import annotations

import math

import pytest
import torch

from negbench.losses.hcl import HCL
from negbench.losses.info_nce import InfoNCE
from negbench.testing import toy_scores


def test_closed_form() -> None:
    # one negative: its importance is 1 whatever beta is
    positive, negatives = torch.tensor([0.2]), torch.tensor([[0.4]])
    g = (math.exp(0.8) - 0.1 * math.exp(0.4)) / 0.9
    want = -math.log(math.exp(0.4) / (math.exp(0.4) + g))
    assert HCL(tau=0.5)(positive, negatives).item() == pytest.approx(want, rel=1e-6)
    # the sum less a tenth of e+ is below N exp(-1 / tau), above and below 0: the floor holds
    barely = HCL(tau=0.5)(torch.tensor([0.9]), torch.tensor([[-0.2]]))
    assert barely.item() == pytest.approx(math.log1p(math.exp(-2) / math.exp(1.8)), rel=1e-6)
    floored = HCL(tau=0.5)(torch.tensor([0.9]), torch.tensor([[-1.0, -0.9]]))
    assert floored.item() == pytest.approx(math.log1p(2 * math.exp(-2) / math.exp(1.8)), rel=1e-6)


def _naive(p: float, negatives: list[float], weights: list[float], loss: HCL, tau: float) -> float:
    """The released code, weights as multiplicities."""
    count = sum(weights)
    terms = [math.exp(s / tau) for s in negatives]
    hard = [t**loss.beta for t in terms]
    mean = sum(w * h for w, h in zip(weights, hard, strict=True)) / count
    total = sum(w * h * t for w, h, t in zip(weights, hard, terms, strict=True)) / mean
    pos = math.exp(p / tau)
    g = max((total - loss.tau_plus * count * pos) / (1 - loss.tau_plus), count * math.exp(-1 / tau))
    return -math.log(pos / (pos + g))


def test_against_loops() -> None:
    for seed in range(5):
        for loss in [HCL(), HCL(beta=0.0), HCL(tau_plus=0.0, beta=2.0), HCL(tau_plus=0.3)]:
            toy = toy_scores(seed=seed)
            mask = toy.mask.clone()
            mask[seed % 5] = False
            rows = []
            for p, n, m, w in zip(*(t.tolist() for t in (toy.positive, toy.negatives, mask, toy.weights)), strict=True):
                here = [j for j in range(4) if m[j]]
                if here:
                    rows.append(_naive(p, [n[j] for j in here], [w[j] for j in here], loss, 0.2))
            got = loss(toy.positive, toy.negatives, mask, toy.weights, temperature=0.2)
            assert got.item() == pytest.approx(sum(rows) / len(rows), rel=1e-12)


def test_gradients_flow_through_the_importance() -> None:
    # with detached weights the easy negative's gradient could not be negative
    negatives = torch.tensor([[0.5, -0.5]], requires_grad=True)
    (gradient,) = torch.autograd.grad(HCL(tau=0.5, tau_plus=0.0)(torch.tensor([0.6]), negatives), negatives)
    assert gradient[0, 0] > 0 > gradient[0, 1]


def test_neither_beta_nor_tau_plus_is_info_nce() -> None:
    toy = toy_scores(6, 5, seed=1)
    plain = HCL(beta=0.0, tau_plus=0.0)(toy.positive, toy.negatives, temperature=0.5)
    torch.testing.assert_close(plain, InfoNCE()(toy.positive, toy.negatives, temperature=0.5))
