import math

import pytest
import torch

from negbench.contracts import AspectScores, LossInput
from negbench.errors import OptionError
from negbench.losses.margin_kl import MarginKL
from negbench.testing import toy_scores


def test_against_loops(subtests):
    for seed in range(5):
        for kl_over in ["pair", "batch"]:
            with subtests.test(seed=seed, kl_over=kl_over):
                toy, other, more = (toy_scores(seed=seed + offset) for offset in (0, 100, 200))
                mask, present = toy.mask.clone(), torch.arange(5) != (seed + 1) % 5
                mask[seed % 5] = False
                some = more.mask if kl_over == "batch" else torch.zeros_like(more.mask)
                columns = (toy.positive, toy.negatives, mask, toy.weights, other.positive, other.negatives, present)
                divergences, margins, hinges = [], [], []
                for p, n, m, w, q, o, there, c, kept in zip(
                    *(t.tolist() for t in (*columns, more.negatives, some)), strict=True
                ):
                    valid = [j for j in range(4) if m[j]]
                    if kl_over == "pair" and valid:
                        terms = [w[j] * math.log1p(math.exp((n[j] - p) / 0.2)) for j in valid]
                        divergences.append(sum(terms) / sum(w[j] for j in valid))
                    if kl_over == "batch":
                        total = sum(w[j] * math.exp(n[j] / 0.2) for j in valid)
                        total += sum(math.exp(c[j] / 0.2) for j in range(4) if kept[j])
                        divergences.append(math.log(math.exp(p / 0.2) + total) - p / 0.2)
                    if valid:
                        weight = sum(w[j] for j in valid)
                        margins.append(sum(w[j] * max(0.0, 0.3 - p + n[j]) for j in valid) / weight)
                        if there:
                            hinges.append(sum(w[j] * max(0.0, 0.1 - q + o[j]) for j in valid) / weight)
                want = sum(divergences) / len(divergences)
                want += 0.7 * sum(margins) / len(margins) + 0.4 * sum(hinges) / len(hinges)
                loss = MarginKL(tau=0.2, margin=0.3, margin_aspect=0.1, lambda_rank=0.7, kl_over=kl_over)
                aspect = AspectScores(
                    "colour", other.positive, other.negatives, torch.tensor(0.4, dtype=torch.float64), present
                )
                beside = {"candidates": more.negatives, "candidate_mask": some} if kl_over == "batch" else {}
                given = LossInput(toy.positive, toy.negatives, mask, toy.weights, 1.0, [aspect], **beside)
                assert loss.evaluate(given).item() == pytest.approx(want, rel=1e-12)


def test_the_weight_of_a_candidate_is_its_share_of_the_softmax(subtests):
    """Also the loss's gradient in its score, times the temperature and the number of rows."""
    toy, more = toy_scores(seed=3), toy_scores(seed=4)
    candidates = more.negatives.clone().requires_grad_()
    given = LossInput(
        toy.positive, toy.negatives, toy.mask, toy.weights, 0.3, candidates=candidates, candidate_mask=more.mask
    )
    for tau, divisor in ((None, 0.3), (0.2, 0.2)):
        with subtests.test(tau=tau):
            loss = MarginKL(tau=tau, kl_over="corpus", kl_bound=0.1, lambda_rank=0.1)
            rows = int((toy.mask.any(1) | more.mask.any(1)).sum())
            (gradient,) = torch.autograd.grad(loss.evaluate(given), candidates)
            torch.testing.assert_close(loss.candidate_weights(given).detach(), gradient * divisor * rows)


def test_a_bound_without_the_corpus_is_refused():
    with pytest.raises(OptionError, match=r"kl_bound must be left out unless kl_over is 'corpus', got 0\.1"):
        MarginKL(kl_bound=0.1)


def test_gradients_of_aspects():
    toy, other = toy_scores(3, 3, seed=2), toy_scores(3, 3, seed=3)
    weight, every = torch.tensor(0.4, dtype=torch.float64), torch.ones(3, dtype=torch.bool)

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
