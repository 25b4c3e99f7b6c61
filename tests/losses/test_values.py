"""Every loss against its formula in loops over rows, hand tables and libraries; rows may have no negative."""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch.nn.functional import normalize

from negbench.contracts import Loss, LossInput
from negbench.losses.bradley_terry import BradleyTerry
from negbench.losses.guide_kl import GuideKL
from negbench.losses.hcl import HCL
from negbench.losses.hn_nce import HnNCE
from negbench.losses.info_nce import InfoNCE
from negbench.losses.multi_positive import MultiPositive
from negbench.losses.multi_similarity import MultiSimilarity
from negbench.losses.siglip import SigLIP
from negbench.losses.triplet import Triplet
from negbench.plugins.registry import registry
from negbench.testing import toy_scores

TAU = 0.2
Row = Callable[..., float]  # loss, score of the target, scores and weights of the unmasked negatives


def bradley_terry(loss: BradleyTerry, p: float, negatives: list[float], weights: list[float]) -> float:
    terms = [w * math.log1p(math.exp((n - p) / TAU)) for n, w in zip(negatives, weights, strict=True)]
    return sum(terms) / sum(weights)


def info_nce(loss: InfoNCE, p: float, negatives: list[float], weights: list[float]) -> float:
    rest = sum(w * math.exp(n / TAU + loss.hardness * n) for n, w in zip(negatives, weights, strict=True))
    return -math.log(math.exp(p / TAU) / (math.exp(p / TAU) + rest))


def hcl(loss: HCL, p: float, negatives: list[float], weights: list[float]) -> float:
    """Compute HCL by the released code, with weights as multiplicities."""
    count = sum(weights)
    terms = [math.exp(s / TAU) for s in negatives]
    hard = [t**loss.beta for t in terms]
    mean = sum(w * h for w, h in zip(weights, hard, strict=True)) / count
    total = sum(w * h * t for w, h, t in zip(weights, hard, terms, strict=True)) / mean
    pos = math.exp(p / TAU)
    g = max((total - loss.tau_plus * count * pos) / (1 - loss.tau_plus), count * math.exp(-1 / TAU))
    return -math.log(pos / (pos + g))


def hn_nce(loss: HnNCE, p: float, negatives: list[float], weights: list[float]) -> float:
    """Compute CoVR's HN-NCE, with weights as multiplicities; tests/test_released.py has a value of its code."""
    scaled = [n / TAU for n in negatives]
    count = sum(weights)
    share = sum(w * math.exp(loss.beta * s) for s, w in zip(scaled, weights, strict=True))
    total = loss.alpha * math.exp(p / TAU)
    for s, w in zip(scaled, weights, strict=True):
        total += w * count * math.exp(loss.beta * s) / share * math.exp(s)
    return math.log(total) - p / TAU


def multi_similarity(loss: MultiSimilarity, p: float, negatives: list[float], weights: list[float]) -> float:
    near = math.log(1 + math.exp(-loss.alpha * (p - loss.base))) / loss.alpha
    far = sum(w * math.exp(loss.beta * (n - loss.base)) for n, w in zip(negatives, weights, strict=True))
    return near + math.log(1 + far) / loss.beta


def triplet(loss: Triplet, p: float, negatives: list[float], weights: list[float]) -> float:
    terms = [w * max(0.0, loss.margin - p + n) for n, w in zip(negatives, weights, strict=True)]
    return sum(terms) / sum(weights)


def siglip(loss: SigLIP, p: float, negatives: list[float], weights: list[float]) -> float:
    terms = [w * math.log1p(math.exp(n / TAU + loss.bias)) for n, w in zip(negatives, weights, strict=True)]
    return math.log1p(math.exp(-p / TAU - loss.bias)) + sum(terms)


def one_label(loss: Loss, p: float, negatives: list[float], weights: list[float]) -> float:
    """Without a guide, or further positives: the label is the target alone."""
    return info_nce(InfoNCE(), p, negatives, weights)


