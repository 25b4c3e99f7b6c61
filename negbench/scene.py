"""What the runs of a comparison share: the data set's splits, the stored image features, the tokenised texts.

A scene depends on the data set and on the backbone's frozen part, never on a strategy, a loss or a seed. Images are
encoded once per (frozen weights, preprocessing, image set).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from negbench.config import PluginConfig, RunConfig
from negbench.contracts import Backbone
from negbench.datasets.dataset import Dataset
from negbench.errors import DataError, NegbenchError
from negbench.loop.hybrid import check_hybrid
from negbench.registry import checked_options, constructor_of, option_defaults, registry

if TYPE_CHECKING:
    from negbench.display import Display

Tokens = dict[str, Tensor]
FeatureSource = Callable[[Tensor], Tensor]  # int64 rows -> [len, L, C] features (or pixels where nothing is stored)


@dataclass(frozen=True, eq=False)
class Split:
    """A data set with, for its images and queries, where their features lie and what their texts tokenise to.

    Attributes:
        dataset: queries and images.
        images: [N] int64 feature row of each of `dataset.images`.
        references: [Q] int64 feature row of each query's reference image.
        tokens: tokenised `query.text`, first dimension Q.
    """

    dataset: Dataset
    images: Tensor
    references: Tensor
    tokens: Tokens


@dataclass(frozen=True, eq=False)
class Features:
    """Where image features come from."""

    source: FeatureSource
    frozen: bool
    encoded: int  # images encoded just now; 0 when all were in the store

    def features(self, backbone: Backbone, rows: Tensor) -> Tensor:
        """[len, L, C] of these rows' images: stored, or computed now (with gradients) by a fine-tuned backbone."""
        stored = self.source(rows)
        return stored if self.frozen else backbone.image_features(stored)


@dataclass(frozen=True, eq=False)
class Scene(Features):
    """Splits and features. `val` is the reported split; `dev` is carved from train when a choice is made on it.

    Where the reported split is kept closed (`eval.reported` false), `val` is the dev part itself.
    """

    train: Split
    val: Split
    dev: Split | None
    backbone_key: str
    seconds: float

    @property
    def scored(self) -> str:
        """What `val` is, for the names of metrics: "val", or "dev" where the reported split is kept closed."""
        return "dev" if self.val is self.dev else "val"

    @property
    def identity(self) -> str:
        """Data and frozen backbone, for a run's hash."""
        return f"{self.train.dataset.identity} {self.val.dataset.identity} {self.backbone_key}"


def load_backbone(config: PluginConfig, seed: int) -> Backbone:
    """Backbone with the initial weights of `seed` (where it has any that are not loaded)."""
    cls = registry.get("backbones", config.name)
    constructor = constructor_of("backbones", cls)
    options = checked_options("backbones", config.name, constructor, config.options)
    if "seed" in option_defaults(constructor):
        options["seed"] = seed
    backbone: Backbone = constructor(**options)
    return backbone


def load_split(config: PluginConfig, split: str, *, images: bool = True) -> Dataset:
    """One split of the configured data set."""
    constructor = constructor_of("datasets", registry.get("datasets", config.name))
    options = checked_options("datasets", config.name, constructor, config.options)
    dataset: Dataset = constructor(**options, split=split, images=images)
    return dataset


