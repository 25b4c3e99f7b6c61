from __future__ import annotations

import math

import pytest

from negbench.contracts import ScoreView
from negbench.strategies.trisampler import Trisampler
from negbench.testing import ranking, toy_views


def naive(view: ScoreView, row: int, k: int) -> list[float]:
    scores, likeness = view.scores[row].tolist(), view.planes["target"][row].tolist()
    positive, weights = scores[int(view.target[row])], [0.0] * len(scores)
    for j in ranking(view, row)[:k]:
        weights[j] = math.exp(-((scores[j] - positive) ** 2) / 4) * max(0.0, likeness[j] - scores[j])
    return weights


def test_against_loops() -> None:
    for k in [3, 100]:
        for view in toy_views():
            pool = Trisampler(k=k).pool(view)
            for row, weights in enumerate(pool.tolist()):
                assert weights == pytest.approx(naive(view, row, k), rel=1e-9)
