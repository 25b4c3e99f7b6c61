"""Conformance suites and toy worlds for plug-in authors. Needs pytest.

Subclass a suite and give it your plug-in:

    from negbench.testing import StrategyTestCase

    class TestMine(StrategyTestCase):
        @pytest.fixture
        def strategy(self):
            return Mine()
"""

import pytest

pytest.register_assert_rewrite(
    *(f"negbench.testing.{suite}" for suite in ("backbones", "datasets", "losses", "strategies"))
)

from negbench.plugins.registry import build  # noqa: E402
from negbench.testing.backbones import BackboneTestCase  # noqa: E402
from negbench.testing.datasets import DatasetTestCase  # noqa: E402
from negbench.testing.losses import LossTestCase  # noqa: E402
from negbench.testing.strategies import StrategyTestCase  # noqa: E402
from negbench.testing.worlds import (  # noqa: E402
    ToyScores,
    as_sets,
    ranking,
    ranking_below,
    toy_bank_step,
    toy_scores,
    toy_view,
    toy_views,
)

__all__ = [
    "BackboneTestCase",
    "DatasetTestCase",
    "LossTestCase",
    "StrategyTestCase",
    "ToyScores",
    "as_sets",
    "build",
    "ranking",
    "ranking_below",
    "toy_bank_step",
    "toy_scores",
    "toy_view",
    "toy_views",
]
