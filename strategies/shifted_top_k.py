"""A window of ranks, start to stop - 1: skips the head of the ranking, which holds most false negatives.

Rule: rank the corpus with the target in it, take the ranks [start, stop), drop the target. Either end may be a share of
the query's gallery ("0.2%").
Source: BGE, FlagOpen/FlagEmbedding scripts/hn_mine.py (2026-04-22): 10-210, 15 negatives drawn; its README shows 2-200.
Departures: the released script fills a query that has too few with images drawn from the whole corpus; here such a
query draws again from what it has.
Fallback: if the ranking ends before `start`, the pool is empty; a run whose training gallery is that small is refused.
"""

from dataclasses import dataclass

from torch import Tensor

from negbench.contracts import ScoreView, Strategy, tunable
from negbench.errors import OptionError, check_option
from negbench.strategies._ranked import PoolSize, Rank, rank

PAPER = "BGE, FlagEmbedding hn_mine.py"


@dataclass(frozen=True, kw_only=True)
class ShiftedTopK(Strategy):
    """Pool: allowed images whose 0-based rank r, the target counted, has start <= r < stop; ties by corpus index.

    Args:
        start: first rank, >= 0, or the share of the gallery that ranks before it ("0.2%").
        stop: the rank after the last, > start, likewise.
    """

    start: Rank = tunable(10, low=0, high=500, log=True, below="stop")
    stop: PoolSize = tunable(210, low=2, high=1000, log=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.start, str) and isinstance(self.stop, str):
            self.check_gallery(10**6)  # a share of any gallery

    def check_gallery(self, size: int) -> None:
        """Raise OptionError if the window has no rank in a gallery of this size."""
        start = rank(self.start, size)
        stop = rank(self.stop, size)
        check_option("start", self.start, start < stop, f"below stop ({self.stop}) in a gallery of {size} images")
        if start >= size:
            raise OptionError(f"start = {self.start} lies outside a gallery of {size} images: choose a smaller start")

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, at most stop - start True per row."""
        size = view.scores.shape[1]
        ranked = view.allowed.scatter(1, view.target[:, None], True)
        return view.allowed & view.window(ranked, rank(self.stop, size), rank(self.start, size))
