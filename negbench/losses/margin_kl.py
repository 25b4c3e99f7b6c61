"""Margin + KL: a two-way KL term, a margin on the scores and one margin for each attribute sub-query.

Paper: DQE-CIR (arXiv:2603.04037), eq. 5-8.
Departures: the paper's margins and lambda_rank are not known to us, so the defaults are ours. Several negatives of a
query are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import softplus

from negbench.contracts import AspectScores, Loss, check_option, tunable
from negbench.losses._rows import at_least_float32, mean_over_rows, without_masked

PAPER = "DQE-CIR eq. 5-8"


@dataclass(frozen=True, kw_only=True)
class MarginKL(Loss):
    """KL([1, 0] || softmax([s+, s-] / tau)) + lambda_rank max(0, m - s+ + s-) + sum of w_a max(0, m_a - s+_a + s-_a).

    Each term is averaged over the (weighted) negatives of a query, then over the queries. The margins act on scores as
    they are, before the temperature. The last sum runs over the sub-queries (colour, shape) that the backbone has.

    Args:
        tau: temperature of the KL term, > 0; left out, it is the one that the caller passes, or 0.07.
        margin: m, score units, >= 0.
        margin_aspect: m_a of every sub-query, score units, >= 0.
        lambda_rank: weight of the second term, >= 0.

    Inputs:
        | positive | negatives | mask          | weights                   | aspects                         |
        | [B]      | [B, M]    | [B, M] or None | [B, M] >= 0 or None (= 1) | [B], [B, M] and a scalar w_a each |

    `mask` and `weights` hold for the sub-queries too. A query without a valid negative, or whose weights are all 0,
    adds nothing.
    """

    uses_aspects: ClassVar[bool] = True

    margin: float = tunable(0.2, low=0.0, high=0.5)
    margin_aspect: float = tunable(0.2, low=0.0, high=0.5)
    lambda_rank: float = tunable(1.0, low=0.1, high=10.0, log=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("margin", "margin_aspect", "lambda_rank"):
            value = getattr(self, name)
            check_option(name, value, isinstance(value, int | float) and value >= 0, "a number >= 0")

    def value(
        self,
        positive: Tensor,
        negatives: Tensor,
        mask: Tensor,
        weights: Tensor,
        temperature: Tensor | float,
        aspects: Sequence[AspectScores],
    ) -> Tensor:
        """Scalar, float32 or wider. Raises ValueError where an aspect's scores do not fit the negatives."""
        gap = without_masked(negatives, mask) - at_least_float32(positive)[:, None]
        total = mean_over_rows(softplus(gap / temperature), mask, weights)
        total = total + self.lambda_rank * mean_over_rows((self.margin + gap).relu(), mask, weights)
        for aspect in aspects:
            if aspect.positive.shape != positive.shape or aspect.negatives.shape != negatives.shape:
                raise ValueError(
                    f"aspect '{aspect.name}' must be {tuple(positive.shape)} and {tuple(negatives.shape)}, "
                    f"got {tuple(aspect.positive.shape)} and {tuple(aspect.negatives.shape)}"
                )
            gap = without_masked(aspect.negatives, mask) - at_least_float32(aspect.positive)[:, None]
            total = total + aspect.weight * mean_over_rows((self.margin_aspect + gap).relu(), mask, weights)
        return total
