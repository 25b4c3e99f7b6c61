"""Negatives that you bring: those that the data list for each query, or a file does.

Paper: none; so train the data sets that come with hard negatives (MegaPairs, M-BEIR, FlagEmbedding's own format).
Fallback: the pool of a query without a list is empty.
"""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from negbench.contracts import ScoreView, Strategy

PAPER = "no paper: negatives that you bring"


@dataclass(frozen=True, kw_only=True)
class Listed(Strategy):
    """Pool: the listed images of the query that are allowed; the same at every refresh.

    Args:
        file: a table of negatives, as `negbench mine` writes it (.parquet, .jsonl, .csv); None takes the column
            `negatives` of the data.
    """

    reads = ("listed",)
    n_def = 1  # the pool does not depend on scores: nothing to refresh
    file: Path | None = None

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool."""
        return view.allowed & ~view.plane("listed").isnan()
