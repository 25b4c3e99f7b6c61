"""Every other target of the batch, weighted by how hard it is; no gradient flows through the weight.

Rule: alpha sg(s_j) is added to the logit s_j / tau of each negative, sg being stop-gradient: a weight exp(alpha s_j).
Source: LLaVE (arXiv:2503.04812), alpha 9 on in-batch negatives; EmbeddingGemma (arXiv:2509.20354), alpha 5 on mined
ones; both as in sentence-transformers (losses/multiple_negatives_ranking.py, `hardness_mode`, scale 20 = tau
0.05). The papers themselves are unverified.
Departures: none under `info-nce`, whose value and gradient are those of the added logit. A loss that divides weights by
their sum (`bradley-terry`) takes them as shares.
Fallback: none needed; a query without allowed columns has no negatives.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from negbench.contracts import BatchStrategy, ScoreView, tunable
from negbench.metrics.ranks import at_least_float32

PAPER = "LLaVE, arXiv:2503.04812; EmbeddingGemma, arXiv:2509.20354"


@dataclass(frozen=True, kw_only=True)
class Hardness(BatchStrategy):
    """Pool: all allowed columns of the batch's [B, B] scores, each with the weight exp(alpha s).

    Args:
        alpha: strength of the weighting, 0 .. 80, near float32's limit; 0 equals `in-batch`.
    """

    alpha: Annotated[float, Field(ge=0, le=80)] = tunable(9.0, low=1.0, high=20.0)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, B] float32 or wider weights."""
        return at_least_float32(view.scores).mul(self.alpha).exp() * view.allowed
