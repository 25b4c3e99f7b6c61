"""The mid-zone: images that score between alpha and beta less than the target.

Paper: DQE-CIR (arXiv:2603.04037), eq. 3-4 and table 4: alpha 0.2, beta 0.8; sec. 4.1: a warm-up on the whole corpus,
then five equal intervals of epochs, each starting with a redefinition. The paper defines the band on raw cosine gaps
but also calls 0.2-0.8 "60 %", so `scale` offers three readings.
Departures: `minmax` and `quantile` are our readings; none of the three ever takes an image above the target.
Fallback: if no image is inside the band, the pool is empty.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, check_option, tunable
from negbench.metrics.ranks import at_least_float32, at_most, count, masked_scores

PAPER = "DQE-CIR eq. 3-4, table 4"


@dataclass(frozen=True, kw_only=True)
class Dqe(Strategy):
    """Pool: allowed images with alpha <= gap <= beta and s <= s+, where the gap s+ - s is measured as `scale` says.

    Args:
        alpha: nearest edge of the band, >= 0 and < beta.
        beta: farthest edge, at most 2 (`absolute`, the largest gap of two cosines) or 1.
        scale: "absolute": the gap itself. "minmax": gaps of the query's allowed images rescaled, 0 at its
            highest-scored and 1 at its lowest-scored one; equal gaps cannot be rescaled and give an empty pool.
            "quantile": share of the query's other allowed images that rank above, ties by corpus index.
    """

    schedule = "equal"

    alpha: NonNegativeFloat = tunable(0.2, low=0.0, high=0.4, below="beta")
    beta: float = tunable(0.8, low=0.5, high=1.0)
    scale: Literal["absolute", "minmax", "quantile"] = "absolute"

    def __post_init__(self) -> None:
        super().__post_init__()
        limit = 2 if self.scale == "absolute" else 1
        check_option("beta", self.beta, self.beta <= limit, f"<= {limit} if scale is '{self.scale}'")

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool."""
        if self.scale == "quantile":
            return self._shares(view) & at_most(view.scores, view.positive[:, None])
        gap = at_least_float32(view.positive)[:, None] - at_least_float32(view.scores)
        inside = view.allowed
        if self.scale == "minmax":
            inside = inside & at_most(0.0, gap)
            low = masked_scores(gap, view.allowed, low=False).amin(1, keepdim=True)
            high = masked_scores(gap, view.allowed).amax(1, keepdim=True)
            gap = gap.sub_(low).div_(high - low)  # NaN where there is nothing to rescale
        return inside & at_most(self.alpha, gap) & at_most(gap, self.beta)

    def _shares(self, view: ScoreView) -> Tensor:
        """[B, N] bool: allowed images whose rank quantile lies in the band, found once per number of allowed images."""
        others, row = (count(view.allowed) - 1).clamp(min=1).unique(return_inverse=True)
        starts = [self._count_ranks(self.alpha, number, bisect_left) for number in others.tolist()]
        stops = [self._count_ranks(self.beta, number, bisect_right) for number in others.tolist()]
        start = torch.tensor(starts, device=row.device)[row]
        stop = torch.tensor(stops, device=row.device)[row]
        return view.window(view.allowed, stop, start)

    @staticmethod
    def _count_ranks(edge: float, others: int, cut: Callable[..., int]) -> int:
        """Count the ranks, of `others` + 1, with quantile below `edge` (`bisect_left`) or up to it (`bisect_right`)."""

        def quantile(rank: int) -> np.float32:
            return np.float32(rank) / np.float32(others)

        return cut(range(others + 1), np.float32(edge), key=quantile)
