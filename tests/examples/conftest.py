from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example() -> Callable[[str], ModuleType]:
    """Import a file of examples/ by name."""

    def found(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"negbench_example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return found
