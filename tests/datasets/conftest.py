"""Fixtures for the tests of the loaders; tests/conftest.py has `toys` and `standin`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from negbench.datasets._icons import PACKAGES


@pytest.fixture(scope="session")
def flaws(load_file: Callable[[Path], ModuleType]) -> ModuleType:
    """Return the module tests/datasets/flaws.py."""
    return load_file(Path(__file__).with_name("flaws.py"))


@pytest.fixture(autouse=True)
def _packages() -> Iterator[None]:
    """Restore the list of known icon packages after each test."""
    known = dict(PACKAGES)
    yield
    PACKAGES.update(known)
