"""Warn about finished runs whose numbers are correct but say nothing about a strategy."""

import math

from negbench.contracts import Loss
from negbench.loop.types import State
from negbench.settings.config import ResolvedConfig

MOVES_SCORES = False  # only reads results

_FALLBACKS = 0.10  # of the queries
_COLLAPSED = 0.98  # length of the mean of the unit query vectors
_PINNED = 0.01  # of the loss, relative, in the last quarter of the epochs


def remarks_of(config: ResolvedConfig, loss: Loss, state: State, queries: int) -> list[str]:
    """Return one line for each thing that looks wrong.

    Args:
        config: the run's.
        loss: the run's.
        state: the final one; its points and its behaviour are examined.
        queries: number of train queries.
    """
    return [*_mined(state, queries), *_collapsed(state), *_pinned(config, loss, state)]


def _mined(state: State, queries: int) -> list[str]:
    """Report stale pools and frequent fallbacks of each refresh (batch strategies: of each epoch), and ties cut."""
    remarks = []
    for row in state.behaviour:
        when = f"epoch {int(row['epoch'])}"
        if row.get("stale"):
            remarks.append(f"{when}: the refresh changed no pool")
        share = (row.get("fallback_below", 0.0) + row.get("fallback_any", 0.0)) / queries
        if share > _FALLBACKS:
            remarks.append(f"{when}: {share:.0%} of the queries had an empty pool and drew from a fallback")
    if cut := sum(row.get("cut_ties", 0.0) for row in state.behaviour):
        remarks.append(f"{cut:,.0f} pools cut a tie: of images with one score they hold those first in the corpus")
    return remarks


def _collapsed(state: State) -> list[str]:
    """Report the first epoch in which all query vectors point the same way."""
    for point in state.points:
        for name, value in point.items():
            if name.endswith("/query_concentration") and value > _COLLAPSED:
                return [f"epoch {int(point['epoch']) + 1}: collapsed, all queries point the same way ({value:.3f})"]
    return []


def _pinned(config: ResolvedConfig, loss: Loss, state: State) -> list[str]:
    """Report a loss that ends at its value for equal scores: log 2 for a logistic loss, the margin for a hinge."""
    losses = [point["train/loss"] for point in state.points if "train/loss" in point]
    if len(losses) < 4 or config.hybrid.active:
        return []
    margin = float(getattr(loss, "margin", 0.0))
    last = losses[-max(2, len(losses) // 4) :]
    for level in (math.log(2), margin):
        if level > 0 and all(abs(value - level) <= _PINNED * level for value in last):
            return [f"the loss stays at {level:.3f}, its value when all scores are equal: nothing is learned"]
    return []
