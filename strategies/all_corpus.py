"""Every image but the target.

Paper: QuRe (arXiv:2507.12416), sec. 5.4, strategy (1); CIRQRS names it "Baseline".
Departures: none.
Fallback: a query without allowed images has an empty pool.
"""

from dataclasses import dataclass

from torch import Tensor

from negbench.contracts import ScoreView, Strategy

PAPER = "QuRe sec. 5.4 (1); CIRQRS 'Baseline'"


@dataclass(frozen=True, kw_only=True)
class AllCorpus(Strategy):
    """Pool: all allowed images, whatever they score."""

    n_def = 1  # the pool does not depend on scores: nothing to refresh

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool, True at every allowed image."""
        return view.allowed.clone()
