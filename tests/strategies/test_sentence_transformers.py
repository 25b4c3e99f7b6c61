from __future__ import annotations

from typing import Any

import pytest
import torch

from negbench.contracts import ScoreView
from negbench.strategies.sentence_transformers import SentenceTransformers
from negbench.testing import as_sets, toy_views

# by descending score: columns 1, 2, 0 (the target), 3, 4, 5, 6
SCORES = torch.tensor([[0.5, 0.875, 0.625, 0.375, 0.25, -0.125, -0.5]])


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, {1, 2, 3}),
        ({"range_min": 1}, {2, 3, 4}),
        ({"range_min": 1, "range_max": 4, "sampling_strategy": "random"}, {2, 3, 4}),
        ({"absolute_margin": 0.125}, {3, 4, 5}),
        ({"absolute_margin": 0.125, "range_min": 1}, {4, 5, 6}),  # skipped after the filters
        ({"absolute_margin": 0.125, "range_max": 4}, {3, 4}),  # the window counts what the filters drop
        ({"relative_margin": 0.25, "num_negatives": 1}, {3}),
        ({"relative_margin": 0.5, "num_negatives": 1}, {4}),
        ({"max_score": 0.625}, {2, 3, 4}),
        ({"min_score": 0.25, "range_max": 6}, {1, 2, 3}),
        ({"min_score": 0.375, "range_min": 1, "range_max": 6}, {2, 3}),
    ],
    ids=str,
)
def test_hand_table(options: dict[str, Any], want: set[int]) -> None:
    assert as_sets(SentenceTransformers(**options).pool(ScoreView(SCORES, torch.tensor([0])))) == [want]


def test_the_relative_margin_is_safe_for_negative_scores() -> None:
    view = ScoreView(torch.tensor([[-0.5, -0.375, -0.5625, -0.625, -0.75]]), torch.tensor([0]))
    assert as_sets(SentenceTransformers(relative_margin=0.25).pool(view)) == [{3, 4}]


def _naive(view: ScoreView, row: int, rule: SentenceTransformers) -> set[int]:
    scores, target = view.scores[row].tolist(), int(view.target[row])
    some = {rule.absolute_margin, rule.relative_margin, rule.max_score} != {None}
    last = rule.range_max if rule.range_max else rule.range_min + rule.num_negatives * (10 if some else 1) + 1
    found = [j for j in range(len(scores)) if view.allowed[row, j] or j == target]
    found = [j for j in sorted(found, key=lambda j: (-scores[j], j))[: last + 1] if j != target]
    positive = scores[target]
    if rule.absolute_margin is not None:
        found = [j for j in found if scores[j] <= positive - rule.absolute_margin]
    if rule.relative_margin is not None:
        found = [j for j in found if scores[j] <= positive - rule.relative_margin * abs(positive)]
    if rule.max_score is not None:
        found = [j for j in found if scores[j] <= rule.max_score]
    if rule.min_score is not None:
        found = [j for j in found if scores[j] >= rule.min_score]
    found = found[rule.range_min : last]
    return set(found[: rule.num_negatives] if rule.sampling_strategy == "top" else found)


RULES = [
    {},
    {"range_min": 2, "range_max": 6, "sampling_strategy": "random"},
    {"absolute_margin": 0.25, "range_min": 1},
    {"relative_margin": 0.25, "num_negatives": 2},
    {"relative_margin": 0.5, "range_max": 8, "sampling_strategy": "random"},
    {"max_score": 0.25, "min_score": -0.5, "num_negatives": 5},
]


def test_against_loops() -> None:
    for options in RULES:
        rule = SentenceTransformers(**options)
        for view in toy_views():
            assert as_sets(rule.pool(view)) == [_naive(view, i, rule) for i in range(len(view.target))]


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, 4),
        ({"min_score": -1.0}, 4),  # no reason for a wider window
        ({"absolute_margin": 0.0}, 31),
        ({"relative_margin": 0.0, "range_min": 5}, 36),
        ({"max_score": 1.0, "num_negatives": 2}, 21),
    ],
    ids=str,
)
def test_the_default_window_is_ten_times_as_wide_under_a_filter(options: dict[str, Any], want: int) -> None:
    rule = SentenceTransformers(**options, sampling_strategy="random")
    assert rule.window == want
    scores = torch.linspace(1, -1, 60)[None]  # the target scores highest
    places = as_sets(rule.pool(ScoreView(scores, torch.tensor([0]))))[0]
    assert places == set(range(1 + rule.range_min, 1 + want))
