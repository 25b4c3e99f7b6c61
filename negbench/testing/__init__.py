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
    *(f"negbench.testing.{suite}" for suite in ("backbones", "datasets", "losses", "strategies", "worlds"))
)

from negbench.plugins.registry import build as build  # noqa: E402
from negbench.testing.backbones import BackboneTestCase as BackboneTestCase  # noqa: E402
from negbench.testing.datasets import DatasetTestCase as DatasetTestCase  # noqa: E402
from negbench.testing.losses import LossTestCase as LossTestCase  # noqa: E402
from negbench.testing.strategies import StrategyTestCase as StrategyTestCase  # noqa: E402
from negbench.testing.worlds import ToyScores as ToyScores  # noqa: E402
from negbench.testing.worlds import as_sets as as_sets  # noqa: E402
from negbench.testing.worlds import ranking as ranking  # noqa: E402
from negbench.testing.worlds import ranking_below as ranking_below  # noqa: E402
from negbench.testing.worlds import toy_bank_step as toy_bank_step  # noqa: E402
from negbench.testing.worlds import toy_scores as toy_scores  # noqa: E402
from negbench.testing.worlds import toy_view as toy_view  # noqa: E402
from negbench.testing.worlds import toy_views as toy_views  # noqa: E402
