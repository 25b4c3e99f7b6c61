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
    read = (lambda: pytest.fail("it reads no embeddings")) if queries is None else lambda: queries
    return Epoch(0, target, size, torch.Generator().manual_seed(seed), read)


def test_batches_of_ngame_are_clusters_of_like_queries():
    """With eight groups of four similar queries, at least 30 of 40 clusters of 4 are one whole group."""
    generator = torch.Generator().manual_seed(0)
    centres = normalize(torch.randn(8, 16, generator=generator), dim=1)
    group = torch.arange(32) % 8
    queries = normalize(centres[group] + 0.01 * torch.randn(32, 16, generator=generator), dim=1)
    whole = 0
    for seed in range(5):
        order = Ngame(cluster=4).order(epoch(torch.arange(32), 8, seed, queries))
        whole += sum(len(set(group[part].tolist())) == 1 for part in order.split(4))
    assert whole >= 30  # of 40: balanced halves may cut a group
    alone = Ngame(cluster=1).order(epoch(torch.arange(32), 8, 0, queries))
    assert sum(len(set(group[part].tolist())) == 1 for part in alone.split(4)) == 0


@pytest.mark.parametrize("count", [2, 3, 9, 16, 40, 41])
def test_a_half_is_balanced_and_cannot_be_bettered_by_an_exchange(count):
    """The split is a fixed point of balanced 2-means: no exchange of two queries would suit both better."""
    generator = torch.Generator().manual_seed(count)
    points = normalize(torch.randn(count, 3, generator=generator), dim=1)
    side = _half(points, generator)
    assert int(side.sum()) == -(-count // 2)
    centres = [normalize(points[s].mean(0), dim=0) for s in (side, ~side)]
    lean = [float(p @ centres[0] - p @ centres[1]) for p in points]
    assert min(v for v, s in zip(lean, side.tolist(), strict=True) if s) >= max(
        v for v, s in zip(lean, side.tolist(), strict=True) if not s
    )


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
            chunks = [target[chunk].tolist() for chunk in order.split(size)]
            assert all(len(set(chunk)) == len(chunk) for chunk in chunks)
            assert order.tolist() != NoDuplicates().order(epoch(target, size, seed + 100)).tolist()


def test_the_most_frequent_target_may_fill_all_batches_but_one(subtests):
    target = torch.tensor([7] * 4 + list(range(10, 29)))  # 23 queries, batches of 5, 5, 5, 5, 3
    for seed in range(30):
        with subtests.test(seed=seed):
            order = NoDuplicates().order(epoch(target, 5, seed))
            assert all((target[chunk] == 7).sum() <= 1 for chunk in order.split(5))
