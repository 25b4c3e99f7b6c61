"""Images at ranks start to stop - 1, skipping the head of the ranking, which holds most false negatives.

Rule: rank the corpus with the target in it, take the ranks [start, stop), drop the target.
Source: BGE, FlagOpen/FlagEmbedding scripts/hn_mine.py (2026-04-22): 10-210, 15 negatives drawn; its README shows 2-200.
Departures: the released script fills a query that has too few with images drawn from the whole corpus; here such a
query draws again from what it has.
Fallback: if the ranking ends before `start`, the pool is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable

PAPER = "BGE, FlagEmbedding hn_mine.py"


@dataclass(frozen=True, kw_only=True)
class ShiftedTopK(Strategy):
    """Pool: allowed images whose 0-based rank r, the target counted, has start <= r < stop; ties by corpus index.

    Args:
        start: first rank, >= 0.
        stop: the rank after the last, > start.
    """

    start: NonNegativeInt = tunable(10, low=0, high=100, below="stop")
    stop: PositiveInt = tunable(210, low=110, high=1000)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, at most stop - start True per row."""
        ranked = view.allowed.scatter(1, view.target[:, None], True)
        return view.allowed & view.window(ranked, self.stop, self.start)
