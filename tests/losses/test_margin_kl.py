from __future__ import annotations

import math

import pytest
import torch

from negbench.contracts import AspectScores
from negbench.errors import NegbenchError
from negbench.losses.bradley_terry import BradleyTerry
from negbench.losses.margin_kl import MarginKL
from negbench.testing import toy_scores


def test_hand_values() -> None:
    # gap -0.3: beyond a margin of 0.2, 0.1 within one of 0.4
    positive, negatives = torch.tensor([-0.2]), torch.tensor([[-0.5]])
    kl = math.log1p(math.exp(-0.3 / 0.5))
    assert MarginKL(tau=0.5, margin=0.2)(positive, negatives).item() == pytest.approx(kl, rel=1e-6)
    got = MarginKL(tau=0.5, margin=0.4, lambda_rank=3.0)(positive, negatives).item()
    assert got == pytest.approx(kl + 3 * 0.1, rel=1e-6)


def test_hand_values_of_aspects() -> None:
    positive, negatives = torch.tensor([0.9]), torch.tensor([[-0.9]])
    colour = AspectScores("colour", torch.tensor([0.1]), torch.tensor([[0.4]]), torch.tensor(2.0))  # 0.25 + 0.3
    shape = AspectScores("shape", torch.tensor([0.8]), torch.tensor([[0.4]]), torch.tensor(5.0))  # beyond the margin
    loss = MarginKL(margin_aspect=0.25)
    plain = loss(positive, negatives)
    got = loss(positive, negatives, aspects=[colour, shape]) - plain
    assert got.item() == pytest.approx(2 * 0.55, rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_against_loops(seed: int) -> None:
    toy, other = toy_scores(seed=seed), toy_scores(seed=seed + 100)
    mask = toy.mask.clone()
    mask[seed % 5] = False
    columns = (toy.positive, toy.negatives, mask, toy.weights, other.positive, other.negatives)
    rows = []
    for p, n, m, w, q, o in zip(*(t.tolist() for t in columns), strict=True):
        terms = []
        for j in (j for j in range(4) if m[j]):
            term = math.log1p(math.exp((n[j] - p) / 0.2))
            term += 0.7 * max(0.0, 0.3 - p + n[j])
            term += 0.4 * max(0.0, 0.1 - q + o[j])
            terms.append((w[j], term))
        if terms:
            rows.append(sum(a * b for a, b in terms) / sum(a for a, _ in terms))
    loss = MarginKL(tau=0.2, margin=0.3, margin_aspect=0.1, lambda_rank=0.7)
    aspect = AspectScores("colour", other.positive, other.negatives, torch.tensor(0.4, dtype=torch.float64))
    got = loss(toy.positive, toy.negatives, mask, toy.weights, aspects=[aspect])
    assert got.item() == pytest.approx(sum(rows) / len(rows), rel=1e-12)


def test_without_margin_term_it_is_bradley_terry() -> None:
    toy = toy_scores(seed=1)
    call = (toy.positive, toy.negatives, toy.mask, toy.weights)
    torch.testing.assert_close(MarginKL(lambda_rank=0.0)(*call), BradleyTerry()(*call))


def test_the_margin_acts_on_scores_before_the_temperature() -> None:
    positive, negatives = torch.tensor([0.0]), torch.tensor([[0.1]])
    for tau in (0.01, 1.0):
        got = MarginKL(tau=tau, margin=0.2)(positive, negatives) - BradleyTerry(tau=tau)(positive, negatives)
        assert got.item() == pytest.approx(0.3, rel=1e-5)


def test_gradients_of_aspects() -> None:
    toy, other = toy_scores(3, 3, seed=2), toy_scores(3, 3, seed=3)
    weight = torch.tensor(0.4, dtype=torch.float64)

    def value(*tensors: torch.Tensor) -> torch.Tensor:
        return MarginKL()(toy.positive, toy.negatives, toy.mask, aspects=[AspectScores("shape", *tensors)])

    inputs = tuple(t.clone().requires_grad_() for t in (other.positive, other.negatives, weight))
    assert torch.autograd.gradcheck(value, inputs)


def test_an_aspect_that_does_not_fit_is_named() -> None:
    toy = toy_scores(3, 2)
    aspect = AspectScores("shape", toy.positive, toy.negatives[:, :1], torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"aspect 'shape' must be \(3,\) and \(3, 2\), got \(3,\) and \(3, 1\)"):
        MarginKL()(toy.positive, toy.negatives, aspects=[aspect])


@pytest.mark.parametrize("field", ["margin", "margin_aspect", "lambda_rank"])
@pytest.mark.parametrize("bad", [-0.1, math.nan, "0.2"])
def test_bad_options_are_quoted(field: str, bad: object) -> None:
    with pytest.raises(NegbenchError, match=f"{field} must be a number >= 0, got {bad!r}"):
        MarginKL(**{field: bad})  # type: ignore[arg-type]
