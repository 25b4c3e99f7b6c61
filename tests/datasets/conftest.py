"""Helper modules of the loaders' tests, as fixtures: pytest's import mode lets no test import another file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from negbench.datasets._icons import PACKAGES


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def flaws() -> ModuleType:
    """tests/datasets/flaws.py."""
    return load(Path(__file__).with_name("flaws.py"))


@pytest.fixture(scope="session")
def standin() -> ModuleType:
    """tests/standin.py."""
    return load(Path(__file__).parents[1] / "standin.py")


@pytest.fixture(scope="session")
def toys(standin: ModuleType) -> ModuleType:
    """tests/datasets/toys.py, which draws its pictures with `standin`."""
    return load(Path(__file__).with_name("toys.py"))


@pytest.fixture(autouse=True)
def _packages() -> Iterator[None]:
    """Toy packages of icons are known for one test."""
    known = dict(PACKAGES)
    yield
    PACKAGES.update(known)
