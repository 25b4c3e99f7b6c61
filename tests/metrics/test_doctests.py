"""The examples in the docstrings of the metrics run."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "average_precision",
        "cirqrs",
        "drops",
        "epochs",
        "metric",
        "preference",
        "ranks",
        "recall",
        "relevant",
        "similarity",
    ],
)
def test_examples(name: str) -> None:
    import torch

    module = importlib.import_module(f"negbench.metrics.{name}")
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0
