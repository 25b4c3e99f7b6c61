"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FOLDERS = {"negbench": "negbench", "strategies": "negbench.strategies", "backbones": "negbench.backbones"}


def modules() -> list[str]:
    """Names of all modules with an example."""
    return [
        ".".join((package, *file.relative_to(ROOT / folder).with_suffix("").parts))
        for folder, package in FOLDERS.items()
        for file in sorted((ROOT / folder).rglob("*.py"))
        if ">>> " in file.read_text(encoding="utf-8")
    ]


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0


def test_the_metrics_have_examples() -> None:
    assert len([name for name in modules() if name.startswith("negbench.metrics.")]) >= 9
