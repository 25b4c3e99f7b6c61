"""Filling the feature store ahead of the runs: what is missing, how large it will be, how fast it goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from negbench.config import ResolvedConfig
from negbench.errors import OptionError
from negbench.features.store import EncodeReport, FeatureStore, encoding_estimate, store_of
from negbench.scene import load_backbone, load_split


@dataclass(frozen=True)
class EncodingPlan:
    """What `negbench encode` is about to do.

    Attributes:
        images: distinct ids of the splits.
        missing: of them, distinct contents that the store lacks.
        bytes: what those will take on disk.
        store: where they go.
        damaged: shards that were thrown away because they do not match their checksum; only looked for when asked to.
    """

    images: int
    missing: int
    bytes: int
    store: FeatureStore
    damaged: int


def encode(
    config: ResolvedConfig,
    splits: Sequence[str],
    device: torch.device,
    *,
    verify: bool = False,
    planned: Callable[[EncodingPlan], None],
    progress: Callable[[int], None],
) -> EncodeReport:
    """Store the features of every image of some splits of the configured data set under the configured backbone.

    Args:
        config: its strategy, loss and schedule play no part.
        splits: e.g. ("train", "val").
        device: where the backbone runs.
        verify: read every shard first, and encode those anew that do not match their checksum.
        planned: called once, before anything is encoded.
        progress: called with the number of images done.

    Raises:
        OptionError: a backbone whose image tower trains, or which brings its own features: nothing is stored then.
        DataError: missing or unreadable images.
    """
    backbone = load_backbone(config.backbone, config.seed).to(device)
    if not backbone.frozen_images or backbone.provides_features:
        raise OptionError(f"backbone '{config.backbone.name}' with these options stores no features: nothing to encode")
    parts = [load_split(config.dataset, split) for split in splits]
    files = {image: part.files.path(image) for part in parts for image in part.all_images if part.files}
    store = store_of(backbone)
    damaged = len(store.verify()) if verify else 0
    missing = store.missing(files)
    size = encoding_estimate(len(missing), *store.shape, store.dtype)
    planned(EncodingPlan(len(files), len(missing), size, store, damaged))
    return store.ensure(
        files,
        backbone,
        device=device,
        batch_size=config.compute.encode_batch_size,
        workers=config.compute.workers,
        progress=progress,
    )
