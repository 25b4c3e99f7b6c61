"""Orders of queries that strategies with composed batches make of an epoch."""

from collections import Counter

import pytest
import torch
from torch.nn.functional import normalize

from negbench.contracts import Epoch
from negbench.strategies.ngame import Ngame, _half
from negbench.strategies.no_duplicates import NoDuplicates


def epoch(target: torch.Tensor, size: int, seed: int, queries: torch.Tensor | None = None) -> Epoch:
    """Return an epoch; without `queries`, reading embeddings fails the test."""

    def read() -> torch.Tensor:
        assert queries is not None, "it reads no embeddings"
        return queries

    return Epoch(0, target, size, torch.Generator().manual_seed(seed), read)


def test_batches_of_ngame_are_clusters_of_like_queries():
    """With eight groups of four similar queries, at least 30 of 40 clusters of 4 are one whole group."""
    generator = torch.Generator().manual_seed(0)
    centres = normalize(torch.randn(8, 16, generator=generator), dim=1)
    group = torch.arange(32) % 8
    queries = normalize(centres[group] + 0.01 * torch.randn(32, 16, generator=generator), dim=1)

    def whole_groups(order: torch.Tensor) -> int:
        """Count the fours that are one group."""
        return sum(len(set(group[part].tolist())) == 1 for part in order.split(4))

    clusters = [Ngame(cluster=4).order(epoch(torch.arange(32), 8, seed, queries)) for seed in range(5)]
    assert sum(whole_groups(order) for order in clusters) >= 30  # of 40: balanced halves may cut a group
    singles = Ngame(cluster=1).order(epoch(torch.arange(32), 8, 0, queries))
    assert whole_groups(singles) == 0


@pytest.mark.parametrize("count", [2, 3, 9, 16, 40, 41])
def test_a_half_is_balanced_and_cannot_be_bettered_by_an_exchange(count):
    """The split is a fixed point of balanced 2-means: no exchange of two queries would suit both better."""
    generator = torch.Generator().manual_seed(count)
    points = normalize(torch.randn(count, 3, generator=generator), dim=1)
    side = _half(points, generator)
    assert int(side.sum()) == -(-count // 2)
    inside = normalize(points[side].mean(0), dim=0)
    outside = normalize(points[~side].mean(0), dim=0)
    lean = torch.stack([point @ inside - point @ outside for point in points])
    assert lean[side].min() >= lean[~side].max()


def test_no_batch_repeats_a_target(subtests):
    """No batch repeats a target if every target has fewer queries than there are batches."""
    for seed in range(20):
        with subtests.test(seed=seed):
            generator = torch.Generator().manual_seed(seed)
            size = 3 + seed % 5
            count = 40 + seed
            batches = -(-count // size)
            target = torch.randint(count // 3, (count,), generator=generator)
            while max(Counter(target.tolist()).values()) > batches - 1:
                target = torch.randint(count // 3, (count,), generator=generator)
            order = NoDuplicates().order(epoch(target, size, seed))
            assert order.sort().values.tolist() == list(range(count))
            for chunk in order.split(size):
                targets = target[chunk].tolist()
                assert len(set(targets)) == len(targets), f"targets {targets}"
            assert order.tolist() != NoDuplicates().order(epoch(target, size, seed + 100)).tolist()


def test_the_most_frequent_target_may_fill_all_batches_but_one(subtests):
    target = torch.tensor([7] * 4 + list(range(10, 29)))  # 23 queries, batches of 5, 5, 5, 5, 3
    for seed in range(30):
        with subtests.test(seed=seed):
            order = NoDuplicates().order(epoch(target, 5, seed))
            counts = [int((target[chunk] == 7).sum()) for chunk in order.split(5)]
            assert max(counts) <= 1
