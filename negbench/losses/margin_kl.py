"""Margin + KL: a softmax over the target and many candidates, a margin on the scores, and one for each sub-query.

Paper: DQE-CIR (arXiv:2603.04037), eq. 5-8.
Departures: the paper's margins, lambda_rank and temperature are printed nowhere, so the defaults are ours. The margin m
was chosen on queries carved from train (recipe `dqe-margins`); as it equals DQE-CIR's beta, eq. 6 acts on the whole
mid-zone, while at its alpha, 0.2, the term is 0 for every negative at the refresh that drew it. The paper takes eq. 5's
softmax over the image corpus (sec. 3.4, alg. 1), as the system `dqe` does where image features are stored; the default
here, the batch, suits every backbone. Several negatives of a query are averaged. Queries whose text has no word of an
aspect are left out of its term. `kl_bound` above 0 is another departure, which every label then names: the loss is that
of the whole corpus, but images far from every query of a batch get no gradient of their own, which saves time.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor
from torch.nn.functional import softplus

from negbench.contracts import CandidateSet, Loss, LossInput, check_option, mean_over_rows, tunable
from negbench.contracts.loss import without_masked
from negbench.losses._rows import cross_entropy
from negbench.metrics.ranks import at_least_float32

PAPER = "DQE-CIR eq. 5-8"


@dataclass(frozen=True, kw_only=True)
class MarginKL(Loss):
    """L_KL + lambda_rank max(0, m - s+ + s-) + sum over aspects a of w_a max(0, m_a - s+_a + s-_a).

    L_KL = KL([1, 0, ..., 0] || softmax([s+, {s_j}] / tau)) = log(1 + sum over j of exp((s_j - s+) / tau)). The margins
    act on the negatives alone, on scores as they are, before the temperature; each is averaged over the (weighted)
    negatives of a query, then over the queries. The last sum runs over the sub-queries (colour, shape) that the
    backbone has, w_a being the weight with which eq. 1 adds the sub-query to the query. dL/dw_a contains the aspect's
    own margin term, which is never below 0 and so can only lower w_a; w_a rises only where q_a helps s+.

    Args:
        tau: temperature of the KL term, > 0; if left out, the caller's, or 0.07.
        kl_over: what j runs over. "corpus" (alg. 1): the negatives and all other images of the query's gallery group,
            scored with the current model in every step (for backbones with stored features); "batch": the negatives and
            the other targets of the batch; if a caller passes no candidates, the negatives alone. "pair": each negative
            alone, the values averaged: QuRe's eq. 3, not DQE-CIR's loss.
        kl_bound: with "corpus", images whose weight in the softmax of eq. 5 is below it for every query of a batch pass
            the backbone without a gradient; the loss is the same, its gradient is not. In [0, 1); 0, as published: all
            images get theirs.
        margin: m, score units, >= 0.
        margin_aspect: m_a of every sub-query, score units, >= 0.
        lambda_rank: weight of the second term, >= 0.

    Inputs:
        | positive | negatives | mask           | weights             | candidates     | aspects                   |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None | [B, C] or None | [B], [B, M], w_a, present |

    `mask` and `weights` apply to the sub-queries too. Weights are absolute in the softmax (as in InfoNCE), and relative
    in "pair" and in the margins. A query without a valid negative, or whose weights are all 0, adds nothing to a
    margin; it adds to L_KL if it has a candidate.
    """

    uses_aspects = True
    aspect_options = ("margin_aspect",)

    kl_over: Literal["pair", "batch", "corpus"] = "batch"
    kl_bound: Annotated[float, Field(ge=0, lt=1)] = 0.0
    margin: NonNegativeFloat = tunable(0.8, low=0.0, high=1.0)
    margin_aspect: NonNegativeFloat = tunable(0.2, low=0.0, high=0.5)
    lambda_rank: NonNegativeFloat = tunable(1.0, low=0.1, high=10.0, log=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = self.kl_over == "corpus" or self.kl_bound == 0
        check_option("kl_bound", self.kl_bound, allowed, "left out unless kl_over is 'corpus'")

    @property
    def candidate_set(self) -> CandidateSet:
        """`kl_over`."""
        return self.kl_over

    @property
    def least_weight(self) -> float:
        """`kl_bound`."""
        return self.kl_bound

    def candidate_weights(self, given: LossInput) -> Tensor:
        """[B, C]: the softmax of eq. 5 over the target, the negatives and the candidates, at the latter."""
        temperature = given.temperature if self.tau is None else self.tau
        scores = torch.cat([given.positive[:, None], given.negatives, given.candidates], dim=1)
        target = torch.ones_like(given.positive[:, None])
        mask = torch.cat([target.bool(), given.mask, given.candidate_mask], dim=1)
        weights = torch.cat([target, given.weights, torch.ones_like(given.candidates)], dim=1)
        logits = at_least_float32(scores) / temperature + weights.log()
        first = 1 + given.negatives.shape[1]
        return logits.masked_fill(~mask, -torch.inf).softmax(1)[:, first:]

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider. Raises ValueError where an aspect's scores do not fit the negatives."""
        gap = given.gap
        total = self._divergence(given)
        total = total + self.lambda_rank * mean_over_rows((self.margin + gap).relu(), given.mask, given.weights)
        for aspect in given.aspects:
            if aspect.positive.shape != given.positive.shape or aspect.negatives.shape != given.negatives.shape:
                raise ValueError(
                    f"aspect '{aspect.name}' must be {tuple(given.positive.shape)} and {tuple(given.negatives.shape)}, "
                    f"got {tuple(aspect.positive.shape)} and {tuple(aspect.negatives.shape)}"
                )
            mask = given.mask & aspect.present[:, None]
            gap = without_masked(aspect.negatives, mask) - at_least_float32(aspect.positive)[:, None]
            hinge = (self.margin_aspect + gap).relu()
            total = total + aspect.weight * mean_over_rows(hinge, mask, given.weights)
        return total

    def _divergence(self, given: LossInput) -> Tensor:
        """L_KL."""
        if self.kl_over == "pair":
            return mean_over_rows(softplus(given.gap / given.temperature), given.mask, given.weights)
        others = torch.cat([given.negatives, given.candidates], dim=1)
        mask = torch.cat([given.mask, given.candidate_mask], dim=1)
        weights = torch.cat([given.weights, torch.ones_like(given.candidates)], dim=1)
        return cross_entropy(given.positive, others, mask, weights, given.temperature)
