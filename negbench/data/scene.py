"""Data shared by a grid's runs: splits, stored features, tokenised texts, backbones; and the negatives allowed.

This file alone decides how a split is carved and which images or batch members are allowed as negatives, for
run, plan, audit, report and study alike. A scene depends on the data set and on the backbone's frozen part, never on a
strategy or a loss. Images are encoded once per (frozen weights, preprocessing, image set).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from negbench.contracts import Backbone, FreezesTexts, HoldsFeatures, Outline, Outlines, Slot
from negbench.data.batch_size import EMBED_BATCH, batch_size, largest_operation
from negbench.data.images import check_pictures, reads_pixels, with_features
from negbench.data.reading import PictureSource, RowsInMemory, RowSource, read_ahead
from negbench.data.unseen import unseen_texts
from negbench.datasets.dataset import Dataset
from negbench.datasets.varied_captions import check_captions, with_drawn_texts
from negbench.datasets.wrong_triplets import with_wrong_triplets
from negbench.errors import DataError, NegbenchError, OptionError, WeightsError
from negbench.files.reader import note_files
from negbench.machine.contents import content_hashes, digest, files_named_in, stamp
from negbench.machine.files import cache_dir
from negbench.machine.room import Need, check_memory
from negbench.machine.team import ALONE, Team
from negbench.metrics.parts import put
from negbench.metrics.ragged import Ragged
from negbench.plugins.registry import make_options, registry
from negbench.settings.config import MiningConfig, PluginConfig, ResolvedConfig, RunConfig

if TYPE_CHECKING:
    from negbench.display import Display

_KEPT_BYTES = 2**30  # limit for backbones that are not in use, and for a split's frozen texts
_KEPT_SPLITS = 64  # a generated data set has two for each seed

Tokens = dict[str, Tensor]
T = TypeVar("T")
FeatureSource = Callable[[Tensor], Tensor]  # int64 rows -> [len, L, C] features (or pixels where nothing is stored)


# --- splits ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Splits:
    """The data sets of a run. `dev` is there if an epoch is selected on it or val must not be read (`eval.dev`).

    If the reported split must not be read (`eval.reported` false), `val` is the dev part itself. `also`: `eval.also`.
    """

    train: Dataset
    dev: Dataset | None
    val: Dataset
    also: Dataset | None = None

    @property
    def parts(self) -> list[Dataset]:
        """All of them, each once."""
        every = (self.train, self.dev, self.val, self.also)
        return list({id(part): part for part in every if part is not None}.values())

    @property
    def identity(self) -> str:
        """Identities of the trained and the scored splits, for a run's hash."""
        return " ".join(part.identity for part in (self.train, self.val, self.also) if part is not None)

    def pictures(self) -> str:
        """Return a digest of the image files' contents as they are now; empty for splits loaded without images."""
        return digest(_image_paths(self.parts), cache_dir())


def _image_paths(parts: Iterable[Dataset]) -> dict[str, Path]:
    """Return image id -> file over some data sets."""
    paths: dict[str, Path] = {}
    for part in parts:
        paths |= part.image_paths()
    return paths


def needs_dev(config: RunConfig) -> bool:
    """Whether a run has a dev part, carved from train or generated."""
    return config.eval.select == "dev" or not config.eval.reported


