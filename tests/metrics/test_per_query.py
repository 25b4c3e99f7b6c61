"""Per-query values: they average to the metric that the data set reports, and are what a hand table says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from negbench.metrics.average_precision import average_precision_at_k
from negbench.metrics.per_query import PerQueryReader
from negbench.metrics.query_ranks import QueryRanks
from negbench.ragged import Ragged
from negbench.registry import registry


def some_ranks(count: int = 90, *, seed: int = 0, groups: tuple[str, ...] = ("a", "b", "c")) -> QueryRanks:
    """Ranks of groups of different sizes, with subsets, aspects and several relevant images."""
    generator = torch.Generator().manual_seed(seed)

    def integers(high: int, size: int) -> list[int]:
        return (torch.randint(high, (size,), generator=generator) + 1).tolist()

    target = integers(60, count)
    relevant = [sorted({rank, *integers(60, rank % 4)}) for rank in target]
    names = ("cardinality", "addition", "negation")
    return QueryRanks(
        query=tuple(f"q{i}" for i in range(count)),
        group=tuple(groups[min(i % 7, len(groups) - 1)] for i in range(count)),
        target_rank=torch.tensor(target),
        gallery_size=torch.full((count,), 60),
        relevant_ranks=Ragged.of(relevant),
        subset_rank=torch.tensor(integers(5, count)),
        aspects=tuple(names[: 1 + i % 3] for i in range(count)),
    )


DATASETS = ("fashioniq", "synthetic", "cirr", "circo", "fashion200k", "mit-states", "triplets")


@pytest.mark.parametrize("name", DATASETS)
def test_means_are_the_reported_metrics(name: str) -> None:
    summarise = registry.get("datasets", name).summarise  # type: ignore[attr-defined]
    grouped = name in ("fashioniq", "synthetic")
    ranks = some_ranks(groups=("dress", "shirt", "toptee") if grouped else ("all",))
    reported = summarise(ranks)
    found = PerQueryReader(summarise).read(ranks, list(reported))
    assert found.keys() == reported.keys()
    for metric, value in reported.items():
        assert found[metric].mean == pytest.approx(value, abs=1e-6)
        macro = grouped and metric.startswith("average/")
        assert (found[metric].strata is not None) == macro
        if macro:
            assert found[metric].strata.tolist() == list(ranks.group)  # type: ignore[union-attr]


def test_values_are_those_of_loops() -> None:
    ranks = some_ranks(groups=("dress", "shirt", "toptee"))
    reader = PerQueryReader(registry.get("datasets", "synthetic").summarise)  # type: ignore[attr-defined]
    names = ["average/recall", "dress/recall_at_10", "average/map_at_10"]
    found = reader.read(ranks, names)
    targets = ranks.target_rank.tolist()
    assert found["average/recall"].values.tolist() == [((r <= 10) + (r <= 50)) / 2 for r in targets]
    dress = [i for i, group in enumerate(ranks.group) if group == "dress"]
    assert found["dress/recall_at_10"].rows.tolist() == dress
    assert found["dress/recall_at_10"].values.tolist() == [float(targets[i] <= 10) for i in dress]
    np.testing.assert_allclose(
        found["average/map_at_10"].values, average_precision_at_k(ranks.relevant_ranks, 10).numpy()
    )
    cirr = PerQueryReader(registry.get("datasets", "cirr").summarise).read(ranks, ["average"])  # type: ignore[attr-defined]
    subset = ranks.subset_rank.tolist()  # type: ignore[union-attr]
    want = [((r <= 5) + (s <= 1)) / 2 for r, s in zip(targets, subset, strict=True)]
    assert cirr["average"].values.tolist() == want


def test_an_aspect_has_the_values_of_its_own_queries() -> None:
    ranks = some_ranks(groups=("all",))
    reader = PerQueryReader(registry.get("datasets", "circo").summarise)  # type: ignore[attr-defined]
    found = reader.read(ranks, ["semantic/negation/map_at_10"])["semantic/negation/map_at_10"]
    assert found.rows.tolist() == [i for i in range(len(ranks)) if i % 3 == 2]


def test_a_reader_serves_ranks_that_differ() -> None:
    reader = PerQueryReader(registry.get("datasets", "cirr").summarise)  # type: ignore[attr-defined]
    for seed in range(3):
        ranks = some_ranks(seed=seed, groups=("all",))
        value = reader.summarise(ranks)["recall_at_5"]
        assert reader.read(ranks, ["recall_at_5"])["recall_at_5"].mean == pytest.approx(value)


def test_metrics_of_a_data_set_of_your_own() -> None:
    """A reciprocal rank does not follow from hits at a cut-off; a median is no mean of anything."""

    def summarise(ranks: QueryRanks) -> dict[str, float]:
        first = ranks.target_rank.double()
        return {
            "recall_at_10": float((first <= 10).double().mean()),
            "mrr": float((1 / first).mean()),
            "median_rank": float(first.median()),
        }

    ranks = some_ranks(groups=("a",))
    found = PerQueryReader(summarise).read(ranks, ["mrr", "median_rank", "recall_at_10", "absent"])
    assert list(found) == ["mrr", "recall_at_10"]
    np.testing.assert_allclose(found["mrr"].values, 1 / ranks.target_rank.numpy())
    assert found["recall_at_10"].values.tolist() == [float(r <= 10) for r in ranks.target_rank.tolist()]
