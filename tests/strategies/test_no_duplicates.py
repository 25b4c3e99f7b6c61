from __future__ import annotations

from collections import Counter

import pytest
import torch

from negbench.contracts import Epoch
from negbench.strategies.no_duplicates import NoDuplicates


def epoch(target: torch.Tensor, size: int, seed: int = 0) -> Epoch:
    return Epoch(0, target, size, torch.Generator().manual_seed(seed), lambda: pytest.fail("it reads no embeddings"))


def test_no_batch_repeats_a_target() -> None:
    """As long as none has more queries than there are batches, less one."""
    for seed in range(20):
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


def test_the_most_frequent_target_may_fill_all_batches_but_one() -> None:
    target = torch.tensor([7] * 4 + list(range(10, 29)))  # 23 queries, batches of 5, 5, 5, 5, 3
    for seed in range(30):
        order = NoDuplicates().order(epoch(target, 5, seed))
        assert all((target[chunk] == 7).sum() <= 1 for chunk in order.split(5))
