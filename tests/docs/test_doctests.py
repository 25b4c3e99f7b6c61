"""The examples in docstrings run."""

import doctest
import importlib
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
FOLDERS = {"negbench": "negbench", "strategies": "negbench.strategies", "backbones": "negbench.backbones"}


def modules() -> list[str]:
    """Return the names of all modules with an example."""
    return [
        ".".join((package, *file.relative_to(ROOT / folder).with_suffix("").parts))
        for folder, package in FOLDERS.items()
        for file in sorted((ROOT / folder).rglob("*.py"))
        if ">>> " in file.read_text(encoding="utf-8")
    ]


def test_examples():
    names = modules()
    assert len([name for name in names if name.startswith("negbench.metrics.")]) >= 9
    for name in names:
        result = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
        assert (result.attempted > 0, result.failed) == (True, 0), name
