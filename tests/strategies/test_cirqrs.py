from __future__ import annotations

from dataclasses import replace

import torch

from negbench.config import refresh_epochs
from negbench.contracts import ScoreView
from negbench.strategies.cirqrs import Cirqrs
from negbench.testing import as_sets, ranking_below, toy_views

SCORES = torch.tensor([[0.9, 0.1, 0.5, -0.2, 0.4, -0.6, 0.3]])  # target 2: below it stand 4, 6, 1, 3, 5


def test_hand_table() -> None:
    for refresh, want in [(0, {4, 6, 1, 3}), (1, {4, 6}), (2, {4}), (3, {4}), (90, {4})]:
        assert as_sets(Cirqrs(n_neg=4).pool(ScoreView(SCORES, torch.tensor([2]), refresh=refresh))) == [want]


def test_against_loops() -> None:
    for n_neg in [1, 5, 50]:
        for view in toy_views():
            k = n_neg
            for refresh in range(4):
                now = ScoreView(view.scores, view.target, view.allowed, refresh)
                got = as_sets(Cirqrs(n_neg=n_neg).pool(now))
                assert got == [set(ranking_below(view, i)[:k]) for i in range(len(view.target))]
                k = max(k // 2, 1)


# alg. 1 with the published schedules (sec. 5.1): n_neg // 2^k at the k-th definition
def test_published_sizes() -> None:
    for n_neg, n_def, epochs, want in [
        (50, 5, 30, {6: 50, 12: 25, 18: 12, 24: 6}),
        (100, 6, 50, {8: 100, 16: 50, 24: 25, 32: 12, 40: 6, 48: 3}),
    ]:
        view = ScoreView(-torch.arange(200.0)[None], torch.tensor([0]))
        sizes = {}
        for refresh, epoch in enumerate(refresh_epochs(epochs, n_def, rule=Cirqrs.schedule)):
            sizes[epoch] = int(Cirqrs(n_neg=n_neg).pool(replace(view, refresh=refresh)).sum())
        assert sizes == want
