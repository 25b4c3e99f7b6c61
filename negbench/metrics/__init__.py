"""Metrics; `ranks` is the only place that sorts. `evaluate_rankings` loads lazily, so that this import stays light."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from negbench.metrics.rankings import evaluate_rankings

__all__ = ["evaluate_rankings"]


def __getattr__(name: str) -> Any:
    """Import the public function's home on first use (PEP 562)."""
    if name == "evaluate_rankings":
        from negbench.metrics.rankings import evaluate_rankings

        return evaluate_rankings
    raise AttributeError(f"module 'negbench.metrics' has no attribute '{name}'")
