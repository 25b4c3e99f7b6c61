"""Images of the ranks start to stop - 1: the head of the ranking is skipped, as it holds most false negatives.

Rule: rank the corpus with the target in it, take the ranks [start, stop), drop the target.
Source: BGE, FlagOpen/FlagEmbedding scripts/hn_mine.py (2026-04-22): 10-210, 15 negatives drawn; its README shows 2-200.
Departures: the released script fills a query that has too few with images drawn from the whole corpus; here such a
query draws again from what it has.
Fallback: a corpus that ends before `start` gives an empty pool.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from negbench.contracts import ScoreView, Strategy, check_option, tunable
from negbench.strategies._ranked import is_whole

PAPER = "BGE, FlagEmbedding hn_mine.py"


@dataclass(frozen=True, kw_only=True)
class ShiftedTopK(Strategy):
    """Pool: allowed images whose 0-based rank r, the target counted, has start <= r < stop; ties by corpus index.

    Args:
        start: first rank, >= 0.
        stop: the rank after the last, > start.
    """

    start: int = tunable(10, low=0, high=100, below="stop")
    stop: int = tunable(210, low=110, high=1000)

    def __post_init__(self) -> None:
        check_option("start", self.start, is_whole(self.start, 0), "a whole number >= 0")
        check_option("stop", self.stop, is_whole(self.stop, 1), "a whole number >= 1")
        check_option("start", self.start, self.start < self.stop, f"below stop ({self.stop})")

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, at most stop - start True per row."""
        ranked = view.allowed.scatter(1, view.target[:, None], True)
        return view.allowed & view.window(ranked, self.stop, self.start)
