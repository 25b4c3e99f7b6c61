"""Strategies and losses against numbers computed with released code on eight points of a circle.

The numbers come from pytorch-metric-learning 2.9.0 (its miner and loss classes) and the loss functions of
joshr17/HCL image/main.py and lucas-ventura/CoVR src/model/blip/loss.py.
Tests in tests/examples call sentence-transformers itself if it is installed.
"""

import math
from typing import Any

import pytest
import torch

from negbench.contracts import Loss, ScoreView, Strategy
from negbench.plugins.registry import registry
from negbench.testing import as_sets

ANGLES = torch.tensor([0, 10, 25, 60, 100, 135, 200, 290], dtype=torch.float64) * math.pi / 180
POINTS = torch.stack([ANGLES.cos(), ANGLES.sin()], dim=1)
LABELS = torch.arange(8) // 2  # every point has one positive, its neighbour


def _view(points: torch.Tensor) -> ScoreView:
    return ScoreView(points @ points.T, torch.arange(8) ^ 1, LABELS[:, None] != LABELS)


def _strategy(key: str, options: dict[str, Any]) -> Strategy:
    return registry.make("strategies", key, **options)


_HALF = [{2, 3, 7}, {2, 3, 4, 7}, {0, 1, 4, 7}, {0, 1, 4, 5}, {1, 2, 3}, {3, 6}, {5}, {0, 1, 2}]
_NEAR = [{2, 3}, {2, 3}, {0, 1}, {0, 1, 4}, {3}, {6}, {4, 5}, {0, 1, 2}]
_BELOW = [{2, 3}, {2, 3}, set(), {0, 1, 4}, {3}, {6}, {4}, {2}]


def test_miners(subtests):
    for key, options, want in (
        ("multi-similarity", {"epsilon": 0.1}, [{2}, {2}, {0, 1}, {4}, {3}, set(), {5}, {0, 1, 2}]),
        ("hdc", {}, _HALF),
        ("hdc", {"share": 0.2}, [{2, 3}, {2, 3}, {0, 1}, {0, 1, 4}, {3}, set(), set(), set()]),
        ("semi-hard", {"margin": 0.5}, _BELOW),
        ("in-batch-semi-hard", {"margin": 0.5}, _BELOW),
        ("semi-hard", {"margin": 0.5, "triplets": "all"}, _NEAR),
        ("semi-hard", {"margin": 0.5, "triplets": "hard"}, [a - b for a, b in zip(_NEAR, _BELOW, strict=True)]),
    ):
        with subtests.test(key=key):
            assert as_sets(_strategy(key, options).pool(_view(POINTS))) == want


def test_distance_weighted():
    x, y = POINTS.T
    points = torch.nn.functional.normalize(torch.stack([x, y, x * y, x * x, y * y], dim=1), dim=1)
    weights = _strategy("distance-weighted", {"width": 5, "limit": 1.9}).pool(_view(points))
    want = [
        [0.0, 0.0, 0.681132852381, 0.08581531579, 0.054792261162, 0.054219355638, 0.055684957749, 0.068355257279],
        [0.13281975, 0.172622256408, 0.0, 0.0, 0.410445860281, 0.11545375644, 0.083153986457, 0.085504390414],
        [0.152646877587, 0.152195514178, 0.150425500538, 0.147277109378, 0.151613246012, 0.245841752307, 0.0, 0.0],
    ]
    shares = weights / weights.sum(1, keepdim=True)
    torch.testing.assert_close(shares[[0, 3, 6]], torch.tensor(want, dtype=torch.float64), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("key", "options", "want"),
    [
        ("hcl", {"tau": 0.5}, 1.6988293114702677),
        ("hcl", {"tau": 0.5, "beta": 0.0}, 1.0712353104917063),
        ("multi-similarity", {}, 0.5443831828359992),
        ("multi-similarity", {"alpha": 1.0, "beta": 10.0, "base": -0.2}, 1.2798646445367665),
    ],
)
def test_losses_of_pairs(key, options, want):
    view = _view(POINTS)
    loss: Loss = registry.make("losses", key, **options)
    assert loss(view.positive, view.scores, view.allowed).item() == pytest.approx(want, rel=1e-12)


def test_hn_nce():
    # with evenly spaced points all rows have the same sum, so broadcasting it over columns does not matter, and both
    # directions agree
    even = torch.arange(8, dtype=torch.float64) * math.pi / 4
    scores = (even[:, None] - even).cos()
    loss: Loss = registry.make("losses", "hn-nce", tau=0.5, alpha=1.0, beta=0.5)
    value = loss(scores.diagonal(), scores, ~torch.eye(8, dtype=torch.bool))
    assert value.item() == pytest.approx(1.2312963105843284, rel=1e-9)
