"""Orders that reverse by another metric, in one sentence; cutoffs that are wide for their gallery."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from negbench.analysis.cutoffs import cutoff_of, wide_cutoffs
from negbench.analysis.turns import turns, turns_by_metric
from negbench.analysis.verdict_record import Estimate, Verdict


def row(strategy: str, metric: str, mean: float, *beaten_by: str, **columns: Any) -> Verdict:
    defaults = {
        "dataset": "d",
        "loss": "l",
        "backbone": "b",
        "alpha": 0.05,
        "negatives": 1.0,
        "seeds": 3,
        "main": metric == "recall_at_10",
        "baseline": "",
        "verdict": "not compared",
        "beaten_by": beaten_by,
        "sd": 0.0,
        "queries": 9,
    }
    return Verdict(strategy=strategy, metric=metric, mean=Estimate(mean, mean, mean), **{**defaults, **columns})


def by_both(*, of_r1: tuple[str, ...] = ("b",), **columns: Any) -> list[Verdict]:
    """Return rows in which a beats b by R@10, and b beats a by R@1."""
    behind = Estimate(-0.086, -0.1591, -0.0129, 0.01)
    return [
        row("a", "recall_at_10", 0.9, standing="best", **columns),
        row("b", "recall_at_10", 0.8, "a", standing="worse", **columns),
        row("a", "recall_at_1", 0.2, *of_r1, standing="worse", against_best=behind, **columns),
        row("b", "recall_at_1", 0.3, standing="best", **columns),
    ]


def test_an_order_that_reverses_by_another_metric_is_one_sentence():
    assert turns_by_metric(by_both()) == [
        "By R@1 the order of a and b reverses: b is ahead of a by 8.60 [1.29, 15.91] points. It describes: verdicts "
        "are by R@10, and its own 95 % intervals hold for the pairs of R@1 alone."
    ]


def test_only_decided_orders_reverse():
    assert turns_by_metric(by_both(of_r1=())) == []
    assert turns_by_metric(by_both()[:2]) == []
    assert turns_by_metric([]) == []


def test_orders_of_one_table_never_reverse_in_another():
    rows = by_both(epochs="4")
    other = [row("a", "recall_at_10", 0.8, "b", epochs="20"), row("b", "recall_at_10", 0.9, epochs="20")]
    (line,) = turns_by_metric([*rows, *other])
    assert line.startswith("By R@1, 4 epochs the order of a and b reverses")


def test_several_orders_are_counted_and_a_gap_that_was_not_estimated_is_left_out():
    rows = [
        row("a", "recall_at_10", 0.9, standing="best"),
        row("b", "recall_at_10", 0.8, "a"),
        row("c", "recall_at_10", 0.7, "a"),
        row("a", "recall_at_1", 0.1, "b", "c"),
        row("b", "recall_at_1", 0.3, standing="best"),
        row("c", "recall_at_1", 0.2),
    ]
    (line,) = turns_by_metric(rows)
    assert line.startswith("By R@1 2 orders reverse: b is ahead of a, c is ahead of a. It describes")


def at_point(point: str, *, turned: bool = True) -> list[Verdict]:
    """Return rows of a point: a beats b after 2 epochs, and b beats a after 4 if it turned."""
    first, second = ("b", "a") if turned else ("a", "b")
    return [
        row("a", "recall_at_10", 0.9, point=point, epochs="2"),
        row("b", "recall_at_10", 0.8, "a", point=point, epochs="2"),
        row(first, "recall_at_10", 0.9, point=point, epochs="4"),
        row(second, "recall_at_10", 0.8, first, point=point, epochs="4"),
    ]


def test_an_order_that_reverses_between_budgets_names_its_point():
    rows = [*at_point("twins=1"), *at_point("twins=2", turned=False)]
    (line,) = turns(rows)
    assert line == (
        "The order reverses, twins=1: after 2 epochs a is ahead of b; after 4 epochs it is the other way round."
    )


def test_none_reverses_at_any_point():
    rows = [*at_point("twins=1", turned=False), *at_point("twins=2", turned=False)]
    assert turns(rows) == ["No decided order reverses between the training budgets 2 and 4."]


def test_of_many_points_the_first_are_named_and_the_others_counted():
    between_budgets = []
    between_metrics = []
    for number in range(7):
        between_budgets += at_point(f"twins={number}")
        between_metrics += by_both(point=f"twins={number}")
    *_, fourth, last = lines = turns(between_budgets)
    assert len(lines) == 5
    assert fourth.startswith("The order reverses, twins=3: ")
    assert last == "The order reverses between 3 more pairs of tables."
    first, *_, last = lines = turns_by_metric(between_metrics)
    assert len(lines) == 5
    assert first.startswith("By R@1, twins=0 the order of a and b reverses: ")
    assert last == "By R@1 orders reverse in 3 more tables."


# --- cutoffs ---------------------------------------------------------------------------------------------------------


def cells(dataset: str, **gallery: int) -> pd.DataFrame:
    run = SimpleNamespace(manifest={"dataset": {"gallery": gallery}})
    return pd.DataFrame({"dataset": [dataset], "stored": [run]})


def rows_of(*metrics: str) -> list[Verdict]:
    return [row("a", metric, 0.5) for metric in metrics]


CASES = [
    ({"all": 302}, ("recall_at_10", "recall_at_1", "recall_at_5"), "3 % of the .* 302 images: R@5 is the largest"),
    ({"dress": 3817, "shirt": 240}, ("recall_at_10", "recall_at_1"), "4 % of the .* 240 images: R@1 is the largest"),
    ({"all": 40}, ("recall_at_10", "recall_at_1"), "25 % of the .* 40 images: no headline metric is below 2 %"),
    ({"all": 500}, ("recall_at_10", "recall_at_1"), ""),  # 2 % is not more than 2 %
    ({"all": 499}, ("recall_at_10", "recall_at_1"), "R@1 is the largest"),
]


@pytest.mark.parametrize(("gallery", "metrics", "text"), CASES, ids=["5", "groups", "none", "at 2 %", "just above"])
def test_a_wide_cutoff_is_remarked_on_once(gallery, metrics, text):
    lines = wide_cutoffs([cells("d", **gallery), cells("d", **gallery)], rows_of(*metrics))
    if not text:
        assert lines == []
    else:
        (line,) = lines
        assert pd.Series([line]).str.contains(text).all(), line


def test_the_smallest_gallery_of_several_data_sets_counts():
    rows = [*rows_of("recall_at_10"), row("a", "recall_at_10", 0.5, dataset="small")]
    (line,) = wide_cutoffs([cells("d", all=400), cells("small", all=100)], rows)
    assert "10 % of the smallest gallery group, 100 images" in line


@pytest.mark.parametrize(("metric", "k"), [("average/recall_at_10", 10), ("map_at_5", 5), ("average/recall", None)])
def test_a_cutoff_is_read_off_the_name(metric, k):
    assert cutoff_of(metric) == k


@pytest.mark.parametrize("metric", ["average/recall", "average", "overall", "map", "mrr"])
def test_a_metric_without_one_k_gets_no_remark(metric):
    rows = [row("a", metric, 0.5, main=True), *[replace(other, main=False) for other in rows_of("recall_at_10")]]
    assert cutoff_of(metric) is None
    assert wide_cutoffs([cells("d", all=40)], rows) == []
