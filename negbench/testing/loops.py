"""Slow and plain: what a test needs to write a strategy's rule a second time, as a loop over one row."""

from __future__ import annotations

from torch import Tensor

from negbench.contracts import ScoreView


def as_sets(pool: Tensor) -> list[set[int]]:
    """[B, N] mask or weights -> the columns of each row that are in the pool."""
    return [{column for column, value in enumerate(row) if value > 0} for row in pool.tolist()]


def ranking(view: ScoreView, row: int) -> list[int]:
    """Allowed columns of one row by descending score, ties by column."""
    scores, allowed = view.scores[row].tolist(), view.allowed[row].tolist()
    return sorted((j for j in range(len(scores)) if allowed[j]), key=lambda j: (-scores[j], j))


def ranking_below(view: ScoreView, row: int) -> list[int]:
    """Those of `ranking` that score strictly less than the target."""
    scores = view.scores[row].tolist()
    return [j for j in ranking(view, row) if scores[j] < scores[int(view.target[row])]]
