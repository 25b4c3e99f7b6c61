"""Fixture of an open, untrained run on toy data."""

from pathlib import Path

import pytest

from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.loop.runs import open_run
from negbench.loop.types import OpenRun
from negbench.systems.system import load_config


@pytest.fixture(scope="module")
def cell(toy_root: Path) -> OpenRun:
    """Return an open run with its backbone in evaluation mode."""
    sets = [f"dataset.root='{toy_root}'", "backbone.weights='random'"]
    opened = open_run(load_config(flags={"strategy": {"name": "hycole"}}, sets=sets), Display(), Scenes())
    opened.backbone.eval()
    return opened
