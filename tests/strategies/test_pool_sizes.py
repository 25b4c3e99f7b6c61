"""Pool sizes as a number of images and as a share of the gallery."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from negbench.contracts import ScoreView
from negbench.layers import parse_plugin
from negbench.registry import checked_options, registry
from negbench.strategies._ranked import images

SIZED = {
    "top-k": "k", "after-target": "k", "oracle-after-target": "k", "cirqrs": "n_neg", "margin-pos": "k",
    "perc-pos": "k", "top-k-abs": "k", "simans": "k", "trisampler": "k", "rocketqa": "k",
}  # fmt: skip


def view_of(gallery: int, refresh: int = 0) -> ScoreView:
    draw = torch.Generator().manual_seed(gallery)
    scores, relevant = torch.rand(4, gallery, generator=draw), torch.zeros(4, gallery, dtype=torch.bool)
    planes = {"target": scores + 1.0, "guide": torch.zeros_like(scores)}
    return ScoreView(scores, torch.arange(4), refresh=refresh, relevant=relevant, planes=planes)


@pytest.mark.parametrize("key", SIZED)
def test_a_share_is_that_count(key: str) -> None:
    for share, gallery, count in [("0.6%", 500, 3), ("2%", 500, 10), ("100%", 40, 40), ("0.5 %", 1000, 5)]:
        view = view_of(gallery)
        by_share, by_count = (registry.make("strategies", key, **{SIZED[key]: size}) for size in (share, count))
        assert torch.equal(by_share.pool(view), by_count.pool(view))
        assert by_share != by_count  # what was given stays in records and tables


def test_nearest_whole_number_of_images() -> None:
    for percent in ("0.01", "0.6", "1", "12.5", "33.3", "99.9", "100"):
        for gallery in (1, 7, 40, 100, 6_016, 25_136):
            exact = Fraction(percent) * gallery / 100
            whole = exact.numerator // exact.denominator
            nearest = whole + (exact - whole >= Fraction(1, 2))
            assert images(f"{percent}%", ScoreView(torch.zeros(1, gallery), torch.tensor([0]))) == max(1, nearest)


def test_a_share_is_halved_as_a_count() -> None:
    for refresh, count in enumerate([50, 25, 12, 6, 3, 1, 1]):
        assert images("10%", view_of(500), refresh) == images(50, view_of(500), refresh) == count
        for key in ("cirqrs", "top-k"):
            strategy = registry.make(
                "strategies", key, **{SIZED[key]: "4%"}, **({"halve": True} if key == "top-k" else {})
            )
            assert int(strategy.pool(view_of(500, refresh))[3].sum()) <= max(1, 20 >> refresh)


def test_flags_and_recipes_say_it() -> None:
    given = parse_plugin("top-k:k=0.6%")
    assert given == {"name": "top-k", "k": "0.6%"}
    assert checked_options("strategies", "top-k", registry.get("strategies", "top-k"), {"k": "0.6%"}) == {"k": "0.6%"}
