"""Metrics on the ranks of all relevant images, against loops over sorted columns; scores of both signs, with ties."""

import math

import pytest
import torch

from negbench.errors import OptionError
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import relevant_ranks
from negbench.metrics.relevant import false_negative_rate, other_recall_at_k

Case = tuple[list[list[int]], list[list[int]], Ragged, torch.Tensor]


def case(seed: int, rows: int = 8, columns: int = 30) -> Case:
    """Return rankings (columns, best first; irrelevant first among ties), the relevant columns and their ranks.

    Relevant columns start with the target; the last two columns of every row are no candidates.
    """
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-6, 4, (rows, columns), generator=generator).float() / 4
    allowed = torch.ones(rows, columns, dtype=torch.bool)
    allowed[:, -2:] = False
    picks = [torch.randperm(columns - 2, generator=generator)[: 1 + row % 5].tolist() for row in range(rows)]
    orders = []
    for row, relevant in enumerate(picks):
        keys = {}
        for column in range(columns - 2):
            index = relevant.index(column) if column in relevant else -1
            keys[column] = (-float(scores[row, column]), index)
        orders.append(sorted(keys, key=keys.__getitem__))
    return orders, picks, relevant_ranks(scores, Ragged.of(picks), allowed), allowed.sum(1)


@pytest.mark.parametrize("k", [1, 5, 28, 100])
def test_recall_of_the_others_against_a_loop(k):
    for seed in range(4):
        orders, picks, ranks, _ = case(seed)
        recall = other_recall_at_k(ranks, k).tolist()
        for row, (order, (_, *others)) in enumerate(zip(orders, picks, strict=True)):
            want = len({*order[:k]} & {*others}) / len(others) if others else math.nan
            assert recall[row] == pytest.approx(want, nan_ok=True), f"seed {seed}, row {row}"


def test_false_negatives_by_rank_against_a_loop():
    for seed in range(4):
        orders, picks, ranks, sizes = case(seed)
        images = dict.fromkeys(("above the target", "1-3", "4-10", "11-40", "4-", "41-"), 0)
        wrong = dict.fromkeys(images, 0)
        for order, (target, *others) in zip(orders, picks, strict=True):
            target_rank = 1 + order.index(target)
            for rank, column in enumerate(order, start=1):
                if column == target:
                    continue
                if rank <= 3:
                    bands = ["1-3"]
                elif rank <= 10:
                    bands = ["4-", "4-10"]
                else:
                    bands = ["4-", "11-40"]
                if rank < target_rank:
                    bands.append("above the target")
                for band in bands:
                    images[band] += 1
                    wrong[band] += column in others
        for band, count in images.items():
            rate = wrong[band] / count if count else math.nan
            assert false_negative_rate(ranks, sizes, band) == pytest.approx(rate, nan_ok=True), (seed, band)


def test_what_cannot_be_told_is_an_error():
    with pytest.raises(OptionError, match="k must be"):
        other_recall_at_k(Ragged.of([[1, 2]]), 0)
