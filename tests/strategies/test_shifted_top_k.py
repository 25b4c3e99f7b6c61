from __future__ import annotations

import torch

from negbench.contracts import ScoreView
from negbench.strategies.shifted_top_k import ShiftedTopK
from negbench.testing import as_sets, toy_views

# ranks 0..5 hold columns 1, 3, 5, 0, 2, 4
SCORES = torch.tensor([[0.5, 0.9, -0.1, 0.7, -0.8, 0.6]])


def _naive(view: ScoreView, row: int, start: int, stop: int) -> set[int]:
    scores, target = view.scores[row].tolist(), int(view.target[row])
    here = [j for j in range(len(scores)) if view.allowed[row, j] or j == target]
    here.sort(key=lambda j: (-scores[j], j))
    return set(here[start:stop]) - {target}


def test_against_loops() -> None:
    for start, stop in [(0, 3), (2, 7), (10, 210)]:
        for view in toy_views():
            want = [_naive(view, i, start, stop) for i in range(len(view.target))]
            assert as_sets(ShiftedTopK(start=start, stop=stop).pool(view)) == want
