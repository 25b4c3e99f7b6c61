"""Every registered loss passes the suite that plug-in authors are given."""

from __future__ import annotations

import pytest

from negbench.contracts import Loss
from negbench.registry import registry
from negbench.testing import LossTestCase


@pytest.mark.parametrize("key", list(registry.plugins("losses")))
class TestEveryLoss(LossTestCase):
    @pytest.fixture
    def loss(self, key: str) -> Loss:
        return registry.make("losses", key)
