"""Images between the two steepest score drops below the target.

Paper: QuRe (arXiv:2507.12416), eq. 5-7 and alg. 1; its released code sorts the drops, walks them in descending order
and takes the first two neighbours of that walk that lie more than `consecutive_threshold` places apart.
Departures of `variant="release"` from the released code: the corpus holds each image once (there: one entry per
triplet), an image that ties with the target is not below it, and a query without such a pair has an empty pool (there:
the band of the query before it).
Fallback: fewer than three images below the target, or no such pair, gives an empty pool. Equal scores have no drop
between them, so that a pool holds all copies of an image or none.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import NonNegativeInt
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, check_option, tunable
from negbench.strategies._ranked import below_target

PAPER = "QuRe eq. 5-7, alg. 1"


@dataclass(frozen=True, kw_only=True)
class Qure(Strategy):
    """Sort the allowed images with s < s+; drop(p) = s_p - s_(p+1); pool: places min(k1, k2) + 1 ... max(k1, k2).

    Args:
        variant: "paper": k1 and k2 are the two largest drops, the earlier place first where drops tie. "release": the
            first neighbours in descending order of drop whose places differ by more than `consecutive_threshold`.
        consecutive_threshold: places, >= 0; 1 as released. Only "release" reads it, and "paper" refuses another value.
    """

    variant: Literal["paper", "release"] = tunable("paper", choices=("paper", "release"))
    consecutive_threshold: NonNegativeInt = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        unread = self.variant == "paper" and self.consecutive_threshold != 1
        want = "left out unless variant is 'release'"
        check_option("consecutive_threshold", self.consecutive_threshold, not unread, want)

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool."""
        return view.between_drops(below_target(view), 0 if self.variant == "paper" else self.consecutive_threshold)
