from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as draw

from negbench.contracts import ScoreView
from negbench.strategies.qure import Qure
from negbench.testing import as_sets, ranking_below


def _naive(view: ScoreView, row: int, variant: str, threshold: int) -> set[int]:
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


# target 0; below it, positions 0..6 hold columns 2, 1, 3, 4, 6, 5, 7 with scores 12, 11, 6, 1, 0, -4, -5 sixteenths:
# drops 1, 5, 5, 1, 4, 1 at positions 0..5. Column 8 is above the target.
HAND = _row(13, 11, 12, 6, 1, -4, 0, -5, 16)


RELEASE = Qure(variant="release")
BY_HAND: list[tuple[str, torch.Tensor, Qure, set[int]]] = [
    ("the two largest drops are the fives at positions 1 and 2: the pool is position 2", HAND, Qure(), {3}),
    # walk: positions 1, 2, 4, 0, 3, 5
    ("(1, 2) are next to each other, (2, 4) differ by 2: the pool is positions 3 and 4", HAND, RELEASE, {4, 6}),
    ("(4, 0) is the first to differ by more", HAND, Qure(variant="release", consecutive_threshold=2), {1, 3, 4, 6}),
    ("any two differ by more", HAND, Qure(variant="release", consecutive_threshold=0), {3}),
    ("the drop from the target does not count", _row(15, 4, 3, 2, -1), Qure(), {2, 3}),
    ("of equal drops the earlier positions are taken", _row(9, 8, 7, 6, 5, 4), Qure(), {2}),
    ("the walk 0, 1, 2, 3 never jumps", _row(9, 8, 7, 6, 5, 4), RELEASE, set()),
]


@pytest.mark.parametrize(
    ("scores", "strategy", "want"), [case[1:] for case in BY_HAND], ids=[case[0] for case in BY_HAND]
)
def test_by_hand(scores, strategy, want):
    assert as_sets(strategy.pool(ScoreView(scores, torch.tensor([0])))) == [want]


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
    # drops 1 - 2**-13, 1 + 2**-13, 1: in float16 all three would round to 1, and positions 0 and 1 would win
    scores = torch.tensor([[2.0, 1.0, 2.0**-13, -1.0, -2.0]], dtype=torch.float16)
    assert as_sets(Qure().pool(ScoreView(scores, torch.tensor([0])))) == [{3}]
