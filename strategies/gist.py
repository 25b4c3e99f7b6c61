"""GISTEmbed: the batch without what a guide likes at least as well as the target.

Rule: member j is no negative of query i where g(q_i, d_j) > g(q_i, d_i) - m, or > g+ - m |g+| (`relative`, safe
where g+ < 0), g being another model's scores.
Source: GISTEmbed (arXiv:2402.16829); m 0 as published. sentence-transformers' losses/gist_embed.py has both margins
(read 2026-08-21).
Departures: the released loss has two more terms of query-query and target-target pairs, filtered alike; here the
negatives are the other targets. Its temperature 0.01 is the loss's: `--set loss.tau=0.01`.
Needs: a guide, `--set mining.guide=BACKBONE`, or a TREC run file of scores; a pair that it does not score stays.
Fallback: none; a query whose every member is dropped has no negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from negbench.contracts import BatchStrategy, PlaneName, ScoreView, tunable
from negbench.mining.filters import above_positive

PAPER = "GISTEmbed, arXiv:2402.16829"


@dataclass(frozen=True, kw_only=True)
class Gist(BatchStrategy):
    """Pool: allowed members that the guide scores no higher than the target, less a margin.

    Args:
        margin: m, in the guide's scores; below 0 drops less.
        relative: a share of |g+| instead of an absolute margin.
    """

    reads: ClassVar[tuple[PlaneName, ...]] = ("guide",)

    margin: float = tunable(0.0, low=0.0, high=0.3)
    relative: bool = False

    def pool(self, view: ScoreView) -> Tensor:
        """[B, B] bool."""
        return view.allowed & ~above_positive(view.plane("guide"), view.target, self.margin, relative=self.relative)
