"""Every registered strategy passes the suite that plug-in authors are given."""

from __future__ import annotations

import pytest

from negbench.contracts import Strategy
from negbench.registry import registry
from negbench.testing import StrategyTestCase, pool_digests_in_another_process

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
]
IDS = ["-".join([key, *map(str, options.values())]) for key, options in VARIANTS]


@pytest.fixture(scope="session")
def digests() -> dict[str, str]:
    """Digests of all strategies, by one other process."""
    strategies = [registry.make("strategies", key, **options) for key, options in VARIANTS]
    return dict(zip(IDS, pool_digests_in_another_process(strategies), strict=True))


@pytest.mark.parametrize("case", range(len(VARIANTS)), ids=IDS)
class TestEveryStrategy(StrategyTestCase):
    @pytest.fixture
    def strategy(self, case: int) -> Strategy:
        key, options = VARIANTS[case]
        return registry.make("strategies", key, **options)

    @pytest.fixture
    def digest_elsewhere(self, case: int, digests: dict[str, str]) -> str:
        return digests[IDS[case]]
