"""Options just outside the range of a strategy are refused; pool sizes may be shares of the gallery."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch

from negbench.contracts import ScoreView
from negbench.errors import NegbenchError, short_repr
from negbench.loop.runs import DATA, plan_run
from negbench.plugins.registry import registry
from negbench.settings.layers import parse_plugin
from negbench.strategies._ranked import images
from negbench.systems.system import load_config

WHOLE = (0, -3, 2.5, True)
REFUSED: dict[str, dict[str, tuple[Any, ...]]] = {
    **{key: {"k": (*WHOLE, "0%", "101%")} for key in ("top-k", "after-target", "oracle-after-target", "trisampler")},
    **{key: {"k": WHOLE} for key in ("bank", "fnc", "in-batch-cube")},
    "cirqrs": {"n_neg": (*WHOLE, "-1%", "6", "%", "1e1%", "a%", "")},
    "distance-weighted": {"width": (2, 3.5), "cutoff": (0, 1.4), "limit": (2, 0)},
    "dqe": {"alpha": (-0.1, 0.8, math.nan), "beta": (math.nan, 2.5), "scale": ("minmaxx",)},
    "gist": {"margin": (math.nan,), "relative": ("percent", 1)},
    "hardness": {"alpha": (-1, 81, math.inf)},
    "hdc": {"share": (0, 1.5, True)},
    "in-batch-semi-hard": {"margin": (0,), "triplets": ("semihard",)},
    "margin-pos": {"margin": (-0.1,), "k": (0,)},
    "mochi": {"queue": (0,), "hardest": (0,), "pairs": (-1,), "with_query": (-1,)},
    "multi-similarity": {"epsilon": (-1,)},
    "ngame": {"cluster": (0,), "k": (0,)},
    "pair-margin": {"margin": (0, 2.1, True)},
    "perc-pos": {"share": (0, 1.1), "k": (0,), "variant": ("safe",)},
    "qure": {"variant": ("papr",), "consecutive_threshold": (2, -1, 1.5)},
    "rocketqa": {"k": (0,), "n": (0,), "limit": ("x",)},
    "semi-hard": {"margin": (0,), "triplets": ("semihard",)},
    "sentence-transformers": {
        "range_min": (-1,),
        "range_max": (2, 3.5),
        "max_score": ("high",),
        "absolute_margin": (-0.1,),
        "relative_margin": (math.nan,),
        "num_negatives": (0,),
        "sampling_strategy": ("best",),
    },
    "shifted-top-k": {"start": (-1, 210, "101%", "x"), "stop": (0, "0%")},
    "simans": {"a": (-1,), "b": ("x",), "k": (0,), "variant": ("code",)},
    "top-k-abs": {"limit": ("0.7",), "k": (-1,)},
    "uniform-bins": {"bins": (0,)},
    "xbm": {"queue": (0,)},
}
MESSAGES: list[tuple[str, dict[str, Any], str]] = [  # each with the value that it quotes
    ("top-k", {"k": 0}, 'k must be a whole number >= 1, or a share of the gallery such as "0.6%", got 0'),
    ("shifted-top-k", {"stop": 10}, r"start must be below stop \(10\), got 10"),
    ("shifted-top-k", {"start": "4%", "stop": "1%"}, "start must be below stop .*, got '4%'"),
    ("dqe", {"beta": 2.5}, "beta must be <= 2 if scale is 'absolute', got 2.5"),
    ("dqe", {"beta": 1.5, "scale": "minmax"}, "beta must be <= 1 if scale is 'minmax', got 1.5"),
    ("qure", {"variant": "papr"}, "variant must be 'paper' or 'release', got 'papr'"),
    ("qure", {"consecutive_threshold": 2}, "consecutive_threshold must be left out .* got 2"),
    ("simans", {"variant": "absolute", "b": 1.0}, "b must be left out if variant is 'absolute', got 1.0"),
    ("pair-margin", {"margin": 2.1}, "margin must be less than or equal to 2, got 2.1"),
]


def test_bad_options_are_quoted(subtests):
    for key, values_by_option in REFUSED.items():
        for option, values in values_by_option.items():
            for value in values:
                with subtests.test(key=key, option=option, value=value):
                    with pytest.raises(NegbenchError, match=f"^{option} must be .* got ") as caught:
                        registry.get("strategies", key)(**{option: value})
                    assert short_repr(value) in str(caught.value)


@pytest.mark.parametrize(("key", "options", "message"), MESSAGES)
def test_a_message_says_what_an_option_must_be(key, options, message):
    with pytest.raises(NegbenchError, match=message):
        registry.get("strategies", key)(**options)


# --- pool sizes ------------------------------------------------------------------------------------------------------

SIZED = {
    "top-k": "k", "after-target": "k", "oracle-after-target": "k", "cirqrs": "n_neg", "margin-pos": "k",
    "perc-pos": "k", "top-k-abs": "k", "simans": "k", "trisampler": "k", "rocketqa": "k",
}  # fmt: skip


def view_of(gallery: int, refresh: int = 0) -> ScoreView:
    draw = torch.Generator().manual_seed(gallery)
    scores = torch.rand(4, gallery, generator=draw)
    relevant = torch.zeros(4, gallery, dtype=torch.bool)
    planes = {"target": scores + 1.0, "guide": torch.zeros_like(scores)}
    return ScoreView(scores, torch.arange(4), refresh=refresh, relevant=relevant, planes=planes)


@pytest.mark.parametrize("key", SIZED)
def test_a_share_is_that_count(subtests, key):
    for share, gallery, count in [("0.6%", 500, 3), ("2%", 500, 10), ("100%", 40, 40), ("0.5 %", 1000, 5)]:
        with subtests.test(share=share, gallery=gallery):
            view = view_of(gallery)
            by_share = registry.make("strategies", key, **{SIZED[key]: share})
            by_count = registry.make("strategies", key, **{SIZED[key]: count})
            assert torch.equal(by_share.pool(view), by_count.pool(view))
            assert by_share != by_count  # records and tables keep the given value


@pytest.mark.parametrize("percent", ["0.01", "0.6", "1", "12.5", "33.3", "99.9", "100"])
def test_nearest_whole_number_of_images(percent):
    for gallery in (1, 7, 40, 100, 6_016, 25_136):
        exact = Fraction(percent) * gallery / 100
        whole = exact.numerator // exact.denominator
        nearest = whole + 1 if exact - whole >= Fraction(1, 2) else whole
        view = ScoreView(torch.zeros(1, gallery), torch.tensor([0]))
        assert images(f"{percent}%", view) == max(1, nearest), f"{percent} % of {gallery} images"


def test_a_share_is_halved_as_a_count(subtests):
    for refresh, count in enumerate([50, 25, 12, 6, 3, 1, 1]):
        with subtests.test(refresh=refresh):
            assert images("10%", view_of(500), refresh) == images(50, view_of(500), refresh) == count
            for key, more in (("cirqrs", {}), ("top-k", {"halve": True})):
                with subtests.test(key=key, more=more):
                    strategy = registry.make("strategies", key, **{SIZED[key]: "4%"}, **more)
                    assert int(strategy.pool(view_of(500, refresh))[3].sum()) <= max(1, 20 >> refresh)


def test_flags_and_recipes_say_it(subtests):
    assert parse_plugin("top-k:k=0.6%") == {"name": "top-k", "k": "0.6%"}
    assert registry.make("strategies", "top-k", k="0.6%").k == "0.6%"
    for text, want in (("50.0%", "50%"), ("050 %", "50%"), ("100%", "100%"), ("0.60%", "0.6%"), ("12.5%", "12.5%")):
        with subtests.test(text=text, want=want):
            strategy = registry.make("strategies", "top-k", k=text)
            assert strategy.k == want  # one spelling: two names of one run are found


def test_a_window_outside_the_training_gallery_is_refused_before_training(subtests):
    def plan(start: int | str, stop: int | str, name: str = "shifted-top-k") -> None:
        flags = {"strategy": {"name": name, "start": start, "stop": stop}, "backbone": "vectors", "dataset": "vectors"}
        sets = ("dataset.train_images=100", "dataset.twins=2", "dataset.train_queries=20", "dataset.val_queries=20")
        plan_run(load_config(flags=flags, sets=sets), DATA)

    plan(99, 500)
    plan("1%", "1.5%")  # 1.5 images are rounded to 2
    for start, stop, problem in (
        (100, 500, r"start = 100 lies outside a gallery of 100 images"),
        ("100%", 500, r"start = 100% lies outside a gallery of 100 images"),
        ("1%", "1.4%", r"start must be below stop \(1.4%\) in a gallery of 100 images, got '1%'"),
        ("4%", 3, r"start must be below stop \(3\) in a gallery of 100 images"),
    ):
        for name in ("shifted-top-k", "in-batch+shifted-top-k", "all-corpus:2>shifted-top-k"):
            with subtests.test(name=name), pytest.raises(NegbenchError, match=problem):
                plan(start, stop, name)