# --- a split as a backbone reads it --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Split:
    """A data set with the feature rows of its images and references, and its tokenised texts.

    Attributes:
        dataset: queries and images.
        images: [N] int64 feature row of each of `dataset.images`.
        references: [Q] int64 feature row of each query's reference image.
        tokens: tokenised `query.text`, first dimension Q.
        mined: by exclusions, what mining keeps between refreshes: it depends on these and the data alone.
    """

    dataset: Dataset
    images: Tensor
    references: Tensor
    tokens: Tokens
    mined: dict[Hashable, dict[str, Tensor]] = field(default_factory=dict, init=False, repr=False)
    _texts: list[Tokens] = field(default_factory=list, init=False, repr=False)
    _excluded: dict[tuple[bool, ...], Ragged | None] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def text_number(self) -> Tensor:
        """[Q, K] int64, one number per token tensor: two rows are equal if their texts tokenise alike."""
        numbers = []
        for value in self.tokens.values():
            _, number = torch.unique(value.reshape(len(value), -1), dim=0, return_inverse=True)
            numbers.append(number)
        return torch.stack(numbers, dim=1)

    def texts(self, backbone: Backbone) -> Tokens:
        """Return `frozen_texts` of `tokens`, computed with the first backbone that asks."""
        if not self._texts:
            self._texts.append(frozen_texts(backbone, self.tokens))
        return self._texts[0]

    def excluded_columns(self, mining: MiningConfig) -> Ragged | None:
        """Return Q rows of columns that the run never draws, besides the target; None if nothing is excluded."""
        dataset = self.dataset
        if not (mining.exclude_reference or mining.exclude_relevant or mining.exclude_subset):
            return None
        answers = dataset.answers if mining.exclude_relevant else None
        references = dataset.reference_columns.tolist()
        rows: list[list[int]] = []
        for number, query in enumerate(dataset.queries):
            columns: list[int] = []
            if answers is not None:
                columns += answers.row(number).tolist()
            if mining.exclude_reference and references[number] >= 0:
                columns.append(references[number])
            if mining.exclude_subset:
                columns += [dataset.column_of[image] for image in query.subset if image in dataset.column_of]
            rows.append(columns)
        return Ragged.of(rows)

    def batch_allowed(self, slot: Slot, rows: Tensor, mining: MiningConfig) -> Tensor:
        """Return [B, B] bool: which members of a batch may corrupt `slot`; not those that leave the triple unchanged.

        For "triple": [B, B, B] bool, which (r_a, m_b, t_c) are negatives; a query's own triple is not.

        Args:
            slot: the corrupted member.
            rows: [B] int64 queries of the batch.
            mining: what else the run excludes; affects targets only.
        """
        if slot == "reference":
            member = self.references[rows]
            return member[:, None] != member[None, :]
        if slot == "modification":
            number = self.text_number[rows]
            return (number[:, None] != number[None, :]).any(-1)
        targets = self.dataset.target_columns[rows]
        if slot in ("target", "query"):
            allowed = self.allowed_images(rows, targets, mining)
            return allowed if slot == "target" else allowed.T
        with_references = mining.model_copy(update={"exclude_reference": False})
        allowed = allowed_triples(
            reference=~self.batch_allowed("reference", rows, with_references),
            modification=~self.batch_allowed("modification", rows, with_references),
            target=~self.batch_allowed("target", rows, with_references),
        )
        if mining.exclude_reference:
            allowed &= (self.references[rows][:, None] != self.images[targets][None, :])[:, None]
        return allowed

    def allowed_images(self, rows: Tensor, columns: Tensor, mining: MiningConfig) -> Tensor:
        """Return [B, C] bool: whether image `columns[c]` may be a negative of query `rows[i]`."""
        allowed = self.dataset.target_columns[rows][:, None] != columns[None, :]
        key = (mining.exclude_reference, mining.exclude_relevant, mining.exclude_subset)
        if key not in self._excluded:
            self._excluded[key] = self.excluded_columns(mining)
        excluded = self._excluded[key]
        if excluded is not None:
            allowed &= ~excluded.among(rows, columns, len(self.dataset.images))
        return allowed

    def relevant_images(self, rows: Tensor, columns: Tensor) -> Tensor | None:
        """Return [B, C] bool: whether `columns[c]` is known to be relevant to query `rows[i]`; None if unknown."""
        answers = self.dataset.answers
        return None if answers is None else answers.among(rows, columns, len(self.dataset.images))


def allowed_triples(reference: Tensor, modification: Tensor, target: Tensor) -> Tensor:
    """Return which triples of a batch are negatives: all that differ from every query's own.

    Args:
        reference: [B, B] bool, whether two queries have the same reference.
        modification: [B, B] bool, the same for their modifications.
        target: [B, B] bool, whether column c answers query j: its target, or an image that must not be a negative.

    Returns:
        [B, B, B] bool for (r_a, m_b, t_c).
    """
    count = len(reference)
    pair_of_query = (reference[:, None] & modification[None]).reshape(
        count * count, count
    )  # (a, b) are those of query j
    answers = pair_of_query.float() @ target.float()
    return (answers == 0).reshape(count, count, count)


