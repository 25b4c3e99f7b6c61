"""Pools on disk: exact bits of small corpora; of large ones lists of small pools, and a sample of the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from negbench.contracts import ScoreView, Strategy
from negbench.mining.mine import mine
from negbench.mining.pool_file import PoolFiles, opened, overlap, packed, row_bytes, unpacked, written
from negbench.mining.task import MiningTask
from negbench.strategies.top_k import TopK

LARGE = 200_000


def pools(images: int, share: float, rows: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, images)) < share


def jaccard(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one & other).sum(1) / (one | other).sum(1)


@pytest.mark.parametrize(("images", "share"), [(13, 0.5), (2**16, 0.3), (LARGE, 0.005), (LARGE, 0.0), (LARGE, 0.0102)])
def test_small_pools_and_small_corpora_are_kept_whole(images: int, share: float) -> None:
    pool = pools(images, share)
    found = unpacked(packed(pool, row_bytes(images)), images).numpy()
    small = (pool.sum(1) <= 2048) | (images <= 2**16)
    np.testing.assert_array_equal(found[small], pool[small])
    assert small.any()
    assert not (found & ~pool).any()


def test_no_query_takes_more_than_8_kib() -> None:
    assert [row_bytes(images) for images in (1, 8, 9, 2**16, 2**16 + 1, 10**9)] == [1, 1, 2, 8192, 8196, 8196]


@pytest.mark.parametrize(("one", "other"), [(0.004, 0.004), (0.004, 0.3), (0.3, 0.004), (0.3, 0.6)])
def test_overlap_of_a_large_corpus(one: float, other: float) -> None:
    """Exact where both are listed; of a sample of a third of the columns, within five standard errors."""
    first, second = pools(LARGE, one), pools(LARGE, other, seed=1)
    second |= first & pools(LARGE, 0.5, seed=2)
    room, want = row_bytes(LARGE), jaccard(first, second)
    found = overlap(packed(second, room), packed(first, room), LARGE).numpy()
    seen = (first | second).sum(1) * 2**16 / LARGE
    np.testing.assert_allclose(
        found, want, rtol=1e-6, atol=0 if max(one, other) < 0.01 else 5 * (want / seen).max() ** 0.5
    )
    assert not overlap(packed(second, room), None, LARGE).isfinite().any()


def test_rows_are_written_and_read_in_any_order(tmp_path: Path) -> None:
    pool, shape = pools(40, 0.5, rows=6), (6, row_bytes(40))
    with written(tmp_path / "a", shape) as write:
        for rows in (torch.tensor([4, 1]), torch.tensor([0, 5, 2, 3])):
            write(rows, packed(pool[rows.numpy()], shape[1]))
    read = opened(tmp_path / "a", shape)(torch.tensor([3, 0]), 5)
    assert read is not None
    np.testing.assert_array_equal(unpacked(read, 40).numpy(), pool[[3, 0]])


class Half(Strategy):
    """The images that score above 0: half of the corpus."""

    def pool(self, view: ScoreView) -> Tensor:
        return view.allowed & (view.scores > 0)


@pytest.mark.parametrize("strategy", [TopK(k=50), Half()], ids=repr)
def test_mining_a_large_corpus_tells_how_much_pools_moved(strategy: Strategy, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    images, queries = (normalize(torch.randn(n, 4, generator=generator), dim=-1) for n in (70_000, 3))
    found: list[Tensor] = []

    class Told(Strategy):
        def pool(self, view: ScoreView) -> Tensor:
            found.append(strategy.pool(view))
            return found[-1]

    for number in (0, 1):
        moved = normalize(queries + 0.05 * number, dim=-1)
        group = torch.zeros(3, dtype=torch.int64)
        task = MiningTask(moved, images[:, None], torch.arange(3), group, [torch.arange(70_000)])
        mined = mine(
            task,
            Told(),
            refresh=number,
            draws=2,
            generator=torch.Generator(),
            files=PoolFiles(tmp_path / str(number), tmp_path / "0" if number else None),
        )
    want = jaccard(found[0].numpy(), found[1].numpy())
    np.testing.assert_allclose(mined.overlap.numpy(), want, atol=1e-6 if isinstance(strategy, TopK) else 0.01)
    assert (tmp_path / "1").stat().st_size < 3 * 8300
