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
    below = [score for score, is_allowed in zip(row, allowed, strict=True) if is_allowed and score < row[target]]
    return [higher - lower for higher, lower in pairwise(sorted(below, reverse=True))]


def prominence(scores: Tensor, target: Tensor, allowed: Tensor) -> Prominence:
    """Return the prominence of the drops between the images below each target."""
    below = allowed & (scores < scores.gather(1, target[:, None]))
    ranked = scores.masked_fill(~below, -torch.inf).sort(1, descending=True).values
    return drop_prominence(drops(ranked, 0, below.sum(1, keepdim=True)))


def case(seed: int, shift: float) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-20, 20, (12, 14), generator=generator).float() / 8 + shift
    return scores, torch.randint(14, (12,), generator=generator), torch.rand(12, 14, generator=generator) < 0.7


def ratio(drop: float, other: float) -> float:
    """Divide a drop by a smaller one; two drops of 0 have no ratio."""
    if other == 0:
        return math.nan if drop == 0 else math.inf
    return drop / other


def test_prominence_against_a_loop(subtests):
    for seed in range(5):
        for shift in [-4.0, 0.0]:
            with subtests.test(seed=seed, shift=shift):
                scores, target, allowed = case(seed, shift)
                ratios = prominence(scores, target, allowed)
                for row in range(len(scores)):
                    drop = sorted(falls(scores[row].tolist(), int(target[row]), allowed[row].tolist()), reverse=True)
                    largest = ratio(drop[0], statistics.median(drop)) if drop else math.nan
                    second = ratio(drop[1], drop[2]) if len(drop) > 2 else math.nan
                    assert float(ratios.largest[row]) == pytest.approx(largest, nan_ok=True), (row, drop)
                    assert float(ratios.second[row]) == pytest.approx(second, nan_ok=True), (row, drop)


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
