"""Put the helper kills.py, which lies beside these tests, on the path."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def features(toy_root: Path) -> Callable[..., tuple[Any, dict[str, Path]]]:
    """Return a function that opens a feature store, fills it unless told not to, and returns it with its images."""
    from negbench.data.features import store_of
    from negbench.files.image_files import EXTENSIONS
    from negbench.plugins.registry import registry

    backbone = registry.make("backbones", "tiny", weights="random")
    paths = sorted(path for path in toy_root.rglob("*") if path.suffix in EXTENSIONS)

    def open_store(root: Path, count: int, *, fill: bool = True) -> tuple[Any, dict[str, Path]]:
        images = {path.stem: path for path in paths[:count]}
        store = store_of(backbone, root=root)
        if fill:
            store.ensure(images, backbone)
        return store, images

    return open_store
