"""Options of built-in losses and strategies: their defaults and the ranges that a study searches.

A row of a table only says "qure" or "hcl", so changing a default changes the meaning of published numbers.
"""

import dataclasses
from typing import Any

import pytest

from negbench.plugins.registry import registry


def options_of(cls: Any) -> str:
    """'n_def 6; k 100, 10 to 1000 (log); halve False': defaults, and what a study searches."""
    options = [f"n_def {cls.n_def}"] if hasattr(cls, "n_def") else []
    for field in dataclasses.fields(cls):
        span = field.metadata.get("range")
        searched = "" if span is None else f", {' or '.join(span.choices) or f'{span.low} to {span.high}'}"
        options.append(f"{field.name} {field.default}{searched}{' (log)' if span is not None and span.log else ''}")
    return "; ".join(options)


def test_defaults_and_ranges_are_those_of_published_numbers(golden):
    kinds = {kind: registry.plugins(kind) for kind in ("losses", "strategies")}
    golden("options", {k: [f"{n}: {options_of(registry.get(k, n))}" for n in names] for k, names in kinds.items()})


def test_options_of_a_loss_are_given_by_name(subtests):
    """All options except `tau`, which every loss has, are keyword-only."""
    for name in registry.plugins("losses"):
        with subtests.test(name=name), pytest.raises(TypeError, match="positional"):
            registry.get("losses", name)(None, 0.1)
