"""What the loaders' tests share; `toys` and `standin` are those of tests/conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from negbench.datasets._icons import PACKAGES


@pytest.fixture(scope="session")
def flaws(load_file: Callable[[Path], ModuleType]) -> ModuleType:
    """tests/datasets/flaws.py."""
    return load_file(Path(__file__).with_name("flaws.py"))


@pytest.fixture(autouse=True)
def _packages() -> Iterator[None]:
    """Toy packages of icons are known for one test."""
    known = dict(PACKAGES)
    yield
    PACKAGES.update(known)
