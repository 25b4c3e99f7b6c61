"""Fixtures for the tests of the loaders."""

from collections.abc import Iterator

import pytest

from negbench.datasets._icons import PACKAGES


@pytest.fixture(autouse=True)
def _packages() -> Iterator[None]:
    """Restore the list of known icon packages after each test."""
    known = dict(PACKAGES)
    yield
    PACKAGES.update(known)
