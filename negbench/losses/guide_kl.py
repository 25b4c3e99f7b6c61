"""Soft labels of a guide: the model's softmax over target and negatives follows that of another model's scores.

Paper: UniME-V2 (arXiv:2510.13515; unverified), whose guide is a large language model; the formula is that of
sentence-transformers' DistillKLDivLoss, without its factor of temperature squared. The guide is `mining.guide`: a
backbone, or a file of scores.
Departures: the guide's temperature is one of its own (its default is ours), since the scores of two models differ in
width. Images that the guide's file does not score are left out, and so is a query whose target it does not score.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import PositiveFloat
from torch import Tensor

from negbench.contracts import Loss, LossInput, tunable
from negbench.contracts.loss import without_masked
from negbench.losses._rows import cross_entropy, log_sum, mean_of_rows
from negbench.metrics.fixed import DEFAULT_TEMPERATURE
from negbench.metrics.ranks import at_least_float32

PAPER = "UniME-V2, arXiv:2510.13515; sentence-transformers' DistillKLDivLoss"


@dataclass(frozen=True, kw_only=True)
class GuideKL(Loss):
    """Mean over queries of KL(softmax(g / guide_tau) || softmax(s / tau)) over the target and the negatives.

    g are the guide's scores. A false negative that the guide scores like the target is no longer pushed away.

    Args:
        tau: temperature of the model, > 0; if left out, the caller's, or 0.07.
        guide_tau: temperature of the guide, > 0: the lower, the more the guide's best image counts.

    Inputs:
        | positive | negatives | mask          | weights                   | guide              | aspects |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | [B, 1 + M] or None | refused |

    Without a guide the label is the target alone, and the loss InfoNCE. A query without a valid negative, or whose
    weights are all 0, adds nothing and does not count in the mean. Weights are absolute: doubling them equals listing
    each negative twice.
    """

    reads: ClassVar[tuple[Literal["guide"], ...]] = ("guide",)

    guide_tau: PositiveFloat = tunable(DEFAULT_TEMPERATURE, low=0.01, high=1.0, log=True)

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        if given.guide is None:
            return cross_entropy(given.positive, given.negatives, given.mask, given.weights, given.temperature)
        guide = at_least_float32(given.guide)
        mask = given.mask & guide[:, 1:].isfinite() & guide[:, :1].isfinite()
        gap = without_masked(given.negatives, mask) - at_least_float32(given.positive)[:, None]
        guide_gap = (guide[:, 1:] - guide[:, :1]).masked_fill(~mask, 0.0)
        logits = gap / given.temperature  # log-odds of each negative against the target
        guide_logits = guide_gap.to(logits.dtype) / self.guide_tau
        log_all, some = log_sum(logits, mask, given.weights)
        guide_log_all, _ = log_sum(guide_logits, mask, given.weights)
        weights = given.weights.to(logits.dtype) * mask
        shares = weights * (guide_logits - guide_log_all[:, None]).exp()  # the target has the rest of the label
        rows = log_all - guide_log_all + (shares * (guide_logits - logits)).sum(1)
        return mean_of_rows(rows, some)
