"""Filling the feature store ahead of the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from negbench.config import ResolvedConfig, RunConfig
from negbench.contracts import HoldsFeatures
from negbench.data.features import EncodeReport, encoding_estimate, store_of
from negbench.data.scene import Scenes, device_of, load_backbone, load_split
from negbench.display import Display
from negbench.errors import OptionError
from negbench.executors import Executor
from negbench.grid.cells import Cell
from negbench.loop.runs import open_run
from negbench.registry import registry


def encode(
    config: ResolvedConfig,
    splits: Sequence[str],
    *,
    say: Callable[[str], None],
    progress: Callable[[int], None],
) -> EncodeReport:
    """Store the features of every image of some splits of the configured data set under the configured backbone.

    Args:
        config: its strategy, loss and schedule play no part.
        splits: e.g. ("train", "val").
        say: prints a line about what is about to be done.
        progress: called with the number of images done.

    Raises:
        OptionError: a backbone whose image tower trains, or which brings its own features: nothing is stored then.
        DataError: missing or unreadable images.
    """
    backbone = load_backbone(config.backbone, config.seed)
    if not backbone.frozen_images or isinstance(backbone, HoldsFeatures):
        raise OptionError(f"backbone '{config.backbone.name}' with these options stores no features: nothing to encode")
    backbone.to(device_of(config))
    parts = [load_split(config.dataset, split) for split in splits]
    files = {image: part.files.path(image) for part in parts for image in part.all_images if part.files}
    store = store_of(backbone)
    missing = len(store.missing(files))
    size = encoding_estimate(missing, *store.shape) / 2**20
    say(f"{len(files):,} images, {missing:,} to encode, {size:,.1f} MiB in {store.folder}")
    compute = config.compute
    return store.ensure(
        files,
        backbone,
        device=device_of(config),
        batch_size=compute.encode_batch_size,
        workers=compute.workers,
        progress=progress,
    )


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
