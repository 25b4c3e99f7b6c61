"""Every registered strategy passes the suite that plug-in authors are given."""

from __future__ import annotations

import pytest

from negbench.contracts import Strategy
from negbench.registry import registry
from negbench.testing import StrategyTestCase

KEYS = list(registry.plugins("strategies"))
VARIANTS = [(key, {}) for key in KEYS] + [
    ("qure", {"variant": "release"}),
    ("dqe", {"scale": "minmax"}),
    ("dqe", {"scale": "quantile"}),
    ("top-k", {"k": 3, "halve": True}),
    ("after-target", {"k": 2}),
    ("cirqrs", {"n_neg": 3}),
    ("oracle-after-target", {"k": 2}),
    ("in-batch-cube", {"k": None}),
    ("in-batch-cube", {"k": 3}),
    ("shifted-top-k", {"start": 1, "stop": 4}),
    ("perc-pos", {"share": 0.5, "k": 3, "variant": "published"}),
    ("perc-pos", {"share": 0.75, "k": 3}),
    ("margin-pos", {"margin": 0.25, "k": 3}),
    ("top-k-abs", {"limit": 0.25, "k": 3}),
    ("semi-hard", {"triplets": "hard"}),
    ("semi-hard", {"triplets": "all", "margin": 0.5}),
    ("in-batch-semi-hard", {"triplets": "hard"}),
    ("simans", {"variant": "release", "b": 0.5, "k": 5, "a": 100.0}),
    ("simans", {"variant": "absolute", "a": 1000.0}),
    ("distance-weighted", {"width": 2048, "limit": 1.99}),
    ("uniform-bins", {"bins": 3}),
    ("hdc", {"share": 0.1}),
    ("gist", {"margin": 0.25, "relative": True}),
    ("rocketqa", {"k": 6, "n": 2, "limit": 0.0}),
    ("fnc", {"threshold": 0.0, "k": 2}),
    ("bank", {"k": 3}),
    ("ngame", {"cluster": 3, "k": 2}),
    ("mochi", {"queue": 5, "hardest": 2, "pairs": 0, "with_query": 3}),
    ("trisampler", {"k": 3}),
    ("sentence-transformers", {"range_min": 2, "absolute_margin": 0.25, "sampling_strategy": "random"}),
    ("sentence-transformers", {"relative_margin": 0.25, "max_score": 0.5, "min_score": -0.75}),
]
# what else stands in a score than its difference from the target's
OF_SCORES = {"trisampler", "perc-pos", "top-k-abs", "distance-weighted", "uniform-bins", "hardness", "pair-margin"}
IDS = ["-".join([key, *map(str, options.values())]) for key, options in VARIANTS]


@pytest.mark.parametrize("case", range(len(VARIANTS)), ids=IDS)
class TestEveryStrategy(StrategyTestCase):
    @pytest.fixture
    def strategy(self, case: int) -> Strategy:
        key, options = VARIANTS[case]
        return registry.make("strategies", key, **options)

    @pytest.fixture(autouse=True)
    def shifts(self, case: int) -> None:
        key, options = VARIANTS[case]
        absolute = key in OF_SCORES or "relative_margin" in options
        self.shift_invariant = not absolute  # type: ignore[misc]
