"""Fixtures for the tests of the loaders."""

from collections.abc import Iterator

import pytest

from negbench.worlds._icons import PACKAGES


@pytest.fixture(autouse=True, scope="module")
def _packages() -> Iterator[None]:
    """Restore the list of known icon packages after each file."""
    before = dict(PACKAGES)
    yield
    PACKAGES.update(before)
