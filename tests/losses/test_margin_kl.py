import math
from dataclasses import replace

import pytest
import torch

from negbench.contracts import AspectScores, LossInput
from negbench.errors import OptionError
from negbench.losses.margin_kl import MarginKL
from negbench.testing import toy_scores


def mean_hinge(margin: float, positive: float, negatives: list[float], weights: list[float]) -> float:
    hinges = [w * max(0.0, margin - positive + n) for n, w in zip(negatives, weights, strict=True)]
    return sum(hinges) / sum(weights)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kl_over", ["pair", "batch"])
def test_against_loops(kl_over, seed):
    toy = toy_scores(seed=seed)
    other = toy_scores(seed=seed + 100)  # of the aspect
    candidates = toy_scores(seed=seed + 200)  # of the batch
    mask = toy.mask.clone()
    mask[seed % 5] = False
    present = torch.arange(5) != (seed + 1) % 5
    divergences = []
    margins = []
    hinges = []
    for row in range(5):
        positive = float(toy.positive[row])
        negatives = toy.negatives[row][mask[row]].tolist()
        weights = toy.weights[row][mask[row]].tolist()
        pairs = list(zip(negatives, weights, strict=True))
        if kl_over == "pair" and pairs:
            terms = [w * math.log1p(math.exp((n - positive) / 0.2)) for n, w in pairs]
            divergences.append(sum(terms) / sum(weights))
        if kl_over == "batch":
            total = math.exp(positive / 0.2)
            total += sum(w * math.exp(n / 0.2) for n, w in pairs)
            total += sum(math.exp(c / 0.2) for c in candidates.negatives[row][candidates.mask[row]].tolist())
            divergences.append(math.log(total) - positive / 0.2)
        if pairs:
            margins.append(mean_hinge(0.3, positive, negatives, weights))
        if pairs and present[row]:
            aspect_negatives = other.negatives[row][mask[row]].tolist()
            hinges.append(mean_hinge(0.1, float(other.positive[row]), aspect_negatives, weights))
    want = sum(divergences) / len(divergences)
    want += 0.7 * sum(margins) / len(margins) + 0.4 * sum(hinges) / len(hinges)
    loss = MarginKL(tau=0.2, margin=0.3, margin_aspect=0.1, lambda_rank=0.7, kl_over=kl_over)
    weight = torch.tensor(0.4, dtype=torch.float64)
    aspect = AspectScores("colour", other.positive, other.negatives, weight, present)
    inputs = LossInput(toy.positive, toy.negatives, mask, toy.weights, 1.0, [aspect])
    if kl_over == "batch":
        inputs = replace(inputs, candidates=candidates.negatives, candidate_mask=candidates.mask)
    assert loss.evaluate(inputs).item() == pytest.approx(want, rel=1e-12)


def test_the_weight_of_a_candidate_is_its_share_of_the_softmax(subtests):
    """Also the loss's gradient in its score, times the temperature and the number of rows."""
    toy = toy_scores(seed=3)
    more = toy_scores(seed=4)
    candidates = more.negatives.clone().requires_grad_()
    inputs = LossInput(
        toy.positive, toy.negatives, toy.mask, toy.weights, 0.3, candidates=candidates, candidate_mask=more.mask
    )
    for tau, divisor in ((None, 0.3), (0.2, 0.2)):
        with subtests.test(tau=tau):
            loss = MarginKL(tau=tau, kl_over="corpus", kl_bound=0.1, lambda_rank=0.1)
            rows = int((toy.mask.any(1) | more.mask.any(1)).sum())
            (gradient,) = torch.autograd.grad(loss.evaluate(inputs), candidates)
            torch.testing.assert_close(loss.candidate_weights(inputs).detach(), gradient * divisor * rows)


def test_a_bound_without_the_corpus_is_refused():
    with pytest.raises(OptionError, match=r"kl_bound must be left out unless kl_over is 'corpus', got 0\.1"):
        MarginKL(kl_bound=0.1)


def test_gradients_of_aspects():
    toy = toy_scores(3, 3, seed=2)
    other = toy_scores(3, 3, seed=3)
    weight = torch.tensor(0.4, dtype=torch.float64)
    every = torch.ones(3, dtype=torch.bool)

    def value(*tensors: torch.Tensor) -> torch.Tensor:
        aspect = AspectScores("shape", *tensors, every)
        return MarginKL().evaluate(LossInput(toy.positive, toy.negatives, toy.mask, aspects=[aspect]))

    inputs = tuple(t.clone().requires_grad_() for t in (other.positive, other.negatives, weight))
    assert torch.autograd.gradcheck(value, inputs)


def test_an_aspect_that_does_not_fit_is_named():
    toy = toy_scores(3, 2)
    aspect = AspectScores("shape", toy.positive, toy.negatives[:, :1], torch.tensor(1.0), toy.positive > 0)
    with pytest.raises(ValueError, match=r"aspect 'shape' must be \(3,\) and \(3, 2\), got \(3,\) and \(3, 1\)"):
        MarginKL().evaluate(LossInput(toy.positive, toy.negatives, aspects=[aspect]))
