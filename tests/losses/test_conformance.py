"""Every registered loss passes the plug-in authors' suite."""

import pytest

from negbench.contracts import Loss
from negbench.plugins.registry import registry
from negbench.testing import LossTestCase

VARIANTS = [(key, {}) for key in registry.plugins("losses")] + [
    ("margin-kl", {"kl_over": "pair"}),
    ("margin-kl", {"kl_over": "corpus"}),
    ("hcl", {"beta": 0.0}),
    ("hcl", {"tau_plus": 0.0}),
    ("hn-nce", {"alpha": 0.5, "beta": 2.0}),
    ("triplet", {"margin": 0.0}),
]
IDS = ["-".join([key, *map(str, options.values())]) for key, options in VARIANTS]


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
class TestEveryLoss(LossTestCase):
    @pytest.fixture
    def loss(self, variant: tuple[str, dict[str, object]]) -> Loss:
        key, options = variant
        return registry.make("losses", key, **options)
