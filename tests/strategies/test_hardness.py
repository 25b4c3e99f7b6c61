from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from negbench.contracts import ScoreView
from negbench.losses.info_nce import InfoNCE
from negbench.strategies.hardness import Hardness
from negbench.testing import toy_views


def test_against_loops() -> None:
    for alpha in [0.0, 5.0, 9.0]:
        for view in toy_views():
            for i, row in enumerate(Hardness(alpha=alpha).pool(view).tolist()):
                scores = view.scores[i].tolist()
                want = [math.exp(alpha * s) if view.allowed[i, j] else 0.0 for j, s in enumerate(scores)]
                assert row == pytest.approx(want, rel=1e-5)


def test_info_nce_with_these_weights_adds_alpha_sg_s_to_the_logits() -> None:
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        scores = (2 * torch.rand(6, 6, generator=generator, dtype=torch.float64) - 1).requires_grad_()
        own = torch.eye(6, dtype=torch.bool)
        weights = Hardness(alpha=9.0).pool(ScoreView(scores.detach(), torch.arange(6)))
        got = InfoNCE(tau=0.05)(scores.diagonal(), scores, ~own, weights)
        want = cross_entropy(scores / 0.05 + 9.0 * scores.detach().masked_fill(own, 0.0), torch.arange(6))
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(*(torch.autograd.grad(value, scores)[0] for value in (got, want)))
