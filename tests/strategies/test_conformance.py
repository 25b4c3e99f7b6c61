"""Every registered strategy passes the suite that plug-in authors are given."""

from __future__ import annotations

from typing import Any

import pytest

from negbench.contracts import OrderedBatches, Strategy, SyntheticStrategy
from negbench.registry import registry
from negbench.testing import StrategyTestCase

KEYS = list(registry.plugins("strategies"))
VARIANTS: list[tuple[str, dict[str, Any]]] = [
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
RULES = [  # that an option can break
    "form",
    "precision",
    "small_and_flat_tables",
    "pure",
    "rows_are_independent",
    "columns_are_permutable",
    "disallowed_images_are_as_if_absent",
    "planes_may_be_partial",
]


@pytest.mark.parametrize("key", KEYS)
class TestEveryStrategy(StrategyTestCase):
    @pytest.fixture
    def strategy(self, key: str) -> Strategy:
        return registry.make("strategies", key)


@pytest.mark.parametrize("case", range(len(VARIANTS)), ids=lambda case: str(VARIANTS[case]))
def test_options(case: int) -> None:
    key, options = VARIANTS[case]
    suite, strategy = StrategyTestCase(), registry.make("strategies", key, **options)
    rules = list(RULES)
    if isinstance(strategy, SyntheticStrategy):
        rules.append("synthetic")
    if isinstance(strategy, OrderedBatches):
        rules.append("order")
    for rule in rules:
        getattr(suite, f"test_{rule}")(strategy)
