from __future__ import annotations

from typing import get_args

import torch

from negbench.contracts import ScoreView
from negbench.strategies._scores import Triplets
from negbench.strategies.semi_hard import SemiHard
from negbench.testing import as_sets, toy_views

# target 0; gaps of columns 1..6: -0.25, 0, 0.125, 0.25, 0.375, 1
SCORES = torch.tensor([[0.5, 0.75, 0.5, 0.375, 0.25, 0.125, -0.5]])
WANT = {"semi-hard": {3, 4}, "hard": {1, 2}, "all": {1, 2, 3, 4}}


def test_hand_table() -> None:
    for shift in [0.0, -2.0]:
        for triplets in get_args(Triplets):
            view = ScoreView(SCORES + shift, torch.tensor([0]))
            assert as_sets(SemiHard(margin=0.25, triplets=triplets).pool(view)) == [WANT[triplets]]


def naive(view: ScoreView, row: int, triplets: Triplets, margin: float) -> set[int]:
    scores = view.scores[row].tolist()
    pool = set()
    for j, score in enumerate(scores):
        gap = scores[int(view.target[row])] - score
        side = {"semi-hard": gap > 0, "hard": gap <= 0, "all": True}[triplets]
        if bool(view.allowed[row, j]) and side and gap <= margin:
            pool.add(j)
    return pool


def test_against_loops() -> None:
    for margin in [0.2, 0.5]:
        for triplets in get_args(Triplets):
            strategy = SemiHard(margin=margin, triplets=triplets)
            for view in toy_views():
                want = [naive(view, i, triplets, margin) for i in range(len(view.target))]
                assert as_sets(strategy.pool(view)) == want


def test_facenets_margin_on_squared_distances_is_twice_that_of_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.nn.functional.normalize(torch.randn(400, 4, generator=generator), dim=1)
    query = images[0]
    squared = (images - query).pow(2).sum(1)
    target = 7
    want = set(((squared > squared[target]) & (squared < squared[target] + 0.2)).nonzero()[:, 0].tolist())
    assert want
    view = ScoreView((images @ query)[None], torch.tensor([target]))
    assert as_sets(SemiHard(margin=0.1).pool(view)) == [want]