@torch.inference_mode(False)  # training uses these tensors too, whoever asks first
@torch.no_grad()
def frozen_texts(backbone: Backbone, tokens: Tokens) -> Tokens:
    """Return the backbone's `frozen_text` of texts, on the CPU; the tokens themselves if that exceeds a gibibyte."""
    if not isinstance(backbone, FreezesTexts):
        return tokens
    tables = Tokens()
    count = len(next(iter(tokens.values())))
    device = backbone.device

    def freeze(some: Tensor) -> Tokens:
        return backbone.frozen_text({name: value[some].to(device) for name, value in tokens.items()})

    with backbone.evaluating():
        largest = largest_operation(lambda items: freeze(torch.arange(items) % count))
        for rows in batches(count, batch_size(EMBED_BATCH, largest)):
            frozen = freeze(rows)
            bytes_per_text = sum(value[0].nbytes for value in frozen.values())
            if frozen.keys() == tokens.keys() or bytes_per_text * count > _KEPT_BYTES:
                return tokens
            part = {}
            for name, value in frozen.items():
                part[name] = (value.float() if value.is_floating_point() else value).cpu()
            put(tables, part, rows, count)
    return tables


@dataclass(frozen=True, eq=False)
class Features:
    """Source of image features."""

    source: RowSource
    frozen: bool
    encoded: int  # images encoded just now; 0 when all were in the store
    team: Team = field(default=ALONE, kw_only=True)  # the processes that embed
    _at_once: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def at_once(self, what: str, compute: Callable[[Tensor], Tensor], count: int) -> int:
        """Return how many items are computed at once (`batch_size`), measured once a scene for each of `what`.

        Args:
            what: a name for the computation.
            compute: called with one and with two int64 positions below `count`.
            count: how many items there are.
        """
        if what not in self._at_once:
            largest = largest_operation(lambda items: compute(torch.arange(items) % count))
            self._at_once[what] = batch_size(EMBED_BATCH, largest)
        return self._at_once[what]

    def features(self, backbone: Backbone, rows: Tensor) -> Tensor:
        """Return [len, L, C] features of these rows: stored, or computed now (with gradients) if fine-tuned."""
        values = self.source(rows)
        return values if self.frozen else backbone.image_features(values)

    def blocks(self, backbone: Backbone, rows: Tensor, positions: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each block of int64 positions among rows, and its `features`; the next ones are read meanwhile."""
        for block in read_ahead(self.source, positions, lambda block: [rows[block]]):
            yield block, self.features(backbone, rows[block])


@dataclass(frozen=True, eq=False)
class EncodedSplits(Features):
    """Splits and features: `Splits` as one backbone reads them."""

    train: Split
    val: Split
    dev: Split | None
    also: Split | None
    row_of: Mapping[str, int]  # image id -> feature row, one for pictures that are equal byte for byte
    untrained: dict[Hashable, Any] = field(default_factory=dict)  # results of the initial weights, which runs share
    unseen: tuple[str, ...] = ()  # a line if the backbone cannot tell texts apart

    def at_epoch(self, backbone: Backbone, epoch: int, config: RunConfig) -> EncodedSplits:
        """Return the scene with one epoch's train split, itself if that split is unchanged.

        Args:
            backbone: tokenises its texts.
            epoch: whose queries (`Dataset.at_epoch`) and texts (`train.vary_captions`) are drawn.
            config: the run's, with its seed.
        """
        dataset = self.train.dataset.at_epoch(epoch, config.seed)
        if config.train.vary_captions:
            dataset = with_drawn_texts(dataset, epoch, config.seed)
        if dataset is self.train.dataset:
            return self
        return replace(self, train=_split_of(dataset, backbone, self.row_of))

    @property
    def scored_split(self) -> str:
        """Name of the scored split in metric names: "val", or "dev" if the reported split must not be read."""
        return "dev" if self.val is self.dev else "val"


def open_scene(
    config: RunConfig, splits: Splits, backbone: Backbone, device: torch.device, display: Display
) -> EncodedSplits:
    """Open a scene: encode images that the feature store lacks, and tokenise texts.

    Args:
        config: `compute` says how to encode.
        splits: from `DataCache.splits`, or one split in all roles.
        backbone: any instance with the configured frozen part, on `device`.
        device: holds the features if they fit.
        display: shows the stage.

    Raises:
        DataError: missing images.
    """
    file = _image_paths(splits.parts)
    check_pictures(splits.parts, splits.also)
    stamps = {image: stamp(path) for image, path in file.items()}
    contents = {} if isinstance(backbone, HoldsFeatures) else content_hashes(file, cache_dir())
    row: dict[str, int] = {}
    row_of_content: dict[str | bytes, int] = {}  # equal pictures share a row
    for part in splits.parts:
        for image in part.all_images:
            row[image] = row_of_content.setdefault(contents.get(image, image), len(row_of_content))
    ids = list({index: image for image, index in row.items()}.values())
    source: RowSource
    if isinstance(backbone, HoldsFeatures) or backbone.frozen_images:
        source, encoded = _store_features(config, backbone, ids, file, device, display)
    else:
        source = PictureSource(backbone, {image: file[image] for image in ids}, contents, stamps, device)
        source.workers = config.compute.workers
        encoded = 0
    split_of_part = {id(part): _split_of(part, backbone, row) for part in splits.parts}
    return EncodedSplits(
        source=source,
        frozen=backbone.frozen_images,
        encoded=encoded,
        train=split_of_part[id(splits.train)],
        val=split_of_part[id(splits.val)],
        dev=split_of_part[id(splits.dev)] if splits.dev is not None else None,
        also=split_of_part[id(splits.also)] if splits.also is not None else None,
        row_of=row,
        unseen=tuple(unseen_texts(backbone, splits.parts)),
    )


def _split_of(dataset: Dataset, backbone: Backbone, row: Mapping[str, int]) -> Split:
    """Return a data set as a backbone reads it; `row` is the feature row of each image id."""
    images = torch.tensor([row[image] for image in dataset.images], dtype=torch.int64)
    references = torch.tensor([row[query.reference] for query in dataset.queries], dtype=torch.int64)
    tokens = backbone.tokenize([query.text for query in dataset.queries])
    return Split(dataset, images, references, tokens)


def _store_features(
    config: RunConfig, backbone: Backbone, ids: list[str], file: dict[str, Path], device: torch.device, display: Display
) -> tuple[RowSource, int]:
    """Return the source of features, and how many images were encoded for it."""
    from negbench.data import features

    if isinstance(backbone, HoldsFeatures):
        return RowsInMemory(backbone.features_of(ids).to(device)), 0
    store = features.store_of(backbone)
    budget = None
    if config.compute.feature_memory_gib is not None:
        budget = int(config.compute.feature_memory_gib * 2**30)
        held_bytes = min(len(ids) * store.image_bytes, budget)
        smaller = f"--set compute.feature_memory_gib={held_bytes / 4 / 2**30:.2g}, or leave it out"
        check_memory([Need("features held in memory", ((held_bytes, "bytes"),), smaller)], device)
    with display.stage("encode", total=len(ids)) as advance:
        encoded = store.ensure(
            {image: file[image] for image in ids},
            backbone,
            device=device,
            workers=config.compute.workers,
            progress=advance,
        )
    return store.load(ids, device, budget, config.compute.workers), encoded


# --- what a process loads once -------------------------------------------------------------------------------------


class DataCache:
    """Data sets, backbones and encoded splits of this process: each loaded once, however many runs use it.

    It keeps the last 64 splits, the backbones that fit into a gibibyte (always the last one), and the last scene. Runs
    with the same backbone and seed share one object: `backbone` resets it to its initial weights, so the previous run
    must be done with it.
    """

    def __init__(self) -> None:
        self._datasets: dict[str, tuple[Dataset, dict[Path, tuple[int, ...]]]] = {}  # with the stamps of their files
        self._carved: dict[str, tuple[Dataset, Dataset]] = {}
        self._altered: dict[str, Dataset] = {}
        self._reduced: dict[str, Dataset] = {}
        self._backbones: dict[str, tuple[Backbone, dict[str, Tensor]]] = {}
        self._outlines: dict[str, Outline] = {}
        self._scene: tuple[str, EncodedSplits] | None = None
        self._lacking: dict[str, str] | None = None

    def clear(self) -> None:
        """Drop everything."""
        for cache in (self._datasets, self._carved, self._altered, self._reduced, self._backbones, self._outlines):
            cache.clear()
        self._scene = None

    @contextmanager
    def lenient(self) -> Iterator[dict[str, str]]:
        """In this block, plan although weights or pictures are missing; yields what is missing -> its error."""
        self._lacking = lacking = dict[str, str]()
        try:
            yield lacking
        finally:
            self._lacking = None
            if lacking:
                self.clear()

    def _lenient(self, part: str, make: Callable[[], T], without: Callable[[], T]) -> T:
        """Return what `make` returns; in a block of `lenient`, what `without` returns if `make` fails."""
        if self._lacking is None:
            return make()
        if part not in self._lacking:
            try:
                return make()
            except (DataError, WeightsError) as error:
                self._lacking[part] = str(error)
        return without()

    def dataset(self, section: PluginConfig, split: str, *, images: bool = True) -> Dataset:
        """Return one split of a data set; only annotations without `images`. Changed annotations are read again."""
        return self._lenient(
            f"images of {section.name}",
            lambda: self._find_dataset(section, split, images),
            lambda: self._find_dataset(section, split, False),
        )

    def _find_dataset(self, section: PluginConfig, split: str, images: bool) -> Dataset:
        """Return a split from the cache; load it if it is not there, or if its files have changed."""
        key = f"{_plugin_key('datasets', section)} {split} {images}"
        if key in self._datasets:
            _, stamps = self._datasets[key]
            if any(stamp(path) != then for path, then in stamps.items()):
                del self._datasets[key]

        def load() -> tuple[Dataset, dict[Path, tuple[int, ...]]]:
            with note_files() as files:
                return load_split(section, split, images=images), files

        dataset, _ = _find_or_make(self._datasets, key, load)
        return dataset

    def outline(self, config: RunConfig) -> Outline:
        """Return what planning needs of the backbone; load it only if its class has no `outline`.

        Raises:
            NegbenchError: options are out of range, or weights are missing.
        """
        key = _key_of(config)
        name = config.backbone.name
        if key not in self._outlines:
            cls = registry.get("backbones", name)
            if not issubclass(cls, Outlines):
                return self._outlines.setdefault(key, Outline.of(self.backbone(config)))
            options = make_options(cls, config.backbone.options, name)
            part = f"weights of {config.backbone.model_dump_json()}"
            outline = self._lenient(part, lambda: cls.outline(options, config.seed), lambda: Outline(cls, name))
            hashes = content_hashes({str(file): file for file in outline.files}, cache_dir())
            files = [content.hex() for content in hashes.values()]
            self._outlines[key] = replace(outline, settings={**outline.settings, "files": files})
        return self._outlines[key]

    def files(self, config: ResolvedConfig) -> Iterator[Path]:
        """Yield the files that a run's data sets and backbone were read from."""
        sections = tuple(_plugin_key("datasets", section) for section in (config.dataset, config.eval.also) if section)
        for key, (dataset, stamps) in list(self._datasets.items()):
            if key.startswith(sections):
                yield from stamps
                yield from dataset.image_paths().values()
        yield from (*files_named_in(config.backbone.options.values()), *self.outline(config).files)

    def splits(self, config: ResolvedConfig) -> Splits:
        """Return train, dev and val of a run, with image files if one of its backbones needs pixels.

        Raises:
            DataError: files are missing, or train queries have no targets.
        """
        images = reads_pixels(config)
        train = self._with_features(config, "train", images)
        if any(query.target is None for query in train.queries):
            raise DataError(f"{train.identity}: split train has queries without a target: nothing to train on")
        dev = None
        generated = config.eval.dev == "generated"
        if generated and not train.generates_dev:
            raise OptionError(f"eval.dev = 'generated': data set {config.dataset.name} cannot generate queries")
        if needs_dev(config) and generated:
            dev = self._with_features(config, "dev", images)
        elif needs_dev(config):
            train, dev = self._carve(config, train, images)
        if config.train.wrong > 0:
            train = self._with_wrong_triplets(config, train, images)
        if config.train.vary_captions:
            check_captions(train)
        if not config.eval.reported and dev is not None:
            return Splits(train, dev, dev)
        also = self.dataset(config.eval.also, "val", images=images) if config.eval.also else None
        return Splits(train, dev, self._with_features(config, "val", images), also)

    def _carve(self, config: ResolvedConfig, train: Dataset, images: bool) -> tuple[Dataset, Dataset]:
        """Return the train split without its dev part, and the dev part."""
        fraction = config.eval.dev_fraction
        seed = config.eval.dev_seed
        key = f"{_plugin_key('datasets', config.dataset)} {train.held_as} {images} {fraction} {seed}"
        return _find_or_make(self._carved, key, lambda: train.split_dev(fraction, seed))

    def _with_wrong_triplets(self, config: RunConfig, train: Dataset, images: bool) -> Dataset:
        """Return the train split with the share of wrong triplets that the run asks for."""
        wrong = (config.train.wrong, config.train.wrong_kind, config.seed)
        key = f"{train.held_as} {images} {wrong}"
        return _find_or_make(self._altered, key, lambda: with_wrong_triplets(train, *wrong))

    def _with_features(self, config: RunConfig, split: str, images: bool) -> Dataset:
        """Return a split; if images may be missing, without those that the backbone lists no features of."""
        dataset = self.dataset(config.dataset, split, images=images)
        key = _key_of(config)
        if images or not config.dataset.options.get("allow_missing"):
            return dataset
        if key in self._backbones:
            backbone, _ = self._backbones[key]  # not reset: a run may be using it
        else:
            backbone = self.backbone(config)
        return _find_or_make(
            self._reduced, f"{dataset.held_as} {key}", lambda: with_features(dataset, backbone, config)
        )

    def backbone(self, config: RunConfig) -> Backbone:
        """Return the backbone with the initial weights of the run's seed; the class says how long it is kept."""
        key = _key_of(config)
        if key not in self._backbones:
            while sum(_bytes_of(*entry) for entry in self._backbones.values()) > _KEPT_BYTES:
                del self._backbones[next(iter(self._backbones))]
            loaded = load_backbone(config.backbone, config.seed)
            if _key_of(config) != key:
                return self.backbone(config)  # a file changed meanwhile
            initial = {name: value.detach().clone() for name, value in trained_state(loaded).items()}
            self._backbones[key] = (loaded, initial)
        backbone, initial = self._backbones[key]
        backbone.load_state_dict(initial, strict=False)
        backbone.zero_grad(set_to_none=True)
        return backbone.eval()

    def scene(
        self, config: RunConfig, splits: Splits, backbone: Backbone, device: torch.device, display: Display
    ) -> EncodedSplits:
        """Return the scene of these splits; open it unless the last one fits."""
        parts = (*map(id, splits.parts), splits.pictures(), _key_of(config), backbone.stored_key, device)
        key = " ".join(map(str, parts))  # the backbone's options and files too: they may change how texts are tokenised
        if self._scene is None or self._scene[0] != key:
            self._scene = None  # two scenes may not fit into memory
            self._scene = (key, open_scene(config, splits, backbone, device, display))
        _, scene = self._scene
        scene.source.workers = config.compute.workers
        return scene


def _find_or_make(cache: dict[str, T], key: str, make: Callable[[], T]) -> T:
    """Return the value of a key, made if absent; drop the oldest of 64."""
    if key not in cache:
        while len(cache) >= _KEPT_SPLITS:
            del cache[next(iter(cache))]
        cache[key] = make()
    return cache[key]


def _bytes_of(backbone: Backbone, initial: dict[str, Tensor]) -> int:
    """Return the bytes of a backbone and of its initial weights."""
    return sum(tensor.nbytes for tensor in (*backbone.parameters(), *backbone.buffers(), *initial.values()))


def load_backbone(config: PluginConfig, seed: int) -> Backbone:
    """Load a backbone; weights that are not loaded are initialised from `seed`."""
    backbone: Backbone = registry.make("backbones", config.name, **config.options, seed=seed)
    return backbone


def _key_of(config: RunConfig) -> str:
    """Name a backbone with the stamps of the files that its options name."""
    stamps = files_named_in(config.backbone.options.values())
    return f"{_plugin_key('backbones', config.backbone)} {config.seed} {stamps}"


def _plugin_key(kind: str, plugin: PluginConfig) -> str:
    """Name a plug-in's options, and its class: a changed file is imported again."""
    return f"{plugin.model_dump_json()} {id(registry.get(kind, plugin.name))}"


def load_split(config: PluginConfig, split: str, *, images: bool = True) -> Dataset:
    """Load one split of the configured data set."""
    make_options(registry.get("datasets", config.name), config.options, config.name)  # split and images are ours
    dataset: Dataset = registry.make("datasets", config.name, **config.options, split=split, images=images)
    return dataset


def trained_state(backbone: Backbone) -> dict[str, Tensor]:
    """Return the trained parameters and the buffers: what differs between runs of one backbone."""
    state = {name: weight.detach() for name, weight in backbone.named_parameters() if weight.requires_grad}
    persistent = backbone.state_dict().keys()
    for name, buffer in backbone.named_buffers():
        if name in persistent:
            state[name] = buffer
    return state


# --- devices -------------------------------------------------------------------------------------------------------


def batches(count: int, size: int) -> Iterator[Tensor]:
    """Yield index tensors 0..count-1 in order, `size` at a time."""
    yield from torch.arange(count).split(size)


def device_of(config: RunConfig) -> torch.device:
    """Return the device of a run: CUDA if available, unless `compute.device` is cpu."""
    setting = config.compute.device
    has_cuda = torch.cuda.is_available()
    if setting == "cuda" and not has_cuda:
        raise NegbenchError("compute.device = 'cuda', but this machine has no CUDA device: --set compute.device=cpu")
    return torch.device("cuda" if has_cuda and setting != "cpu" else "cpu")


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the threads of linear algebra within the block: the last bits of a sum can depend on them."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
