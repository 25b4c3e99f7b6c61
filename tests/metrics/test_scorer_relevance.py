"""CIRQRS against loops and the paper's own table: macro means, several k, negative scores."""

from __future__ import annotations

import math

import pytest
import torch

from negbench.errors import NegbenchError, OptionError
from negbench.metrics.scorer_relevance import cirqrs_at_k, cirqrs_table, order_agreement


def test_mean_of_the_first_k_against_a_loop() -> None:
    scores = torch.randn(6, 9, generator=torch.Generator().manual_seed(0)) - 1
    scores[2, 4:] = torch.nan  # a gallery of four
    for k in (1, 3, 9, 50):
        for row, found in enumerate(cirqrs_at_k(scores, k).tolist()):
            first = [value for value in scores[row].tolist()[:k] if not math.isnan(value)]
            assert found == pytest.approx(sum(first) / len(first))


def test_an_empty_ranking_and_a_wrong_k_are_told() -> None:
    with pytest.raises(NegbenchError, match="query 1 has no image"):
        cirqrs_at_k(torch.tensor([[1.0], [torch.nan]]), 1)
    with pytest.raises(OptionError, match="k must be >= 1"):
        cirqrs_at_k(torch.zeros(1, 1), 0)


def test_the_layout_of_table_6() -> None:
    """CLIP4CIR's row: 67.97 66.35 | 68.61 66.51 | 67.62 65.88 | 68.07 66.25 67.16, categories of unequal size."""
    means = {"dress": (67.97, 66.35), "shirt": (68.61, 66.51), "toptee": (67.62, 65.88)}
    groups = ["shirt"] * 2 + ["dress"] * 3 + ["toptee"] + ["shirt"] * 5
    values = {
        k: torch.tensor([means[group][side] for group in groups], dtype=torch.float64)
        for side, k in enumerate((10, 50))
    }
    values[10][0] += 1.0
    values[10][1] -= 1.0
    found = cirqrs_table(values, groups)
    want = {f"{group}/cirqrs_at_{k}": pair[side] for group, pair in means.items() for side, k in enumerate((10, 50))}
    want |= {"average/cirqrs_at_10": 68.07, "average/cirqrs_at_50": 66.25, "average/cirqrs": 67.16}
    want |= {f"{group}/cirqrs": sum(pair) / 2 for group, pair in means.items()}
    assert found == pytest.approx(want, abs=0.005)
    assert list(found)[:3] == ["shirt/cirqrs_at_10", "shirt/cirqrs_at_50", "shirt/cirqrs"]


def test_one_gallery_and_one_k_need_no_average() -> None:
    values = torch.tensor([-0.5, 0.25])
    assert cirqrs_table({5: values}, ["all", "all"]) == {"cirqrs_at_5": -0.125}
    assert cirqrs_table({5: values, 1: values - 1}, ["", ""]) == pytest.approx(
        {"cirqrs_at_5": -0.125, "cirqrs_at_1": -1.125, "cirqrs": -0.625}
    )


def test_order_of_four_models_by_hand() -> None:
    """CIRQRS sec. 5.4 and table 6: the order by CIRQRS@10 is the order by preference rate."""
    rate = {"SPRC": 0.7339, "CoVR-BLIP": 0.7276, "Bi-BLIP4CIR": 0.6700, "CLIP4CIR": 0.6608}
    at_10 = {"CLIP4CIR": 68.07, "Bi-BLIP4CIR": 70.36, "CoVR-BLIP": 71.62, "SPRC": 71.97, "other": -1.0}
    assert order_agreement(at_10, rate).value == pytest.approx(1)
    swapped = rate | {"CLIP4CIR": 0.7, "Bi-BLIP4CIR": 0.65}  # one neighbouring pair: 1 - 6 * 2 / (4 * 15)
    assert order_agreement(swapped, at_10).value == pytest.approx(0.8)
    assert order_agreement({name: -value for name, value in rate.items()}, at_10).value == pytest.approx(-1)
    assert math.isnan(order_agreement({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}).value)
    assert math.isnan(order_agreement(rate, dict.fromkeys(rate, 0.5)).value)
