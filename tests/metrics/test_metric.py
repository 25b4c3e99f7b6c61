"""Declared metrics: values by hand, and means against loops; CIRCO and MIT-States have loops of their own."""

from typing import Any

import numpy as np
import pytest
import torch

from negbench.errors import DataError, NegbenchError
from negbench.metrics.metric import Metric, by_answers, hits, precision, subset_hits
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged
from negbench.plugins.registry import registry

GROUPED = ("dress", "dress", "dress", "shirt", "shirt", "toptee")
RANKS = [1, 3, 8, 12, 60, 6]
RELEVANT = [[1, 4], [3], [8, 2, 20], [12], [60, 1], [6, 5]]


def six(groups: tuple[str, ...] = ("all",) * 6) -> QueryRanks:
    """Return the ranks of six queries, a to f."""
    return QueryRanks(
        query=tuple("abcdef"),
        group=groups,
        target_rank=torch.tensor(RANKS),
        gallery_size=torch.full((6,), 60),
        relevant_ranks=Ragged.of(RELEVANT),
        subset_rank=torch.tensor([1, 2, 3, 1, 4, 5]),
    )


AP10 = [3 / 4, 1 / 3, 1 / 4, 0, 1 / 2, (1 / 5 + 2 / 6) / 2]
AT1 = [1, 0, 0, 0, 0, 0]
AT5 = [1, 1, 0, 0, 0, 0]
AT10 = [1, 1, 1, 0, 0, 1]
AT50 = [1, 1, 1, 1, 0, 1]
# metric -> (the mean, values, queries, whether it is the mean of the groups' means)
Table = dict[str, tuple[float, list[float], str, bool]]
HITS = {1: AT1, 5: AT5, 10: AT10, 50: AT50}
RECALLS: Table = {f"recall_at_{k}": (sum(at) / 6, at, "abcdef", False) for k, at in HITS.items()}
FASHIONIQ: Table = {
    "dress/recall_at_10": (1, [1, 1, 1], "abc", False),
    "dress/recall_at_50": (1, [1, 1, 1], "abc", False),
    "shirt/recall_at_10": (0, [0, 0], "de", False),
    "shirt/recall_at_50": (1 / 2, [1, 0], "de", False),
    "toptee/recall_at_10": (1, [1], "f", False),
    "toptee/recall_at_50": (1, [1], "f", False),
    "average/recall_at_10": (2 / 3, AT10, "abcdef", True),
    "average/recall_at_50": (5 / 6, AT50, "abcdef", True),
    "average/recall": (3 / 4, [1, 1, 1, 1 / 2, 0, 1], "abcdef", True),
}
TABLES: dict[str, Table] = {
    "fashioniq": FASHIONIQ,
    "cirr": {
        **RECALLS,
        "subset_recall_at_1": (2 / 6, [1, 0, 0, 1, 0, 0], "abcdef", False),
        "subset_recall_at_2": (3 / 6, [1, 1, 0, 1, 0, 0], "abcdef", False),
        "subset_recall_at_3": (4 / 6, [1, 1, 1, 1, 0, 0], "abcdef", False),
        "average": (2 / 6, [1, 1 / 2, 0, 1 / 2, 0, 0], "abcdef", False),
        "overall": (21 / 42, [1, 5 / 7, 3 / 7, 4 / 7, 0, 2 / 7], "abcdef", False),
    },
    "vectors": {**RECALLS, "map_at_10": (sum(AP10) / 6, AP10, "abcdef", False)},
}


def test_hand_table(subtests):
    for name in TABLES:
        with subtests.test(name=name):
            data: Any = registry.get("datasets", name)
            ranks = six(GROUPED) if name == "fashioniq" else six()
            reported = data.summarise(ranks)
            per_query = data.per_query(ranks, [*TABLES[name], "absent"])
            assert list(reported) == list(per_query) == list(TABLES[name])
            for metric, (mean, values, queries, macro) in TABLES[name].items():
                assert reported[metric] == pytest.approx(mean, abs=1e-9), metric
                measured = per_query[metric]
                assert measured.mean == pytest.approx(mean, abs=1e-9), metric
                assert measured.values.tolist() == pytest.approx(values, abs=1e-6), metric
                assert [ranks.query[row] for row in measured.rows] == list(queries), metric
                assert (measured.strata is not None) == macro, metric
                if macro:
                    assert measured.strata.tolist() == list(ranks.group), metric


def test_groups_weigh_alike_and_one_group_has_no_strata():
    macro = Metric((hits(10),), over="groups")
    assert macro.mean(six(GROUPED)) == pytest.approx(2 / 3)
    assert Metric((hits(10),)).mean(six(("a", "b", "b", "b", "b", "b"))) == pytest.approx(4 / 6)
    assert macro.mean(six(("a", "b", "b", "b", "b", "b"))) == pytest.approx((1 + 3 / 5) / 2)
    assert macro.of(six()).strata is None
    part = six(GROUPED).select([4, 0])
    assert macro.mean(part) == 1 / 2
    assert macro.of(part).strata.tolist() == ["shirt", "dress"]


def test_means_against_loops(subtests):
    for seed in range(3):
        with subtests.test(seed=seed):
            generator = torch.Generator().manual_seed(seed)
            rank = torch.randint(60, (90,), generator=generator) + 1
            extra = torch.randint(60, (90,), generator=generator) + 1
            group = tuple("abc"[min(i % 7, 2)] for i in range(90))
            pairs = zip(rank.tolist(), extra.tolist(), strict=True)
            relevant = Ragged.of([sorted({target, other}) for target, other in pairs])
            ranks = QueryRanks(tuple(map(str, range(90))), group, rank, torch.full((90,), 60), relevant)
            means = []
            for name in "abc":
                ranks_of_group = [target for target, other in zip(rank.tolist(), group, strict=True) if other == name]
                means.append(sum(target <= 10 for target in ranks_of_group) / len(ranks_of_group))
                assert Metric((hits(10),), group=name).mean(ranks) == pytest.approx(means[-1]), name
            macro = Metric((hits(10),), over="groups")
            assert macro.mean(ranks) == pytest.approx(sum(means) / 3)
            assert macro.of(ranks).mean == pytest.approx(sum(means) / 3)
            answers = 0
            found = 0
            for row, target in enumerate(rank.tolist()):
                answers += len(relevant.row(row))
                if target <= 10:
                    found += len(relevant.row(row))
            assert Metric((by_answers(hits(10)),)).mean(ranks) == pytest.approx(found / answers)
            values = Metric((precision(5), hits(1))).of(ranks).values
            precisions = Metric((precision(5),)).of(ranks).values
            first_hits = Metric((hits(1),)).of(ranks).values
            np.testing.assert_allclose(values, (precisions + first_hits) / 2)


def test_what_cannot_be_scored(subtests):
    nobody = six().select([])
    for metric in (Metric((hits(5),)), Metric((precision(5),)), Metric((hits(5),), group="none")):
        with subtests.test(metric=metric), pytest.raises(NegbenchError, match="needs at least one query"):
            metric.mean(nobody)
    ranks = QueryRanks(("a",), ("all",), torch.tensor([1]), torch.tensor([9]), Ragged.of([[1]]))
    with pytest.raises(DataError, match="ranks within image groups, and these ranks have none"):
        Metric((subset_hits(1),)).mean(ranks)
