"""Drops below the target against a loop over the sorted row, and against the pool that QuRe's strategy makes."""

import math
import statistics
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from negbench.metrics.drops import Prominence, drop_prominence, drops, steepest


def falls(row: list[float], target: int, allowed: list[bool]) -> list[float]:
    """Return the drops between sorted scores below the target, in the order of the ranking."""
    below = sorted((s for s, ok in zip(row, allowed, strict=True) if ok and s < row[target]), reverse=True)
    return [one - two for one, two in pairwise(below)]


def prominence(scores: Tensor, target: Tensor, allowed: Tensor) -> Prominence:
    """Return the prominence of the drops between the images below each target."""
    below = allowed & (scores < scores.gather(1, target[:, None]))
    ranked = scores.masked_fill(~below, -torch.inf).sort(1, descending=True).values
    return drop_prominence(drops(ranked, 0, below.sum(1, keepdim=True)))


def case(seed: int, shift: float) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-20, 20, (12, 14), generator=generator).float() / 8 + shift
    return scores, torch.randint(14, (12,), generator=generator), torch.rand(12, 14, generator=generator) < 0.7


def test_prominence_against_a_loop(subtests):
    for seed in range(5):
        for shift in [-4.0, 0.0]:
            with subtests.test(seed=seed, shift=shift):
                scores, target, allowed = case(seed, shift)
                ratios = prominence(scores, target, allowed)
                for row in range(len(scores)):
                    drop = sorted(falls(scores[row].tolist(), int(target[row]), allowed[row].tolist()), reverse=True)
                    middle = statistics.median(drop) if drop else math.nan
                    for value, top, bottom in (
                        (float(ratios.largest[row]), drop[:1], [middle] if drop else []),
                        (float(ratios.second[row]), drop[1:2], drop[2:3]),
                    ):
                        if not top or not bottom or top[0] == bottom[0] == 0:
                            assert math.isnan(value), (row, top, bottom)
                        elif bottom[0] == 0:
                            assert value == math.inf, (row, top, bottom)
                        else:
                            assert value == pytest.approx(top[0] / bottom[0]), (row, top, bottom)


@pytest.mark.parametrize(
    ("drop", "want"),
    [
        ([0.1, 0.5, -1.0, 0.3], [1, 3]),
        ([0.3, 0.5, 0.5, 0.3], [1, 2]),  # the earlier of equal drops
        ([-1.0, 0.0, 0.2], [2, -1]),  # equal scores have no drop between them
        ([-1.0, -1.0], [-1, -1]),
        ([0.2], [0, -1]),
        ([], [-1, -1]),
    ],
)
def test_steepest_by_hand(drop, want):
    assert steepest(torch.tensor([drop])).tolist() == [want]
