"""Fixtures that several areas share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real annotation files; tests that use it skip where it is absent."""
    path = Path(os.environ.get("NEGBENCH_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (path / "fashioniq").is_dir():
        pytest.skip(f"no real annotation files at {path} (set NEGBENCH_SHARED_DATA)")
    return path
