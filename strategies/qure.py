"""Images between the two steepest score drops below the target.

Paper: QuRe (arXiv:2507.12416), eq. 5-7 and alg. 1; its released code sorts the drops, walks them in descending order
and takes the first two neighbours of that walk that lie more than `consecutive_threshold` places apart.
Departures of `variant="release"` from the released code: the corpus holds each image once (there: one entry per
triplet), an image that ties with the target is not below it, and a query without such a pair has an empty pool (there:
the band of the query before it).
Fallback: fewer than three images below the target, or no such pair, gives an empty pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from negbench.contracts import ScoreView, Strategy, check_option, tunable
from negbench.metrics.drops import drops, steepest
from negbench.metrics.ranks import count, descending, top_columns
from negbench.strategies._ranked import below_target, is_whole

PAPER = "QuRe eq. 5-7, alg. 1"

_WALK = 32  # steps of the walk that are looked at before all drops are sorted


@dataclass(frozen=True, kw_only=True)
class Qure(Strategy):
    """Sort the allowed images with s < s+; drop(p) = s_p - s_(p+1); pool: places min(k1, k2) + 1 ... max(k1, k2).

    Args:
        variant: "paper": k1 and k2 are the two largest drops, the earlier place first where drops tie. "release": the
            first neighbours in descending order of drop whose places differ by more than `consecutive_threshold`.
        consecutive_threshold: places, >= 0; 1 as released. Only "release" reads it, and "paper" refuses another value.
    """

    variant: Literal["paper", "release"] = tunable("paper", choices=("paper", "release"))
    consecutive_threshold: int = 1

    def __post_init__(self) -> None:
        check_option("variant", self.variant, self.variant in ("paper", "release"), "'paper' or 'release'")
        threshold = self.consecutive_threshold
        check_option("consecutive_threshold", threshold, is_whole(threshold, 0), "a whole number >= 0")
        unread = self.variant == "paper" and threshold != 1
        check_option("consecutive_threshold", threshold, not unread, "left out unless variant is 'release'")

    def pool(self, view: ScoreView) -> Tensor:
        """[B, N] bool."""
        below = below_target(view)
        if below.shape[1] < 4:  # the target and three images below it are the least that has two drops
            return torch.zeros_like(below)
        ranked = view.ranked_scores(below)
        drop = drops(ranked, 0, count(below)[:, None])
        pair = steepest(drop).clamp(min=0) if self.variant == "paper" else self._released_pair(drop)
        low, high = pair.amin(1), pair.amax(1)
        pool: Tensor = view.window(below, high + 1, low + 1, ranked)
        return pool

    def _released_pair(self, drop: Tensor) -> Tensor:
        """[B, P] drops -> [B, 2] places; equal ones, hence an empty pool, where no pair is far enough apart."""
        walk = top_columns(drop, _WALK)  # nearly all find their pair among the first
        pair, found = self._walked(drop, walk)
        rest = (~found).nonzero().squeeze(1)
        if len(rest) and walk.shape[1] < drop.shape[1]:
            pair[rest], _ = self._walked(drop[rest], descending(drop[rest]))
        return pair

    def _walked(self, drop: Tensor, walk: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 2] places of the first neighbours of `walk` [B, W] that are far enough apart, and [B] whether any are."""
        real = drop.gather(1, walk) >= 0
        wide = (walk.diff(dim=1).abs() > self.consecutive_threshold) & real[:, 1:]
        step = wide.int().argmax(1, keepdim=True)  # the first True
        found = wide.gather(1, step)
        first, second = walk.gather(1, step), walk.gather(1, step + 1)
        return torch.cat([first, torch.where(found, second, first)], dim=1), found.squeeze(1)
