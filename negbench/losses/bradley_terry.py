"""Bradley-Terry: the log-odds of preferring the target to each negative.

Paper: QuRe (arXiv:2507.12416), eq. 3; CIRQRS, eq. 3. Equal to KL([1, 0] || softmax([s+, s-] / tau)).
Departures: the papers draw one negative per query; here a query's negatives are averaged.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import softplus

from negbench.contracts import Loss, LossInput, mean_over_rows

PAPER = "QuRe eq. 3; CIRQRS eq. 3"


@dataclass(frozen=True, kw_only=True)
class BradleyTerry(Loss):
    """Mean over queries of the (weighted) mean over the query's negatives of softplus((s- - s+) / tau).

    Args:
        tau: temperature, > 0; if left out, the caller's, or 0.07.

    Inputs:
        | positive | negatives | mask          | weights                   | aspects |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | refused |

    A query without a valid negative, or whose weights are all 0, adds nothing. Weights are relative: they are divided
    by their sum over the query's valid negatives.
    """

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        return mean_over_rows(softplus(given.gap / given.temperature), given.mask, given.weights)
