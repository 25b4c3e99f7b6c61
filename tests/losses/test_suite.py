"""Every registered loss passes the plug-in authors' suite, and the suite tells what breaks its rules."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from negbench.api import make_loss
from negbench.contracts import Loss, LossInput
from negbench.contracts.loss import without_masked
from negbench.errors import NegbenchError
from negbench.plugins.registry import registry
from negbench.settings.layers import parse_plugin
from negbench.testing import LossTestCase


@dataclass(frozen=True)
class Complement(Loss):
    """-sum of ln(1 - p_j), p the softmax over target and negatives."""

    monotone: ClassVar[bool] = False

    def value(self, given: LossInput) -> Tensor:
        logits = torch.cat([given.positive[:, None], without_masked(given.negatives, given.mask)], 1)
        logits = logits / given.temperature
        present = torch.cat([torch.ones_like(given.mask[:, :1]), given.mask], 1)
        share = logits.masked_fill(~present, -torch.inf).softmax(1)[:, 1:]
        return -((1 - share).log() * given.weights * given.mask).sum()


@dataclass(frozen=True)
class Claimed(Complement):
    """The same loss, which claims to be monotone."""

    monotone: ClassVar[bool] = True


@dataclass(frozen=True)
class Upside(Complement):
    """An invalid loss: it falls as negatives rise."""

    def value(self, given: LossInput) -> Tensor:
        return -super().value(given)


def test_a_formula_that_is_not_monotone_may_say_so():
    LossTestCase().test_direction(Complement())
    with pytest.raises(AssertionError, match="must declare monotone = False"):
        LossTestCase().test_direction(Claimed())
    with pytest.raises(AssertionError):
        LossTestCase().test_direction(Upside())


@dataclass(frozen=True)
class Cold(Complement):
    """The same loss at one temperature, which it does not say."""

    def value(self, given: LossInput) -> Tensor:
        return super().value(replace(given, temperature=0.07))


def test_a_loss_without_a_temperature_has_to_say_so():
    with pytest.raises(AssertionError, match="must declare uses_temperature = False"):
        LossTestCase().test_tau(Cold())


REFUSED: list[tuple[str, dict[str, object], str]] = [
    ("hcl", {"tau_plus": 1.0}, "tau_plus must be"),
    ("hn-nce", {"alpha": 0}, "alpha must be"),
    ("hn-nce", {"alpha": math.inf}, "alpha must be"),
    ("margin-kl", {"margin": "0.2"}, "margin must be a valid number, got '0.2'"),
    ("margin-kl", {"kl_over": "bank"}, "kl_over must be 'pair', 'batch' or 'corpus', got 'bank'"),
    ("multi-similarity", {"base": math.inf}, "base must be"),
]


def test_bad_options_are_quoted(subtests):
    """Bad options are quoted, beyond NaN and -1, which the suite tries."""
    for key, options, message in REFUSED:
        with subtests.test(key=key, options=options), pytest.raises(NegbenchError, match=message):
            registry.get("losses", key)(**options)


VARIANTS = (
    "margin-kl:kl_over=pair",
    "margin-kl:kl_over=corpus",
    "hcl:beta=0.0",
    "hcl:tau_plus=0.0",
    "hn-nce:alpha=0.5:beta=2.0",
    "triplet:margin=0.0",
)


@pytest.mark.parametrize("variant", [*registry.plugins("losses"), *VARIANTS])
class TestEveryLoss(LossTestCase):
    @pytest.fixture
    def loss(self, variant: str) -> Loss:
        return make_loss(**parse_plugin(variant))
