"""The suite itself: a strategy that breaks one rule of the contract fails the test of that rule."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from negbench.contracts import ScoreView, Strategy
from negbench.errors import NegbenchError
from negbench.testing import StrategyTestCase
from tests.mining.test_mining import Function

Rule = Callable[[ScoreView], Tensor]


@dataclass(frozen=True)
class Unchecked(Strategy):
    """A strategy that accepts any option."""

    k: int = 3

    def __post_init__(self) -> None:
        pass

    def pool(self, view: ScoreView) -> Tensor:
        return view.allowed.clone()


def _with_target(view: ScoreView) -> Tensor:
    return view.allowed.scatter(1, view.target[:, None], True)


def _where(rule: Rule) -> Function:
    """Return a strategy that takes the allowed images where a rule says so."""
    return Function(lambda view: view.allowed & rule(view))


@dataclass(frozen=True)
class Reader(Function):
    """A strategy that declares a plane."""

    reads: ClassVar = ("guide",)


def _near_the_best(view: ScoreView) -> Tensor:
    return view.allowed & (view.plane("guide") >= view.plane("guide").amax(1, keepdim=True) - 0.5)


def _by_plane(name: str) -> Rule:
    return lambda view: view.allowed & (view.plane(name) < view.positive[:, None])


BROKEN: list[tuple[Strategy, str]] = [
    (Function(_with_target), "test_small_and_flat_tables"),
    (Function(lambda view: torch.ones_like(view.allowed)), "test_small_and_flat_tables"),
    (Function(lambda view: view.allowed), "test_pure"),
    (_where(lambda view: torch.rand(view.scores.shape) < 0.5), "test_pure"),
    (_where(lambda view: random.random() < 2), "test_pure"),
    (_where(lambda view: view.order.argsort(1) < 5), "test_disallowed_images_are_as_if_absent"),
    (_where(lambda view: view.scores < view.scores.mean()), "test_rows_are_independent"),
    (_where(lambda view: torch.arange(view.scores.shape[1]) % 2 == 0), "test_columns_are_permutable"),
    (_where(lambda view: torch.arange(len(view.scores))[:, None] % 2 == 0), "test_rows_are_independent"),
    (_where(lambda view: view.relevant is None or ~view.relevant), "test_only_oracles_read_the_ground_truth"),
    (Function(lambda view: torch.zeros(len(view.scores), 3, dtype=torch.bool)), "test_small_and_flat_tables"),
    (Function(_with_target), "test_form"),
    (Function(lambda view: -view.allowed.float()), "test_form"),
    (Function(lambda view: view.allowed.float() * torch.nan), "test_form"),
    (Function(lambda view: view.allowed.long()), "test_form"),
    (Function(lambda view: view.allowed[:, 1:]), "test_form"),
    (Reader(lambda v: v.allowed & (v.plane("guide") > v.plane("guide").mean())), "test_rows_are_independent"),
    (Reader(_near_the_best), "test_disallowed_images_are_as_if_absent"),
    (Reader(lambda view: view.allowed & (view.plane("guide").sub_(1) > -1)), "test_pure"),
    (Reader(lambda view: view.allowed * view.plane("guide").exp()), "test_planes_may_be_partial"),
]


@pytest.mark.parametrize(("strategy", "test"), BROKEN, ids=[f"{n} {test}" for n, (_, test) in enumerate(BROKEN)])
def test_a_broken_rule_is_caught(strategy, test):
    with pytest.raises(AssertionError):
        getattr(StrategyTestCase(), test)(strategy)


def test_a_rule_with_random_numbers_is_told_why_it_may_have_none():
    def random_rows(view: ScoreView) -> Tensor:
        generator = torch.Generator().manual_seed(view.refresh)
        return torch.rand(len(view.scores), 1, generator=generator) < 0.5

    with pytest.raises(AssertionError, match="use no random numbers"):
        StrategyTestCase().test_rows_are_independent(_where(random_rows))


def test_a_plane_must_be_declared(subtests):
    case = StrategyTestCase()
    case.test_form(Reader(_by_plane("guide")))
    case.test_planes_may_be_partial(Reader(_by_plane("guide")))
    for strategy in (Function(_by_plane("guide")), Reader(_by_plane("judge"))):
        with (
            subtests.test(strategy=strategy),
            pytest.raises(NegbenchError, match="declare it in the strategy's `reads`"),
        ):
            case.test_form(strategy)


def test_an_unchecked_option_is_caught():
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        StrategyTestCase().test_bad_options_are_quoted(Unchecked())
