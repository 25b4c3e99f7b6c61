"""The rule of sentence-transformers' `mine_hard_negatives`: a window of ranks, filters, then the best remaining images.

Rule: of the range_max + 1 highest-scored images (the target among them) drop the target, s_j + absolute_margin > s+,
s_j > s+ - relative_margin |s+|, s_j > max_score, s_j < min_score; of the rest drop the first range_min, and keep at
most range_max - range_min; take the first num_negatives ("top") or all ("random").
Source: huggingface/sentence-transformers, util/hard_negatives.py (2026-08-21); all names and defaults are its own.
Departures: one positive a query (there: the lowest-scored of several); no cross-encoder; ties by corpus index. Its
filters stay off unless set. Drawing num_negatives from "top" gives its negatives, in another order.
Fallback: if nothing is left, the pool is empty; the released function drops the query.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, check_option, tunable
from negbench.metrics.ranks import at_least_float32, top_columns

PAPER = "sentence-transformers, mine_hard_negatives"


@dataclass(frozen=True, kw_only=True)
class SentenceTransformers(Strategy):
    """Pool: the window's allowed images that pass all filters, from rank range_min on; ties by corpus index.

    Args:
        range_min: number of best remaining images to skip, >= 0.
        range_max: the window's last rank; left out, range_min + num_negatives + 1, or range_min + 10 num_negatives + 1
            where a margin or max_score is set.
        max_score, min_score: drop images that score more, or less.
        absolute_margin: drop images that score more than s+ minus this, score units, >= 0.
        relative_margin: drop images that score more than s+ minus this share of |s+|, >= 0.
        num_negatives: pool size of "top", >= 1 and <= range_max - range_min.
        sampling_strategy: "top": the first num_negatives; "random": all that are left up to range_max.
    """

    range_min: NonNegativeInt = tunable(0, low=0, high=100)
    range_max: int | None = None
    max_score: float | None = None
    min_score: float | None = None
    absolute_margin: NonNegativeFloat | None = None
    relative_margin: NonNegativeFloat | None = None
    num_negatives: PositiveInt = tunable(3, low=1, high=100, log=True)
    sampling_strategy: Literal["top", "random"] = "top"

    def __post_init__(self) -> None:
        super().__post_init__()
        least = self.range_min + self.num_negatives
        large_enough = self.range_max is None or self.range_max >= least
        expected = f"a whole number >= range_min + num_negatives ({least})"
        check_option("range_max", self.range_max, large_enough, expected)

    @property
    def window(self) -> int:
        """The window's last rank, `range_max` or its default."""
        if self.range_max is not None:
            return self.range_max
        filters = (self.absolute_margin, self.relative_margin, self.max_score)
        if all(limit is None for limit in filters):
            return self.range_min + self.num_negatives + 1
        return self.range_min + 10 * self.num_negatives + 1

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool."""
        columns = top_columns(view.scores, self.window + 1, view.allowed.scatter(1, view.target[:, None], True))
        eligible = (columns >= 0) & (columns != view.target[:, None])
        scores = at_least_float32(view.scores).gather(1, columns.clamp(min=0))
        positive = at_least_float32(view.positive)[:, None]
        if self.absolute_margin is not None:
            eligible &= ~(scores + self.absolute_margin > positive)
        if self.relative_margin is not None:
            eligible &= ~(scores > positive - positive.abs() * self.relative_margin)
        if self.max_score is not None:
            eligible &= ~(scores > self.max_score)
        if self.min_score is not None:
            eligible &= ~(scores < self.min_score)
        position = eligible.cumsum(1) - 1
        stop = self.range_min + self.num_negatives if self.sampling_strategy == "top" else self.window
        eligible &= (position >= self.range_min) & (position < stop)
        pool = torch.zeros_like(view.allowed)
        rows, slots = eligible.nonzero(as_tuple=True)
        pool[rows, columns[rows, slots]] = True
        return pool
