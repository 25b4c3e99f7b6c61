"""Every image but the known relevant ones, to measure what false negatives cost random sampling.

Paper: none; a ceiling of this benchmark. It reads the ground truth, so it is not a method.
Departures: none.
Fallback: if all allowed images are relevant, the pool is empty. A data set without known relevant images beyond the
target is refused, because the result would equal `all-corpus`.
"""

from dataclasses import dataclass

from torch import Tensor

from negbench.contracts import ScoreView, Strategy
from negbench.strategies._ranked import not_relevant

PAPER = "ours: the ceiling of all-corpus"


@dataclass(frozen=True, kw_only=True)
class OracleAll(Strategy):
    """Pool: all allowed images that are not known to satisfy the query."""

    reads_truth = True
    n_def = 1  # the pool does not depend on scores: nothing to refresh

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool. Raises OptionError where `view.relevant` is None."""
        return not_relevant(view, "oracle-all")