ROWS: list[tuple[Row, tuple[Loss, ...]]] = [
    (bradley_terry, (BradleyTerry(),)),
    (info_nce, (InfoNCE(), InfoNCE(hardness=3.0))),
    (hcl, (HCL(), HCL(beta=0.0), HCL(tau_plus=0.0, beta=2.0), HCL(tau_plus=0.3))),
    (hn_nce, tuple(HnNCE(alpha=alpha, beta=beta) for alpha, beta in product((0.5, 1.0), (0.0, 0.5, 2.0)))),
    (one_label, (GuideKL(),)),
    (one_label, (MultiPositive(),)),
    (multi_similarity, (MultiSimilarity(), MultiSimilarity(alpha=1, beta=10, base=-0.25))),
    (siglip, (SigLIP(), SigLIP(bias=0.0), SigLIP(bias=2.5))),
    (triplet, (Triplet(margin=0.0), Triplet(), Triplet(margin=0.5))),
]


@pytest.mark.parametrize(("row", "losses"), ROWS, ids=lambda value: getattr(value, "__name__", None))
def test_a_value_is_the_mean_over_rows_that_have_a_negative(row, losses):
    for loss, seed in product(losses, range(10)):
        toy = toy_scores(seed=seed)
        mask = toy.mask.clone()
        mask[seed % 5] = False
        want = []
        for p, n, m, w in zip(toy.positive, toy.negatives, mask, toy.weights, strict=True):
            if m.any():
                want.append(row(loss, float(p), n[m].tolist(), w[m].tolist()))
        value = loss(toy.positive, toy.negatives, mask, toy.weights, temperature=TAU)
        assert value.item() == pytest.approx(sum(want) / len(want), rel=1e-12), f"{loss}, seed {seed}"


def test_every_loss_is_tested():
    """`margin-kl` has a file of its own."""
    names = {type(losses[0]) for _, losses in ROWS}
    assert {registry.get("losses", key) for key in registry.plugins("losses") if key != "margin-kl"} == names


BY_HAND = [
    (BradleyTerry(tau=1e-3), 0.9, [-0.9], 0.0),
    (BradleyTerry(tau=1e-3), -0.9, [0.9], 1800.0),
    (BradleyTerry(tau=1e9), 0.9, [-0.9], math.log(2)),
    # target at 60 degrees (cosine 0.5), negatives at 90 (0) and 180 (-1)
    (InfoNCE(tau=0.5), 0.5, [0.0, -1.0], math.log(1 + math.exp(-1) + math.exp(-3))),
    # the sum less a tenth of e+ is below N exp(-1 / tau), above and below 0: the floor holds
    (HCL(tau=0.5), 0.9, [-0.2], math.log1p(math.exp(-2) / math.exp(1.8))),
    (HCL(tau=0.5), 0.9, [-1.0, -0.9], math.log1p(2 * math.exp(-2) / math.exp(1.8))),
    # all scores at base: log(2) / alpha + log(1 + M) / beta
    (MultiSimilarity(alpha=2, beta=4, base=0.5), 0.5, [0.5, 0.5], math.log(2) / 2 + math.log(3) / 4),
    # a steep beta is the hinge of the hardest negative
    (MultiSimilarity(alpha=1e6, beta=1e6), 0.25, [0.75, 0.625, -1.0], 0.5),
    # gaps s- - s+ of -0.5, -0.125 and 0.25 under a margin of 0.25
    (Triplet(margin=0.25), -0.5, [-1.0, -0.625, -0.25], (0 + 0.125 + 0.5) / 3),
]


@pytest.mark.parametrize(("loss", "positive", "negatives", "want"), BY_HAND, ids=str)
def test_by_hand(loss, positive, negatives, want):
    assert loss(torch.tensor([positive]), torch.tensor([negatives])).item() == pytest.approx(want, rel=1e-6)


