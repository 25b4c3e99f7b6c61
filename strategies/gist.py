"""GISTEmbed: the batch without members that a guide scores higher than the target.

Rule: member j is not a negative of query i if g(q_i, d_j) > g(q_i, d_i) - m, or > g+ - m |g+| (`relative`, safe if
g+ < 0), g being another model's scores.
Source: GISTEmbed (arXiv:2402.16829); m 0 as published. sentence-transformers' losses/gist_embed.py has both margins
(read 2026-08-21).
Departures: the released loss adds query-query and target-target pairs, filtered the same way; here the negatives are
the other targets only. Set its temperature with `--set loss.tau=0.01`.
Needs: a guide, `--set mining.guide=BACKBONE`, or a TREC run file of scores; pairs that it does not score are kept.
Fallback: none; if every member is dropped, the query has no negatives.
"""

from dataclasses import dataclass

from torch import Tensor

from negbench.contracts import BatchStrategy, ScoreView, tunable
from negbench.mining.filters import above_positive

PAPER = "GISTEmbed, arXiv:2402.16829"


@dataclass(frozen=True, kw_only=True)
class Gist(BatchStrategy):
    """Pool: allowed members whose guide score is at most the target's minus a margin.

    Args:
        margin: m, in units of the guide's scores; below 0 it drops fewer members.
        relative: take the margin as a share of |g+| instead of absolute.
    """

    reads = ("guide",)

    margin: float = tunable(0.0, low=0.0, high=0.3)
    relative: bool = False

    def pool(self, view: ScoreView) -> Tensor:
        """[B, B] bool."""
        return view.allowed & ~above_positive(view.plane("guide"), view.target, self.margin, relative=self.relative)
