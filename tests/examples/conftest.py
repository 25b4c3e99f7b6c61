from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(load_file: Callable[[Path], ModuleType]) -> Callable[[str], ModuleType]:
    """Import a file of examples/ by name."""
    return lambda name: load_file(EXAMPLES / f"{name}.py")
