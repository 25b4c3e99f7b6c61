"""False-negative filters: which images no strategy may draw, because they are likely to satisfy the query.

A filter is applied to what is allowed before a strategy defines its pools, whatever the strategy, in the corpus and in
the batch (for the slots "target" and "query"). A row that filters leave empty falls back in mining as if there were no
filter, to the nearest image below the target (counted), and has no negative in a batch. All are safe for scores below
zero: a relative margin is a share of |s+|. Where a guide or a judge knows nothing (NaN), nothing is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from negbench.contracts import PlaneName, ScoreView
from negbench.metrics.ranks import at_least_float32

_READS: dict[str, PlaneName] = {
    "guide_margin": "guide",
    "max_judge": "judge",
    "max_target": "target",
    "max_reference": "reference",
}


@dataclass(frozen=True)
class Filters:
    """The filters of `mining`; one that is None filters nothing. s+ is the target's score.

    Attributes:
        margin: drops s_j > s+ - margin (NV-Retriever's TopK-MarginPos, arXiv:2407.15831; below 0 as UniME's s+ + beta).
        relative_margin: drops s_j > s+ - relative_margin |s+| (its TopK-PercPos, 0.05 for 95 %, made safe for s+ < 0).
        guide_margin: drops g_j > g+ - guide_margin under the guide (GISTEmbed, arXiv:2402.16829: 0).
        max_judge: drops what the judge scores above it.
        max_target, max_reference: drops images whose cosine to the target, or to the reference image, is above it.
    """

    margin: float | None = None
    relative_margin: float | None = None
    guide_margin: float | None = None
    max_judge: float | None = None
    max_target: float | None = None
    max_reference: float | None = None

    @classmethod
    def of(cls, options: object) -> Filters:
        """Return the filters that an object has as attributes, such as `[mining]` of a configuration."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})

    @property
    def active(self) -> bool:
        """Whether anything is filtered."""
        return self != Filters()

    @property
    def reads(self) -> tuple[PlaneName, ...]:
        """Planes that `keep` needs."""
        return tuple(plane for name, plane in _READS.items() if getattr(self, name) is not None)

    def keep(self, view: ScoreView) -> Tensor:
        """Return [B, N] bool: False for dropped images."""
        keep = torch.ones_like(view.allowed)
        if self.margin is not None:
            keep &= ~above_positive(view.scores, view.target, self.margin)
        if self.relative_margin is not None:
            keep &= ~above_positive(view.scores, view.target, self.relative_margin, relative=True)
        if self.guide_margin is not None:
            keep &= ~above_positive(view.plane("guide"), view.target, self.guide_margin)
        for name in ("max_judge", "max_target", "max_reference"):
            limit = getattr(self, name)
            if limit is not None:
                keep &= ~(view.plane(_READS[name]) > limit)
        return keep


def above_positive(scores: Tensor, target: Tensor, margin: float, *, relative: bool = False) -> Tensor:
    """Return [B, N] bool: s_j > s+ - margin, or s_j > s+ - margin |s+|; False where either is NaN.

    Args:
        scores: [B, N] of any sign.
        target: [B] int64 columns.
        margin: in the units of the scores, or a share of |s+|.
        relative: whether `margin` is a share of |s+|.
    """
    scores = at_least_float32(scores)
    positive = scores.gather(1, target[:, None])
    return scores > positive - margin * (positive.abs() if relative else 1.0)
