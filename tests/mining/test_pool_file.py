"""Pools on disk: one bit per image."""

import numpy as np
import torch
from torch import Tensor

from negbench.mining.pool_file import Bytes, opened, overlap, packed, row_bytes, written


def pools(images: int, share: float, rows: int = 4, seed: int = 0) -> Tensor:
    return torch.rand(rows, images, generator=torch.Generator().manual_seed(seed)) < share


def unpacked(rows: Bytes, images: int) -> Tensor:
    return torch.from_numpy(np.unpackbits(rows, axis=1, count=images).astype(np.bool_))


def test_pools_come_back_and_their_overlap_is_counted():
    for images, share in ((13, 0.5), (8, 0.0), (70_000, 0.3)):
        first, second = pools(images, share), pools(images, 0.6, seed=1)
        assert packed(first).shape == (4, row_bytes(images))
        assert torch.equal(unpacked(packed(first), images), first)
        want = (first & second).sum(1) / (first | second).sum(1)
        torch.testing.assert_close(overlap(packed(second), packed(first)), want)
        assert not overlap(packed(second), None).isfinite().any()


def test_rows_are_written_and_read_in_any_order(tmp_path):
    pool, shape = pools(40, 0.5, rows=6), (6, row_bytes(40))
    with written(tmp_path / "a", shape) as write:
        for rows in (torch.tensor([4, 1]), torch.tensor([0, 5, 2, 3])):
            write(rows, packed(pool[rows]))
    assert torch.equal(unpacked(opened(tmp_path / "a", shape)(torch.tensor([3, 0]), 5), 40), pool[[3, 0]])
