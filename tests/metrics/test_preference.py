"""Preference metrics against loops with ties and negative scores, closed forms, and scipy where it is independent."""

import itertools
import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from negbench.errors import NegbenchError, OptionError
from negbench.metrics.preference import agreement, cirqrs_at_k, normality_p, preference_rate, set_scores, spearman_test


def draw(seed: int, count: int = 60) -> tuple[Tensor, Tensor]:
    """Return random choices and scores of five levels of both signs, so that many tie."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 2, (count, 2), generator=generator).double() / 4
    return scores, torch.rand(count, generator=generator) < 0.6


# --- scores of sets ----------------------------------------------------------------------------------------------


def test_set_scores_against_a_loop(subtests):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(7, 20, generator=generator) - 2
    sets = torch.stack([torch.randperm(20, generator=generator)[:10].reshape(2, 5) for _ in range(7)])
    means = set_scores(scores, sets)
    for row, side in itertools.product(range(7), (0, 1)):
        with subtests.test(row=row, side=side):
            want = sum(float(scores[row, column]) for column in sets[row, side].tolist()) / 5
            assert float(means[row, side]) == pytest.approx(want, abs=1e-12)


def test_sets_of_the_same_images_tie_exactly_in_any_order(subtests):
    scores = torch.tensor([[1e16, 1.0, -1e16, 1.0, 0.5]]).double()
    assert scores[0, [0, 1, 2, 3, 4]].mean() != scores[0, [0, 2, 3, 1, 4]].mean()  # plain sums depend on the order
    for seed in range(20):
        with subtests.test(seed=seed):
            order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
            means = set_scores(scores, torch.stack([torch.arange(5), order])[None])
            assert means[0, 0] == means[0, 1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_an_error_only_within_the_sets(value):
    scores = torch.zeros(2, 3)
    scores[1, 2] = value
    with pytest.raises(NegbenchError, match="row 1"):
        set_scores(scores, torch.tensor([[[0, 1]], [[1, 2]]]))
    assert set_scores(scores, torch.tensor([[[0, 1]], [[0, 1]]])).tolist() == [[0.0], [0.0]]


# --- rates and accuracy ------------------------------------------------------------------------------------------


def rate_loop(scores: Tensor, first: Tensor, ties: bool, among: Tensor | None) -> float:
    """Compute the rate by the released evaluation's loop (> and choice "1"), optionally with ties or a subset."""
    count = 0
    preferred = 0
    for index, (one, two) in enumerate(scores.tolist()):
        if (one > two or (ties and one == two)) and (among is None or among[index]):
            count += 1
            preferred += int(first[index])
    return preferred / count


def test_rates_against_a_loop(subtests):
    for ties, seed in itertools.product((False, True), range(5)):
        with subtests.test(ties=ties, seed=seed):
            scores, first = draw(seed)
            among = torch.rand(len(first), generator=torch.Generator().manual_seed(seed)) < 0.5
            assert preference_rate(scores, first, ties=ties) == pytest.approx(rate_loop(scores, first, ties, None))
            rate = preference_rate(scores, first, ties=ties, among=among)
            assert rate == pytest.approx(rate_loop(scores, first, ties, among))


def test_closed_forms():
    _, first = draw(3)
    base = float(first.double().mean())
    tied = torch.full((len(first), 2), -0.25)
    assert math.isnan(preference_rate(tied, first))
    assert preference_rate(tied, first, ties=True) == pytest.approx(base)  # uninformative scores: the share of set 1
    assert float(agreement(tied, first).mean()) == 0.5  # uninformative scores: one half


# --- correlation -------------------------------------------------------------------------------------------------


def mean_ranks(values: list[float]) -> list[float]:
    return [sum(x < value for x in values) + (sum(x == value for x in values) + 1) / 2 for value in values]


def test_spearman_is_pearson_of_mean_ranks(subtests):
    for seed in range(4):
        with subtests.test(seed=seed):
            scores, _ = draw(seed, 40)
            ratings = torch.randint(1, 6, (40, 2), generator=torch.Generator().manual_seed(seed + 9))
            x = mean_ranks(scores.flatten().tolist())
            y = mean_ranks(ratings.flatten().double().tolist())
            mx = sum(x) / 80
            my = sum(y) / 80
            covariance = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
            r = covariance / math.sqrt(sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y))
            p = 2 * stats.t.sf(abs(r) * math.sqrt(78 / (1 - r**2)), 78)
            assert spearman_test(scores, ratings) == pytest.approx((r, p))


def test_spearman_of_constants_or_of_two_is_nan(subtests):
    ratings = torch.tensor([[1, 2], [3, 4]])
    for name, scores, other in (
        ("constant scores", torch.zeros(2, 2), ratings),
        ("constant ratings", ratings.float(), torch.ones(2, 2)),
        ("two queries", ratings[0], ratings[0]),
    ):
        with subtests.test(name):
            assert spearman_test(scores, other) == pytest.approx((math.nan, math.nan), nan_ok=True)


def test_normality_of_a_published_example():
    """Shapiro and Wilk, Biometrika 52, 1965: weights of eleven men, W = 0.79, 0.01 > p > 0.005; draws of many."""
    weights = torch.tensor([148, 154, 158, 160, 161, 162, 166, 170, 182, 195, 236])
    assert 0.005 < normality_p(weights) < 0.01
    many = torch.randn(6000, generator=torch.Generator().manual_seed(0))
    assert normality_p(many) > 0.05 > normality_p(many.exp())
    assert math.isnan(normality_p(torch.ones(9)))


# --- CIRQRS ---


def test_mean_of_the_first_k_against_a_loop(subtests):
    scores = torch.randn(6, 9, generator=torch.Generator().manual_seed(0)) - 1
    scores[2, 4:] = torch.nan  # a gallery of four
    for k in (1, 3, 9, 50):
        with subtests.test(k=k):
            for row, mean in enumerate(cirqrs_at_k(scores, k).tolist()):
                first = [value for value in scores[row].tolist()[:k] if not math.isnan(value)]
                assert mean == pytest.approx(sum(first) / len(first)), f"row {row}"


def test_an_empty_ranking_and_a_wrong_k_are_told():
    with pytest.raises(NegbenchError, match="query 1 has none"):
        cirqrs_at_k(torch.tensor([[1.0], [torch.nan]]), 1)
    with pytest.raises(OptionError, match="k must be >= 1"):
        cirqrs_at_k(torch.zeros(1, 1), 0)
