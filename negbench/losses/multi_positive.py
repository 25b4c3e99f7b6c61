"""InfoNCE with several positives: the target, and every other image that is known to be relevant to the query.

Paper: Khosla et al., Supervised contrastive learning (arXiv:2004.11362), eq. 2 (unverified), whose positives are the
images of one class; here they are the query's known relevant images.
Departures: what is known to be relevant must be kept from the negatives (`mining.exclude_relevant=true`), or an image
would be both. A query whose only known relevant image is its target has InfoNCE's loss.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from negbench.contracts import CandidateSet, Loss, LossInput
from negbench.contracts.loss import without_masked
from negbench.losses._rows import log_sum, mean_of_rows
from negbench.metrics.ranks import at_least_float32

PAPER = "SupCon, arXiv:2004.11362"


@dataclass(frozen=True, kw_only=True)
class MultiPositive(Loss):
    """Mean over queries of -1/P sum over its P positives p of log(exp(s_p / tau) / Z).

    Z is the sum of exp(s / tau) over all positives, and of w exp(s- / tau) over the negatives. The positives are the
    target and the candidates.

    Args:
        tau: temperature, > 0; if left out, the caller's, or 0.07.

    Inputs:
        | positive | negatives | mask          | weights                   | candidates     | aspects |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | [B, C] or None | refused |

    A query without a valid negative, or whose weights are all 0, adds nothing and does not count in the mean. Weights
    are absolute: doubling them equals listing each negative twice.
    """

    @property
    def candidate_set(self) -> CandidateSet:
        """The other relevant images."""
        return "relevant"

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        target = at_least_float32(given.positive)[:, None]
        other_positives = without_masked(given.candidates, given.candidate_mask) - target
        terms = torch.cat([other_positives, given.gap], dim=1) / given.temperature  # relative to the target's
        mask = torch.cat([given.candidate_mask, given.mask], dim=1)
        weights = torch.cat([torch.ones_like(given.candidates), given.weights], dim=1)
        log_all, _ = log_sum(terms, mask, weights)
        positives = 1 + given.candidate_mask.sum(1)
        of_positives = (other_positives * given.candidate_mask).sum(1) / given.temperature
        rows = log_all - of_positives / positives
        return mean_of_rows(rows, (given.mask & (given.weights > 0)).any(1))
