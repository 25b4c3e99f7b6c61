"""Options of built-in losses and strategies: their defaults and the ranges that a study searches.

A row of a table only says "qure" or "hcl", so changing a default changes the meaning of published numbers.
"""

import dataclasses
from typing import Any

import pytest

from negbench.plugins.registry import registry


def options_of(cls: Any) -> str:
    """Return 'n_def 6; k 100, 10 to 1000 (log); halve False': defaults, and what a study searches."""
    options = []
    if hasattr(cls, "n_def"):
        options.append(f"n_def {cls.n_def}")
    for field in dataclasses.fields(cls):
        text = f"{field.name} {field.default}"
        span = field.metadata.get("range")
        if span is not None and span.choices:
            text += f", {' or '.join(span.choices)}"
        elif span is not None:
            text += f", {span.low} to {span.high}"
        if span is not None and span.log:
            text += " (log)"
        options.append(text)
    return "; ".join(options)


def test_defaults_and_ranges_are_those_of_published_numbers(golden):
    lines = {}
    for kind in ("losses", "strategies"):
        lines[kind] = [f"{name}: {options_of(registry.get(kind, name))}" for name in registry.plugins(kind)]
    golden("options", lines)


def test_options_of_a_loss_are_given_by_name(subtests):
    """All options except `tau`, which every loss has, are keyword-only."""
    for name in registry.plugins("losses"):
        with subtests.test(name=name), pytest.raises(TypeError, match="positional"):
            registry.get("losses", name)(None, 0.1)
