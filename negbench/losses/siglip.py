"""SigLIP: every pair of a query and an image is a yes-or-no question of its own; a sigmoid for each, no softmax.

Paper: Zhai et al., Sigmoid loss for language image pre-training (arXiv:2303.15343); the formula is that of open_clip's
SigLipLoss, without its terms for several processes.
Departures: the scale t is 1 / temperature, learned as the backbone learns it and from where it starts; the paper's
starts at 10, which is `backbone.temperature=0.1`. The negatives are whatever the strategy chose: with `in-batch` the
loss is the paper's.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import softplus

from negbench.contracts import Loss, LossInput, tunable
from negbench.contracts.loss import without_masked
from negbench.losses._rows import mean_of_rows
from negbench.metrics.ranks import at_least_float32

PAPER = "SigLIP, arXiv:2303.15343"


@dataclass(frozen=True, kw_only=True)
class SigLIP(Loss):
    """Mean over queries of log(1 + exp(-(s+ / tau + b))) + sum of w log(1 + exp(s- / tau + b)) over the negatives.

    Args:
        tau: temperature, > 0; if left out, the caller's, or 0.07.
        bias: b, where a run starts to learn it; -10 as published. Outside a run it stays.

    Inputs:
        | positive | negatives | mask          | weights                   | aspects | bias           |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | refused | scalar or None |

    A query without a valid negative, or whose weights are all 0, adds nothing and does not count in the mean. Weights
    are absolute: doubling them equals listing each negative twice.
    """

    bias: float = tunable(-10.0, low=-20.0, high=0.0)

    @property
    def start_bias(self) -> float:
        """`bias`."""
        return self.bias

    def value(self, given: LossInput) -> Tensor:
        """Scalar, float32 or wider."""
        bias = self.bias if given.bias is None else given.bias
        of_target = at_least_float32(given.positive) / given.temperature + bias
        of_negatives = without_masked(given.negatives, given.mask) / given.temperature + bias
        weights = given.weights.to(of_negatives.dtype) * given.mask
        rows = softplus(-of_target) + (weights * softplus(of_negatives)).sum(1)
        return mean_of_rows(rows, (weights > 0).any(1))
