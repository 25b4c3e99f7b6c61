"""Stored ranks: selection, and a lossless round trip through a parquet file."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from negbench.errors import NegbenchError
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged


def sample(*, subset: bool) -> QueryRanks:
    return QueryRanks(
        query=("a", "b", "c"),
        group=("dress", "shirt", "dress"),
        target_rank=torch.tensor([3, 1, 0]),
        gallery_size=torch.tensor([9, 5, 9]),
        relevant_ranks=Ragged.of([[3, 1], [1], []]),
        subset_rank=torch.tensor([2, 1, 1]) if subset else None,
    )


def content(ranks: QueryRanks) -> list[object]:
    """Return all fields, tensors as their type and numbers."""
    relevant = ranks.relevant_ranks
    subset = ranks.subset_rank
    tensors = [ranks.target_rank, ranks.gallery_size, relevant.values, relevant.offsets]
    if subset is not None:
        tensors.append(subset)
    return [ranks.query, ranks.group, ranks.cluster, *((tensor.dtype, tensor.tolist()) for tensor in tensors)]


@pytest.mark.parametrize(("subset", "count"), [(False, 3), (True, 3), (True, 0)])
def test_through_parquet(subtests, tmp_path, subset, count):
    ranks = replace(sample(subset=subset), cluster=("x", "x", "y") if subset else None).select(range(count))
    ranks.to_frame().to_parquet(tmp_path / "ranks.parquet")
    for name, frame in (("read", pd.read_parquet(tmp_path / "ranks.parquet")), ("in memory", ranks.to_frame())):
        with subtests.test(name):
            assert content(QueryRanks.from_frame(frame)) == content(ranks)


def test_select():
    ranks = sample(subset=True)
    picked = ranks.select([2, 0])
    assert (picked.query, picked.target_rank.tolist()) == (("c", "a"), [0, 3])
    assert [picked.relevant_ranks.row(i).tolist() for i in range(2)] == [[], [3, 1]]
    assert ranks.select(torch.tensor([False, True, False])).query == ("b",)
    assert ranks.of_group("dress").query == ("a", "c")
    assert ranks.groups == ("dress", "shirt")
    assert len(ranks) == 3


def test_a_table_of_something_else():
    with pytest.raises(NegbenchError, match="no column group, relevant_ranks"):
        QueryRanks.from_frame(sample(subset=False).to_frame().drop(columns=["group", "relevant_ranks"]))
