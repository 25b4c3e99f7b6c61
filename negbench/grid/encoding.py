"""Filling the feature store ahead of the runs."""

from __future__ import annotations

from collections.abc import Sequence

from negbench.contracts import HoldsFeatures
from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.grid.cells import Cell
from negbench.grid.executors import Executor
from negbench.loop.runs import open_run
from negbench.plugins.registry import registry
from negbench.settings.config import RunConfig


def encode_cells(cells: Sequence[Cell], executor: Executor, display: Display, scenes: Scenes) -> None:
    """Encode the images that the feature store lacks, once for each data set and frozen backbone of the cells.

    Raises:
        NegbenchError: images that cannot be read, a full disk.
    """
    first: dict[str, Cell] = {}
    for cell in cells:  # one that brings its features stores none: it is tried with one world of each kind
        brings = issubclass(registry.get("backbones", cell.config.backbone.name), HoldsFeatures)
        first.setdefault(f"{cell.labels['backbone']} {cell.labels['dataset']}" if brings else cell.data, cell)
    for cell in first.values():
        encode_run(cell.config, executor, display, scenes)


def encode_run(config: RunConfig, executor: Executor, display: Display, scenes: Scenes) -> None:
    """Encode what the feature store lacks for a run, before several workers ask for it at once.

    Where workers are on other machines the first that asks encodes there, and the others wait for the store's lock.
    """
    if not executor.elsewhere:
        open_run(config, display, scenes)
