"""The examples in docstrings run."""

import doctest
import importlib
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FOLDERS = {"negbench": "negbench", "strategies": "negbench.strategies", "backbones": "negbench.backbones"}


def modules() -> list[str]:
    """Return the names of all modules with an example."""
    names = []
    for folder, package in FOLDERS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            if ">>> " in file.read_text(encoding="utf-8"):
                parts = file.relative_to(ROOT / folder).with_suffix("").parts
                names.append(".".join((package, *parts)))
    return names


def test_metrics_have_examples():
    assert len([name for name in modules() if name.startswith("negbench.metrics.")]) >= 9


@pytest.mark.parametrize("name", modules())
def test_the_examples_of_a_module_run(name):
    result = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0
