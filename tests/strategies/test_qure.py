from itertools import pairwise
from typing import Literal

import torch
from hypothesis import given
from hypothesis import strategies as draw

from negbench.contracts import ScoreView
from negbench.strategies.qure import Qure
from negbench.testing import as_sets, ranking_below

Variant = Literal["paper", "release"]


def _naive(view: ScoreView, row: int, variant: Variant, threshold: int) -> set[int]:
    """Return the pool of one row by QuRe's alg. 1, or by the walk of its released code, as a loop."""
    below = ranking_below(view, row)
    scores = [view.scores[row].tolist()[j] for j in below]
    drops = [a - b for a, b in pairwise(scores)]
    walk = sorted((p for p, drop in enumerate(drops) if drop > 0), key=lambda p: (-drops[p], p))
    for first, second in pairwise(walk):
        if variant == "paper" or abs(first - second) > threshold:
            return set(below[min(first, second) + 1 : max(first, second) + 1])
    return set()


def _row(*sixteenths: int) -> torch.Tensor:
    return torch.tensor([sixteenths]) / 16


# target 0; below it, places 0..6 hold columns 2, 1, 3, 4, 6, 5, 7 with scores 12, 11, 6, 1, 0, -4, -5 sixteenths:
# drops 1, 5, 5, 1, 4, 1 at places 0..5. Column 8 is above the target.
HAND = _row(13, 11, 12, 6, 1, -4, 0, -5, 16)


def test_hand_table_paper():
    # the two largest drops are the fives at places 1 and 2: the pool is place 2
    assert as_sets(Qure().pool(ScoreView(HAND, torch.tensor([0])))) == [{3}]


def test_hand_table_release():
    # walk: places 1, 2, 4, 0, 3, 5. (1, 2) are next to each other, (2, 4) differ by 2: the pool is places 3 and 4
    assert as_sets(Qure(variant="release").pool(ScoreView(HAND, torch.tensor([0])))) == [{4, 6}]
    # by more than 2: (4, 0) is the first, so places 1 to 4
    wider = Qure(variant="release", consecutive_threshold=2)
    assert as_sets(wider.pool(ScoreView(HAND, torch.tensor([0])))) == [{1, 3, 4, 6}]
    assert as_sets(Qure(variant="release", consecutive_threshold=0).pool(ScoreView(HAND, torch.tensor([0])))) == [{3}]


def test_disallowed_images_leave_no_gap():
    allowed = torch.ones(1, 9, dtype=torch.bool)
    allowed[0, 3] = False  # now 11 is followed by 1: drops 1, 10, 1, 4, 1
    assert as_sets(Qure().pool(ScoreView(HAND, torch.tensor([0]), allowed))) == [{4, 6}]


def test_the_drop_after_the_target_does_not_count():
    # target 15, far above the rest: drops below it are 1, 1, 3
    assert as_sets(Qure().pool(ScoreView(_row(15, 4, 3, 2, -1), torch.tensor([0])))) == [{2, 3}]


def test_equal_drops_take_the_earlier_place():
    view = ScoreView(_row(9, 8, 7, 6, 5, 4), torch.tensor([0]))
    assert as_sets(Qure().pool(view)) == [{2}]  # places 0 and 1
    assert as_sets(Qure(variant="release").pool(view)) == [set()]  # the walk 0, 1, 2, 3 never jumps


def test_all_copies_of_an_image_or_none():
    for below, want in (((8, 5, 5), set()), ((8, 5, 5, 1), {2, 3}), ((8, 8, 5, 1), {3}), ((8, 8, 8, 8), set())):
        assert as_sets(Qure().pool(ScoreView(_row(9, *below), torch.tensor([0])))) == [want]


def test_fewer_than_three_below_the_target_is_an_empty_pool():
    for below in [0, 1, 2]:
        for variant in ["paper", "release"]:
            scores = _row(0, *range(-1, -1 - below, -1), *range(1, 7 - below))
            assert scores.shape == (1, 7)
            assert as_sets(Qure(variant=variant).pool(ScoreView(scores, torch.tensor([0])))) == [set()]


@given(
    draw.lists(draw.tuples(draw.integers(-20, 20), draw.booleans()), min_size=1, max_size=14),
    draw.integers(0, 13),
    draw.sampled_from(["paper", "release"]),
    draw.integers(0, 4),
)
def test_any_row_against_loops(row, target, variant, threshold):
    view = ScoreView(
        torch.tensor([[score for score, _ in row]]) / 32,
        torch.tensor([target % len(row)]),
        torch.tensor([[allowed for _, allowed in row]]),
    )
    strategy = Qure(variant=variant, consecutive_threshold=1 if variant == "paper" else threshold)
    assert as_sets(strategy.pool(view)) == [_naive(view, 0, variant, threshold)]


def test_half_precision_drops_are_exact():
    # drops 1 - 2**-13, 1 + 2**-13, 1: in float16 all three would round to 1, and places 0 and 1 would win
    scores = torch.tensor([[2.0, 1.0, 2.0**-13, -1.0, -2.0]], dtype=torch.float16)
    assert as_sets(Qure().pool(ScoreView(scores, torch.tensor([0])))) == [{3}]