def test_siglip_over_a_batch_is_open_clips():
    loss_module = pytest.importorskip("open_clip.loss")
    generator = torch.Generator().manual_seed(0)
    queries = normalize(torch.randn(6, 8, generator=generator), dim=1)
    images = normalize(torch.randn(6, 8, generator=generator), dim=1)
    scale = torch.tensor(10.0, requires_grad=True)
    bias = torch.tensor(-10.0, requires_grad=True)
    want = loss_module.SigLipLoss()(queries, images, scale, bias)
    scores = queries @ images.T
    others = ~torch.eye(6, dtype=torch.bool)
    value = SigLIP().evaluate(LossInput(scores.diagonal(), scores, others, temperature=1 / scale, bias=bias))
    torch.testing.assert_close(value, want, rtol=0, atol=1e-6)
    ours = torch.autograd.grad(value, (scale, bias))
    theirs = torch.autograd.grad(want, (scale, bias))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_soft_labels_are_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    generator = torch.Generator().manual_seed(0)
    query, *images = (torch.randn(5, 8, generator=generator) for _ in range(5))
    guide = torch.randn(5, 4, generator=generator)
    scores = torch.stack([(query * image).sum(1) for image in images], dim=1)
    theirs = losses.DistillKLDivLoss(torch.nn.Module(), temperature=0.5)
    want = theirs.compute_loss_from_embeddings([query, *images], guide) / 0.5**2
    inputs = LossInput(scores[:, 0], scores[:, 1:], temperature=0.5, guide=guide)
    torch.testing.assert_close(GuideKL(guide_tau=0.5).evaluate(inputs), want, rtol=0, atol=1e-6)


def test_soft_labels_leave_out_what_the_guide_does_not_score():
    """Weights are multiplicities in both softmaxes; the last target has no score, so its row does not count."""
    toy = toy_scores(seed=3)
    guide = toy_scores(seed=4).negatives
    guide = torch.cat([torch.full_like(guide[:, :1], 0.3), guide], dim=1)
    guide[0, 2] = math.nan
    guide[4, 0] = math.nan
    want = []
    for i in range(4):
        scored = [j for j in range(4) if toy.mask[i, j] and not math.isnan(guide[i, 1 + j])]
        if not scored:
            continue
        weights = torch.cat([torch.ones(1), toy.weights[i, scored]])
        logits = torch.cat([toy.positive[i, None], toy.negatives[i, scored]]) / TAU + weights.log()
        guide_logits = torch.cat([guide[i, :1], guide[i, 1:][scored]]) / 0.1 + weights.log()
        labels = guide_logits.softmax(0)
        want.append(float((labels * (labels.log() - logits.log_softmax(0))).sum()))
    inputs = LossInput(toy.positive, toy.negatives, toy.mask, toy.weights, TAU, guide=guide)
    assert float(GuideKL(guide_tau=0.1).evaluate(inputs)) == pytest.approx(sum(want) / len(want), rel=1e-6)


def test_several_positives_share_the_query():
    toy = toy_scores(seed=5)
    other = toy_scores(seed=6)
    want = []
    for i in range(5):
        if not toy.mask[i].any():
            continue
        positives = [float(toy.positive[i]), *other.negatives[i][other.mask[i]].tolist()]
        negatives = toy.negatives[i][toy.mask[i]].tolist()
        weights = toy.weights[i][toy.mask[i]].tolist()
        total = sum(math.exp(score / TAU) for score in positives)
        total += sum(w * math.exp(score / TAU) for score, w in zip(negatives, weights, strict=True))
        want.append(-sum(score / TAU - math.log(total) for score in positives) / len(positives))
    inputs = LossInput(*toy, temperature=TAU, candidates=other.negatives, candidate_mask=other.mask)
    assert float(MultiPositive().evaluate(inputs)) == pytest.approx(sum(want) / len(want), rel=1e-12)


def test_gradients_of_hcl_flow_through_the_importance():
    # with detached weights the easy negative's gradient could not be negative
    negatives = torch.tensor([[0.5, -0.5]], requires_grad=True)
    (gradient,) = torch.autograd.grad(HCL(tau=0.5, tau_plus=0.0)(torch.tensor([0.6]), negatives), negatives)
    assert gradient[0, 0] > 0 > gradient[0, 1]
