from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from negbench.config import refresh_epochs
from negbench.contracts import ScoreView
from negbench.strategies.cirqrs import Cirqrs
from negbench.testing import as_sets, ranking_below, toy_views

SCORES = torch.tensor([[0.9, 0.1, 0.5, -0.2, 0.4, -0.6, 0.3]])  # target 2: below it stand 4, 6, 1, 3, 5


@pytest.mark.parametrize(("refresh", "want"), [(0, {4, 6, 1, 3}), (1, {4, 6}), (2, {4}), (3, {4}), (90, {4})])
def test_hand_table(refresh: int, want: set[int]) -> None:
    assert as_sets(Cirqrs(n_neg=4).pool(ScoreView(SCORES, torch.tensor([2]), refresh=refresh))) == [want]


def test_all_scores_negative() -> None:
    view = ScoreView(SCORES - 2, torch.tensor([2]), refresh=1)
    assert as_sets(Cirqrs(n_neg=5).pool(view)) == [{4, 6}]


@pytest.mark.parametrize("n_neg", [1, 5, 50])
def test_against_loops(n_neg: int) -> None:
    for view in toy_views():
        k = n_neg
        for refresh in range(4):
            now = ScoreView(view.scores, view.target, view.allowed, refresh)
            got = as_sets(Cirqrs(n_neg=n_neg).pool(now))
            assert got == [set(ranking_below(view, i)[:k]) for i in range(len(view.target))]
            k = max(k // 2, 1)


def test_nothing_below_the_target_is_an_empty_pool() -> None:
    assert as_sets(Cirqrs().pool(ScoreView(SCORES, torch.tensor([5])))) == [set()]


# alg. 1 with the published schedules (sec. 5.1): n_neg // 2^k at the k-th definition
@pytest.mark.parametrize(
    ("n_neg", "n_def", "epochs", "want"),
    [(50, 5, 30, {6: 50, 12: 25, 18: 12, 24: 6}), (100, 6, 50, {8: 100, 16: 50, 24: 25, 32: 12, 40: 6, 48: 3})],
)
def test_published_sizes(n_neg: int, n_def: int, epochs: int, want: dict[int, int]) -> None:
    view = ScoreView(-torch.arange(200.0)[None], torch.tensor([0]))
    sizes = {}
    for refresh, epoch in enumerate(refresh_epochs(epochs, n_def, rule=Cirqrs.schedule)):
        sizes[epoch] = int(Cirqrs(n_neg=n_neg).pool(replace(view, refresh=refresh)).sum())
    assert sizes == want


def test_published_defaults() -> None:
    assert (Cirqrs().n_neg, Cirqrs.n_def) == (50, 5)
