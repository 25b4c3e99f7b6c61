"""Negatives of one kind only, by the ground truth, to measure what not knowing the kind costs.

Paper: none; a ceiling of this benchmark. It reads the ground truth, so it is not a method.
Departures: none.
Fallback: the pool of a query without an allowed image of the kind is empty. A data set that knows no kinds of negatives
is refused.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from negbench.contracts import ScoreView, Strategy
from negbench.errors import OptionError
from negbench.metrics.fixed import KINDS
from negbench.strategies._ranked import not_relevant

PAPER = "ours: the price of not knowing the kind of a negative"


@dataclass(frozen=True, kw_only=True)
class OracleKind(Strategy):
    """Pool: all allowed images of the kind.

    Args:
        kind: composed (one step away from right), visual (fits the reference, not the text), textual (fits the text,
            not the reference), unspecified (judged wrong, of no known kind), or unrelated (none of these).
    """

    reads_truth = True
    n_def = 1  # the pool does not depend on scores: nothing to refresh

    kind: Literal["composed", "visual", "textual", "unspecified", "unrelated"] = "composed"

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool. Raises OptionError where `view.kinds` is None."""
        if view.kinds is None:
            raise OptionError(
                "strategy 'oracle-kind' needs ground truth, but these data judge no negatives: use a world (vectors, "
                "synthetic, emoji), or triplets with a column judged_wrong"
            )
        code = 0 if self.kind == "unrelated" else 1 + KINDS.index(self.kind)
        return not_relevant(view, "oracle-kind") & (view.kinds == code)
