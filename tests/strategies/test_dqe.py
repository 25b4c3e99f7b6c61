from __future__ import annotations

import pytest
import torch

from negbench.contracts import ScoreView, tunable_ranges
from negbench.strategies.dqe import Dqe
from negbench.testing import as_sets, ranking, toy_views

# target 1 (0.5); gaps of columns 0, 2, 3, 4, 5, 6: -0.25, 0.125, 0.25, 0.5, 0.75, 1.25
SCORES = torch.tensor([[0.75, 0.5, 0.375, 0.25, 0.0, -0.25, -0.75]])
VIEW = ScoreView(SCORES, torch.tensor([1]))


@pytest.mark.parametrize(
    ("strategy", "want"),
    [
        (Dqe(), {3, 4, 5}),
        (Dqe(alpha=0.25, beta=0.5), {3, 4}),  # both edges belong to the band
        (Dqe(alpha=0, beta=2), {2, 3, 4, 5, 6}),  # never above the target
        # gaps run from -0.25 to 1.25: rescaled 0, 0.25, 1/3, 0.5, 2/3, 1
        (Dqe(scale="minmax"), {2, 3, 4, 5}),
        (Dqe(alpha=0.3, beta=0.6, scale="minmax"), {3, 4}),
        (Dqe(alpha=0, beta=1, scale="minmax"), {2, 3, 4, 5, 6}),
        # ranked above: 0 of 5, 1 of 5, ... 5 of 5
        (Dqe(scale="quantile"), {2, 3, 4, 5}),
        (Dqe(alpha=0.3, beta=0.6, scale="quantile"), {3, 4}),
        (Dqe(alpha=0, beta=1, scale="quantile"), {2, 3, 4, 5, 6}),
    ],
    ids=str,
)
def test_hand_table(strategy: Dqe, want: set[int]) -> None:
    assert as_sets(strategy.pool(VIEW)) == [want]
    assert as_sets(strategy.pool(ScoreView(SCORES - 2, torch.tensor([1])))) == [want]  # all scores negative


def _naive(view: ScoreView, row: int, strategy: Dqe) -> set[int]:
    scores = view.scores[row].tolist()
    positive, ranked = scores[int(view.target[row])], ranking(view, row)
    pool = set()
    for place, j in enumerate(ranked):
        gap = positive - scores[j]
        if gap < 0:
            continue
        if strategy.scale == "minmax":
            top, bottom = scores[ranked[0]], scores[ranked[-1]]
            if top == bottom:
                continue
            gap = (top - scores[j]) / (top - bottom)
        if strategy.scale == "quantile":
            gap = place / max(len(ranked) - 1, 1)
        if strategy.alpha <= gap <= strategy.beta:
            pool.add(j)
    return pool


def test_against_loops() -> None:
    for alpha, beta in [(0.2, 0.8), (0.0, 0.5), (0.5, 1.0)]:
        for scale in ["absolute", "minmax", "quantile"]:
            strategy = Dqe(alpha=alpha, beta=beta, scale=scale)  # type: ignore[arg-type]
            for view in toy_views():
                assert as_sets(strategy.pool(view)) == [_naive(view, i, strategy) for i in range(len(view.target))]


def test_ties_with_the_target_are_at_gap_zero() -> None:
    view = ScoreView(torch.tensor([[0.5, 0.5, 0.25]]), torch.tensor([0]))
    assert as_sets(Dqe(alpha=0, beta=0.1).pool(view)) == [{1}]
    assert as_sets(Dqe(alpha=0.1, beta=0.3).pool(view)) == [{2}]


def test_equal_gaps_cannot_be_rescaled() -> None:
    view = ScoreView(torch.tensor([[0.5, 0.25, 0.25, 0.25]]), torch.tensor([0]))
    assert as_sets(Dqe(alpha=0, beta=1, scale="minmax").pool(view)) == [set()]
    assert as_sets(Dqe(alpha=0, beta=1, scale="quantile").pool(view)) == [{1, 2, 3}]


def test_only_allowed_images_set_the_scale() -> None:
    allowed = torch.ones(1, 7, dtype=torch.bool)
    allowed[0, [0, 6]] = False  # gaps now run from 0.125 to 0.75: rescaled 0, 0.2, 0.6, 1
    assert as_sets(Dqe(scale="minmax").pool(ScoreView(SCORES, torch.tensor([1]), allowed))) == [{3, 4}]


def test_published_schedule() -> None:
    assert (Dqe.n_def, Dqe.schedule, tunable_ranges(Dqe)["alpha"].below) == (6, "equal", "beta")
