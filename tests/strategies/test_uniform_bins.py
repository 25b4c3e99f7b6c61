from __future__ import annotations

import math
from collections import Counter

import pytest

from negbench.contracts import ScoreView
from negbench.strategies.uniform_bins import UniformBins
from negbench.testing import toy_views


def _naive(view: ScoreView, row: int, bins: int) -> list[float]:
    far = [math.sqrt(2 - 2 * score) for score in view.scores[row].tolist()]
    here = [j for j in range(len(far)) if view.allowed[row, j]]
    if not here:
        return [0.0] * len(far)
    low, high = min(far[j] for j in here), max(far[j] for j in here)
    place = {j: min(bins - 1, int((far[j] - low) / (high - low) * bins)) if high > low else 0 for j in here}
    count = Counter(place.values())
    return [1 / count[place[j]] if j in place else 0.0 for j in range(len(far))]


def test_against_loops() -> None:
    for bins in [1, 3, 100]:
        for view in toy_views():
            for i, got in enumerate(UniformBins(bins=bins).pool(view).tolist()):
                assert got == pytest.approx(_naive(view, i, bins))
