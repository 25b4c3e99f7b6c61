"""Metrics that no data set declares but its ranks give: by brute force, and by the names that users write."""

import math
import random

import pytest
import torch

from negbench.analysis.words import label_of
from negbench.metrics.metric import Metric, hits
from negbench.metrics.named import metric_of_ranks
from negbench.metrics.names import find_metric
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged

FLAT = ["recall_at_10", "recall_at_1", "map_at_10"]
GROUPED = ["dress/recall_at_10", "shirt/recall_at_10", "average/recall_at_10", "average/recall"]

NAMES = [
    ("R@20", FLAT, "recall_at_20"),
    ("recall_at_20", FLAT, "recall_at_20"),
    ("R@1", FLAT, "recall_at_1"),
    ("mAP@10", FLAT, "map_at_10"),
    ("MRR", FLAT, "mrr"),
    ("mrr", FLAT, "mrr"),
    ("MRR@10", FLAT, "mrr_at_10"),
    ("nDCG@5", FLAT, "ndcg_at_5"),
    ("ndcg", FLAT, "ndcg"),
    ("R@20", GROUPED, "average/recall_at_20"),
    ("R@10", GROUPED, "average/recall_at_10"),
    ("average R@20", GROUPED, "average/recall_at_20"),
    ("dress R@3", GROUPED, "dress/recall_at_3"),
    ("dress/mrr", GROUPED, "dress/mrr"),
    ("hat R@3", GROUPED, None),
    ("R@0", FLAT, None),
    ("R@x", FLAT, None),
    ("F1", FLAT, None),
    ("mAP@20", FLAT, None),
    ("R@20", ["preference_rate"], None),  # a data set that ranks no images
]


@pytest.mark.parametrize(("text", "declared", "name"), NAMES)
def test_the_metric_that_a_user_means(text, declared, name):
    assert find_metric(text, declared) == name


def test_printed_names():
    names = ("recall_at_20", "average/mrr", "ndcg_at_5", "mrr_at_3", "dress/ndcg")
    assert [label_of(name) for name in names] == ["R@20", "average MRR", "nDCG@5", "MRR@3", "dress nDCG"]


@pytest.fixture
def ranks() -> QueryRanks:
    source = random.Random(3)
    rows = [source.sample(range(1, 30), source.randint(1, 6)) for _ in range(40)]
    groups = tuple(source.choice(["dress", "shirt", "top"]) for _ in rows)
    target = torch.tensor([row[0] for row in rows])
    return QueryRanks(tuple(map(str, range(40))), groups, target, torch.full((40,), 30), Ragged.of(rows))


def by_hand(name: str, ranks: QueryRanks, row: int) -> float:
    kind, _, cutoff = name.partition("_at_")
    k = int(cutoff) if cutoff else math.inf
    relevant = sorted(ranks.relevant_ranks.row(row).tolist())
    if kind == "recall":
        return float(int(ranks.target_rank[row]) <= k)
    if kind == "mrr":
        return 1 / relevant[0] if relevant[0] <= k else 0.0
    gain = sum(1 / math.log2(1 + rank) for rank in relevant if rank <= k)
    ideal = sum(1 / math.log2(2 + index) for index in range(len(relevant)) if index < k)
    return gain / ideal


@pytest.mark.parametrize("name", ["recall_at_3", "recall_at_20", "mrr", "mrr_at_4", "ndcg", "ndcg_at_1", "ndcg_at_5"])
def test_values_by_brute_force(ranks, name):
    declared = {"recall_at_10": Metric((hits(10),))}
    metric = metric_of_ranks(name, declared)
    assert metric is not None
    expected = [by_hand(name, ranks, row) for row in range(len(ranks))]
    assert metric.of(ranks).values.tolist() == pytest.approx(expected)
    assert metric.mean(ranks) == pytest.approx(sum(expected) / len(expected))
    means = []
    for group in ranks.groups:
        of_group = metric_of_ranks(f"{group}/{name}", declared)
        assert of_group is not None, group
        rows = [value for value, of_query in zip(expected, ranks.group, strict=True) if of_query == group]
        assert of_group.mean(ranks) == pytest.approx(sum(rows) / len(rows)), group
        means.append(sum(rows) / len(rows))
    averaged = metric_of_ranks(f"average/{name}", declared)
    assert averaged is not None
    assert averaged.mean(ranks) == pytest.approx(sum(means) / len(means))


@pytest.mark.parametrize("name", ["map_at_20", "recall", "recall_at_", "loss"])
def test_what_ranks_do_not_give(name):
    assert metric_of_ranks(name, {"recall_at_10": Metric((hits(10),))}) is None
    assert metric_of_ranks("recall_at_20", {"preference_rate": Metric((hits(1),))}) is None