def prepare(config: RunConfig, backbone: Backbone, device: torch.device, display: Display) -> Scene:
    """Load the splits, encode what the store lacks, tokenise.

    Args:
        config: resolved.
        backbone: any instance with the configured frozen part, on `device`.
        device: where features go when they fit.
        display: shows the stage.

    Raises:
        DataError: missing files or images, a train split without targets, or without texts that `hybrid` needs.
    """
    started = time.perf_counter()
    provided = backbone.provides_features
    train = load_split(config.dataset, "train", images=not provided)
    if any(query.target is None for query in train.queries):
        raise DataError(f"{train.identity}: split train has queries without a target: nothing to train on")
    check_hybrid(config.hybrid, backbone, train)
    dev = None
    if carves_dev(config):
        train, dev = train.split_dev(config.eval.dev_fraction, dev_seed(config))
    reported = config.eval.reported or dev is None
    val = load_split(config.dataset, "val", images=not provided) if reported else dev
    assert val is not None
    parts = list({id(part): part for part in (train, dev, val) if part is not None}.values())
    ids = list(dict.fromkeys(image for part in parts for image in part.all_images))
    source, encoded = _source(config, backbone, ids, parts, device, display)
    row = {image: index for index, image in enumerate(ids)}
    splits = {id(part): split_of(part, backbone, row) for part in parts}
    return Scene(
        train=splits[id(train)],
        val=splits[id(val)],
        dev=splits[id(dev)] if dev is not None else None,
        source=source,
        frozen=backbone.frozen_images,
        backbone_key=backbone.feature_key,
        seconds=time.perf_counter() - started,
        encoded=encoded,
    )


def carves_dev(config: RunConfig) -> bool:
    """Whether a part of train is set aside for choices."""
    return config.eval.select == "dev" or not config.eval.reported


def dev_seed(config: RunConfig) -> int:
    """Seed of the carving: `eval.dev_seed`, or the run's own."""
    return config.seed if config.eval.dev_seed is None else config.eval.dev_seed


def prepare_split(
    config: RunConfig, dataset: Dataset, backbone: Backbone, device: torch.device, display: Display
) -> tuple[Split, Features]:
    """One loaded split with its features, for scoring without training; `config.compute` says how to encode.

    Raises as `prepare` does.
    """
    ids = dataset.all_images
    source, encoded = _source(config, backbone, ids, [dataset], device, display)
    split = split_of(dataset, backbone, {image: index for index, image in enumerate(ids)})
    return split, Features(source, backbone.frozen_images, encoded)


def split_of(dataset: Dataset, backbone: Backbone, row: dict[str, int]) -> Split:
    """`dataset` with feature rows and tokens."""
    return Split(
        dataset=dataset,
        images=torch.tensor([row[image] for image in dataset.images], dtype=torch.int64),
        references=torch.tensor([row[query.reference] for query in dataset.queries], dtype=torch.int64),
        tokens=backbone.tokenize([query.text for query in dataset.queries]),
    )


def _source(
    config: RunConfig,
    backbone: Backbone,
    ids: Sequence[str],
    parts: Sequence[Dataset],
    device: torch.device,
    display: Display,
) -> tuple[FeatureSource, int]:
    """Where features come from, and how many images were encoded for it."""
    from negbench.features import store as features

    if backbone.provides_features:
        table = backbone.features_of(ids).to(device)
        return lambda rows: table[rows.to(table.device)], 0
    files = {image: part.files.path(image) for part in reversed(parts) for image in part.all_images if part.files}
    if not backbone.frozen_images:
        pixels = features.PixelSource([files[image] for image in ids], backbone, device=device)
        return pixels.__getitem__, 0
    store = features.store_of(backbone)
    with display.stage("encode", total=len(ids)) as advance:
        report = store.ensure(
            {image: files[image] for image in ids},
            backbone,
            device=device,
            batch_size=config.compute.encode_batch_size,
            workers=config.compute.workers,
            progress=advance,
        )
    held = store.load(ids, device=device, budget_bytes=int(config.compute.feature_memory_gib * 2**30))
    return held.__getitem__, report.encoded


def batches(count: int, size: int) -> Iterator[Tensor]:
    """Index tensors 0..count-1 in order, `size` at a time."""
    yield from torch.arange(count).split(size)


def device_of(config: RunConfig) -> torch.device:
    """Where `compute.device` puts a run: a CUDA device where there is one, unless it says cpu."""
    wanted, has = config.compute.device, torch.cuda.is_available()
    if wanted == "cuda" and not has:
        raise NegbenchError("compute.device = 'cuda', but this machine has no CUDA device: --set compute.device=cpu")
    return torch.device("cuda" if has and wanted != "cpu" else "cpu")


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Threads of linear algebra within the block: the last bits of a sum can depend on them."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
