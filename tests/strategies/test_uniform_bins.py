from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from negbench.contracts import ScoreView
from negbench.strategies.uniform_bins import UniformBins
from negbench.testing import toy_views


def test_hand_table() -> None:
    # distances 0, 0.5, 1.125, 1.25, 2 of columns 1..5; two bins [0, 1) and [1, 2]
    distances = torch.tensor([[0.75, 0.0, 0.5, 1.125, 1.25, 2.0]], dtype=torch.float64)
    view = ScoreView(1 - distances**2 / 2, torch.tensor([0]))
    want = torch.tensor([[0, 1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    torch.testing.assert_close(UniformBins(bins=2).pool(view), want)


def _naive(view: ScoreView, row: int, bins: int) -> list[float]:
    far = [math.sqrt(2 - 2 * score) for score in view.scores[row].tolist()]
    here = [j for j in range(len(far)) if view.allowed[row, j]]
    if not here:
        return [0.0] * len(far)
    low, high = min(far[j] for j in here), max(far[j] for j in here)
    place = {j: min(bins - 1, int((far[j] - low) / (high - low) * bins)) if high > low else 0 for j in here}
    count = Counter(place.values())
    return [1 / count[place[j]] if j in place else 0.0 for j in range(len(far))]


@pytest.mark.parametrize("bins", [1, 3, 100])
def test_against_loops(bins: int) -> None:
    for view in toy_views():
        for i, got in enumerate(UniformBins(bins=bins).pool(view).tolist()):
            assert got == pytest.approx(_naive(view, i, bins))


def test_equal_distances_are_one_bin() -> None:
    weights = UniformBins().pool(ScoreView(torch.full((1, 5), -0.25), torch.tensor([2])))
    assert weights.tolist() == [[0.25, 0.25, 0, 0.25, 0.25]]
