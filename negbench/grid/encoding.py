"""Filling the feature store ahead of the runs: what is missing, how large it will be, how fast it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from negbench.config import ResolvedConfig, RunConfig
from negbench.contracts import Backbone, HoldsFeatures
from negbench.data.features import EncodeReport, FeatureStore, encoding_estimate, store_of
from negbench.data.scene import Scenes, device_of, files_of, load_backbone, load_split
from negbench.display import Display
from negbench.errors import NegbenchError, OptionError
from negbench.executors import Executor, Report
from negbench.grid.cells import SCENES, Cell
from negbench.loop.runs import open_run, plan_run
from negbench.registry import registry

_PARTS = 4  # for each worker, so that none waits long for the last one
_PART_IMAGES = 50_000  # at most: minutes of a GPU, against which loading the backbone is little


@dataclass(frozen=True)
class EncodingPlan:
    """What `negbench data encode` is about to do.

    Attributes:
        images: distinct ids of the splits.
        missing: of them, distinct contents that the store lacks.
        bytes: what those will take on disk.
        store: where they go.
    """

    images: int
    missing: int
    bytes: int
    store: FeatureStore


def encode(
    config: ResolvedConfig,
    splits: Sequence[str],
    executor: Executor,
    *,
    planned: Callable[[EncodingPlan], None],
    progress: Callable[[int], None],
) -> EncodeReport:
    """Store the features of every image of some splits of the configured data set under the configured backbone.

    Args:
        config: its strategy, loss and schedule play no part.
        splits: e.g. ("train", "val").
        executor: other machines encode a part each; this one encodes in this process.
        planned: called once, before anything is encoded.
        progress: called with the number of images done.

    Raises:
        OptionError: a backbone whose image tower trains, or which brings its own features: nothing is stored then.
        DataError: missing or unreadable images.
    """
    backbone = load_backbone(config.backbone, config.seed)
    if not stores_features(backbone):
        raise OptionError(f"backbone '{config.backbone.name}' with these options stores no features: nothing to encode")
    if not executor.elsewhere:
        backbone.to(device_of(config))
    parts = [load_split(config.dataset, split) for split in splits]
    files = {image: part.files.path(image) for part in parts for image in part.all_images if part.files}
    store = store_of(backbone)
    missing = store.missing(files)
    size = encoding_estimate(len(missing), *store.shape)
    planned(EncodingPlan(len(files), len(missing), size, store))
    if executor.elsewhere:
        return _spread(config, store, files, executor, progress)
    return _ensure(Part(config, files), store, backbone, progress)


def stores_features(backbone: Backbone) -> bool:
    """Whether its image features go into the store: not those of a tower that trains, nor those that it brings."""
    return backbone.frozen_images and not isinstance(backbone, HoldsFeatures)


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
    """Encode what the feature store lacks for a run, before several workers ask for it at once."""
    if not executor.elsewhere:
        open_run(config, display, scenes)
        return
    planned = plan_run(config, scenes)
    backbone = scenes.backbone(planned.config)
    if stores_features(backbone):
        files = files_of(planned.splits.parts)
        with display.stage("encode", total=len(files)) as advance:
            _spread(planned.config, store_of(backbone), files, executor, advance)


# --- on other machines ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Images that a worker encodes: id -> file, under the backbone of a configuration; picklable."""

    config: ResolvedConfig
    files: Mapping[str, Path]


def encode_part(part: Part, report: Report) -> EncodeReport:
    """Encode a part beside others; another process holds the store's lock for all of them."""
    for path in part.config.plugins:
        registry.add_file(Path(path))
    backbone = SCENES.backbone(part.config).to(device_of(part.config))
    return _ensure(part, store_of(backbone), backbone, lambda count: None, among_others=True)


def _ensure(
    part: Part,
    store: FeatureStore,
    backbone: Backbone,
    progress: Callable[[int], None],
    *,
    among_others: bool = False,
) -> EncodeReport:
    compute = part.config.compute
    return store.ensure(
        part.files,
        backbone,
        device=device_of(part.config),
        batch_size=compute.encode_batch_size,
        workers=compute.workers,
        progress=progress,
        among_others=among_others,
    )


def _spread(
    config: ResolvedConfig,
    store: FeatureStore,
    files: Mapping[str, Path],
    executor: Executor,
    progress: Callable[[int], None],
) -> EncodeReport:
    """Have what the store lacks encoded by the workers of an executor.

    Raises:
        NegbenchError: images that cannot be read, a full disk; what could be encoded is stored first.
    """
    started = time.perf_counter()
    if store.missing(files):
        with store.writing():
            missing = store.missing(files)  # by now
            progress(len(files) - len(missing))
            size = max(1, min(_PART_IMAGES, -(-len(missing) // (_PARTS * executor.workers))))
            batches = [missing[start : start + size] for start in range(0, len(missing), size)]
            parts = [Part(config, {image: files[image] for image in batch}) for batch in batches]
            errors = list[str]()
            for event in executor.run(encode_part, parts):
                if event.kind == "failed":
                    errors.append(event.value)
                if event.kind != "note":
                    progress(len(parts[event.index].files))
        if errors:
            more = f" (and {len(errors) - 1} more parts failed)" if len(errors) > 1 else ""
            raise NegbenchError(f"{errors[0]}{more}")
    else:
        missing = []
        progress(len(files))
    seconds = time.perf_counter() - started
    return EncodeReport(
        encoded=len(missing),
        reused=len(files) - len(missing),
        seconds=seconds,
        images_per_second=len(missing) / seconds if missing else 0.0,
        bytes=len(missing) * store.image_bytes,
    )
