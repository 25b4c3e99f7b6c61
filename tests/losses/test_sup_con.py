from __future__ import annotations

import math

import pytest
import torch

from negbench.losses.info_nce import InfoNCE
from negbench.losses.sup_con import SupCon
from negbench.testing import toy_scores


@pytest.mark.parametrize("seed", range(10))
def test_against_loops(seed: int) -> None:
    toy, more = toy_scores(seed=seed), toy_scores(seed=seed + 100)
    mask = toy.mask.clone()
    mask[seed % 5] = False
    positives = torch.cat([toy.positive[:, None], more.negatives], dim=1)
    shares = torch.cat([torch.ones(5, 1), more.weights * more.mask], dim=1)
    rows = []
    for p, share, n, m, w in zip(
        *(t.tolist() for t in (positives, shares, toy.negatives, mask, toy.weights)), strict=True
    ):
        if any(m):
            near = sum(math.exp(s / 0.2) for s, v in zip(p, share, strict=True) if v)
            far = sum(w[j] * math.exp(n[j] / 0.2) for j in range(4) if m[j])
            terms = [-v * math.log(math.exp(s / 0.2) / (near + far)) for s, v in zip(p, share, strict=True)]
            rows.append(sum(terms) / sum(share))
    got = SupCon(tau=0.2)(toy.positive, toy.negatives, mask, toy.weights, positives=positives, positive_weights=shares)
    assert got.item() == pytest.approx(sum(rows) / len(rows), rel=1e-6)


def test_by_hand() -> None:
    """Two positives at -0.5 and 0, a negative at 0, tau 0.5: the mean of the two logarithms."""
    found = torch.tensor([[-0.5, 0.0]])
    got = SupCon(tau=0.5)(torch.tensor([-0.5]), torch.tensor([[0.0]]), positives=found)
    assert got.item() == pytest.approx(math.log(2 + math.exp(-1)) + 0.5, rel=1e-6)


def test_one_positive_is_info_nce() -> None:
    toy = toy_scores(6, 5, seed=3)
    call = (toy.positive, toy.negatives, toy.mask, toy.weights)
    torch.testing.assert_close(SupCon()(*call), InfoNCE()(*call))
