"""Frozen-image-feature store on disk: sharded, memory-mapped, half precision, keyed by content, shared by every run.

Layout, under `root` (NEGBENCH_CACHE or ~/.cache/negbench)::

    features/hashes.json               path, stamp and sha256 of each image file when it was last read
    features/KEY-128/00007-3f2a91c4.safetensors
    features/KEY-128/.lock             held by the one writer

KEY is the backbone's `feature_key`, 128 the images of an encoder batch. A shard holds `hashes`
[n, 32] uint8 (SHA-256 of the image files' bytes), `features` [n, L, C] and, as metadata, the SHA-256 of both. Shards
never change, and appear by a rename when they are complete, so the folder itself is the index: readers need no lock, a
killed writer loses at most the shard in progress, and no index file can disagree with the data. Every process compares
a shard with its checksums once, before reading features from it; a damaged one counts as absent, and the next writer
replaces it.
"""

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from negbench.contracts import Backbone, check_option
from negbench.data.batch_size import ENCODE_BATCH, batch_size, largest_operation
from negbench.data.reading import MappedRows, ShardRows, StoredFeatures, reading_pool
from negbench.errors import DataError, NegbenchError
from negbench.files.image_files import decode_ahead
from negbench.machine import free_memory
from negbench.machine.contents import SETTLED, content_hashes
from negbench.machine.files import atomic_write, cache_dir, check_inside, lock_file
from negbench.machine.grouping import group_pairs
from negbench.machine.received import check_regular
from negbench.machine.room import Need, check_disk

Progress = Callable[[int], None]


def _no_progress(count: int) -> None:
    """Report nothing."""


_log = logging.getLogger("negbench")
_FORMAT = "negbench-features-2"
_DTYPE = torch.float16  # as kept on disk
_SHARD_BYTES = 128 * 2**20  # the writer holds about three times this much
_SHARD_SECONDS = 60.0  # a slow encoder finishes a shard after this time, so that a kill costs a minute at most
_HEADER_BYTES = 2**20  # a shard's own is a few hundred
_CPU_BUDGET = 4 * 2**30
_MOST_UNREADABLE = 100


def store_of(backbone: Backbone, *, root: Path | None = None) -> "FeatureStore":
    """Open the store of a backbone's features; measure [L, C] and the batch on blank images. See `FeatureStore`."""
    blank = backbone.transform(Image.new("RGB", (32, 32))).to(_device_of(backbone))
    shapes: list[torch.Size] = []

    def encode(count: int) -> None:
        shapes.append(backbone.image_features(blank.expand(count, *blank.shape).contiguous()).shape)

    with backbone.evaluating(), torch.inference_mode():
        batch = batch_size(ENCODE_BATCH, largest_operation(encode))
    shape = shapes[0]
    if len(shape) != 3:
        raise NegbenchError(f"{type(backbone).__name__}.image_features must return [B, L, C], got {tuple(shape)}")
    return FeatureStore(root or cache_dir(), backbone.stored_key, (shape[1], shape[2]), batch)


def feature_budget(device: torch.device, held_bytes: int = 0, step_bytes: int = 0) -> int:
    """Return the bytes of features that a device holds: on a CPU 4 GiB, on a GPU at most half of its free memory.

    Args:
        device: holds them.
        held_bytes: of features that it holds already.
        step_bytes: that a training step takes; at least so much stays free on a GPU.
    """
    if device.type != "cuda":
        return min(_CPU_BUDGET, free_memory.machine_memory() // 2)
    free = torch.cuda.mem_get_info(device)[0] + held_bytes
    return max(0, min(free // 2, free - step_bytes))


# --- the store ---------------------------------------------------------------------------------------------------


class FeatureStore:
    """Features of images under one `key`. Any number of readers and, one at a time, writers on one machine.

    Args:
        root: the cache folder.
        key: the backbone's `stored_key`; letters, digits, "-", "_" and ".".
        shape: (L, C), rows and width of one image's features.
        batch: images of every call of the encoder. The last ones of a job are joined by copies of the first, so that
            an image's features depend on no other image: a product of fewer rows may round differently.

    Raises:
        OptionError: the key has other characters.
    """

    def __init__(self, root: Path, key: str, shape: tuple[int, int], batch: int = ENCODE_BATCH) -> None:
        plain = bool(key) and not key.startswith(".") and all(letter.isalnum() or letter in "-_." for letter in key)
        check_option("key", key, plain, "letters, digits, '-', '_' and '.'")
        self.root = Path(root)
        self.folder = self.root / "features" / f"{key}-{batch}"
        self.key = key
        self.shape = (shape[0], shape[1])
        self.batch = batch
        self._shards: dict[str, _Shard] = {}
        self._damaged: dict[str, str] = {}
        self._gone = False  # whether shards have vanished
        self._row: dict[bytes, int] = {}  # content -> row, counted through the shards in order
        self._content: dict[str, bytes] = {}  # id -> content, of every image named so far
        self._refresh()

    def __len__(self) -> int:
        """Return the number of images stored, as of the last look at the folder."""
        return len(self._row)

    @property
    def image_bytes(self) -> int:
        """Bytes of one image's features."""
        return math.prod(self.shape) * _DTYPE.itemsize

    def missing(self, images: Mapping[str, Path]) -> list[str]:
        """Return the ids whose features are not stored yet, one for each distinct file content, in order.

        Raises:
            DataError: an image file is missing.
        """
        contents = content_hashes(images, self.root)
        self._content.update(contents)
        self._refresh()
        self._check(contents.values())
        lacking = group_pairs((content, image) for image, content in contents.items() if content not in self._row)
        return [images[0] for images in lacking.values()]

    def ensure(
        self,
        images: Mapping[str, Path],
        backbone: Backbone,
        *,
        device: torch.device | str | None = None,
        workers: int | None = None,
        progress: Progress = _no_progress,
    ) -> int:
        """Encode what is not stored yet. One process encodes at a time; those that wait reuse what it stored.

        Args:
            images: id -> file. Ids whose files hold the same bytes share one row.
            backbone: moved to `device`; runs in evaluation mode without gradients, each module's mode restored.
            device: default: where the backbone is.
            workers: threads that decode; None or 0: `reading_threads`.
            progress: called with the number of images newly done (already stored, or encoded now); the numbers add up
                to `len(images)`.

        Returns:
            How many images were encoded.

        Raises:
            DataError: image files are missing or cannot be decoded; all others are stored first.
            NegbenchError: a full disk, features outside the range of float16, a backbone that is fine-tuned.
        """
        if not backbone.frozen_images:
            raise NegbenchError(f"{type(backbone).__name__} trains its image tower: its features are not stored")
        lacking = {self._content[image]: image for image in self.missing(images)}
        encoded = 0
        if lacking:
            with self.writing():
                lacking = {content: image for content, image in lacking.items() if content not in self._row}
                progress(len(images) - len(lacking))
                if lacking:
                    need = ((len(lacking), "images"), (self.image_bytes, "bytes"))
                    fix = "free disk space, or set NEGBENCH_CACHE to a folder on a larger disk"
                    check_disk([Need("stored features", need, fix)], self.folder)
                    job = _Job(self, backbone, torch.device(device or _device_of(backbone)), workers)
                    encoded = job.run([(c, image, Path(images[image])) for c, image in lacking.items()], progress)
            self._refresh()
        else:
            progress(len(images))
        return encoded

    def rows(self, ids: Sequence[str]) -> Tensor:
        """Return [len(ids)] int64, each image's current row in this store (a later `ensure` may renumber).

        Raises:
            NegbenchError: features are not stored, or an id was passed to neither `ensure` nor `missing`.
        """
        rows = [self._row.get(self._content.get(image, b""), -1) for image in ids]
        lacking = [image for image, row in zip(ids, rows, strict=True) if row < 0]
        if lacking:
            why = f"files vanished from {self.folder}: rerun the command" if self._gone else "encode them"
            raise NegbenchError(f"{len(lacking)} images have no stored features, the first: '{lacking[0]}'; {why}")
        return torch.tensor(rows, dtype=torch.int64)

    def load(
        self,
        ids: Sequence[str],
        device: torch.device | str = "cpu",
        budget_bytes: int | None = None,
        workers: int | None = None,
    ) -> StoredFeatures:
        """Load features of `ids`: as many as fit the budget are held on `device`, the others are read on demand.

        Args:
            ids: images; position i of the result is `ids[i]`.
            device: device of the features returned.
            budget_bytes: default: `feature_budget` of the device.
            workers: threads that read; None or 0: `reading_threads`.
        """
        self._refresh()
        device = torch.device(device)
        rows = self.rows(ids)
        shards = [ShardRows(s.features, self.folder / name, s.offset, s.stamp) for name, s in self._shards.items()]
        loaded = StoredFeatures(MappedRows(shards), rows, device, self.shape, _DTYPE)
        loaded.workers = workers
        loaded.hold(feature_budget(device) if budget_bytes is None else budget_bytes)
        return loaded

    # --- shards --------------------------------------------------------------------------------------------------

    def _check(self, contents: Iterable[bytes]) -> None:
        """Compare the shards that hold any of `contents` with their checksums; forget the damaged ones."""
        contents = set(contents)
        for name, shard in list(self._shards.items()):
            if contents.isdisjoint(shard.contents):
                continue
            if not _matches_checksum(self.folder / name, shard.stamp, shard.checksum):
                self._forget(name, "its features do not match their checksum")
                del self._shards[name]
        self._index()

    def _forget(self, name: str, why: str) -> None:
        """Count a shard as absent until a writer replaces it."""
        self._damaged[name] = why
        _log.warning("%s is damaged and will be encoded again: %s", self.folder / name, why)

    def _refresh(self) -> None:
        """Reread the folder: open new shards, forget those that are gone."""
        names = {path.name for path in self.folder.glob("*.safetensors")}
        names_before = self._shards.keys() | self._damaged.keys()
        if names == names_before:
            return
        self._gone |= bool(names_before - names)
        for name in names_before - names:
            self._shards.pop(name, None)
            self._damaged.pop(name, None)
        for name in sorted(names - names_before):
            try:
                self._shards[name] = self._open(self.folder / name)
            except FileNotFoundError:
                continue  # replaced by a writer a moment ago
            except (SafetensorError, KeyError, ValueError, OSError) as error:
                self._forget(name, str(error))
        self._index()

    def _index(self) -> None:
        """Sort the shards by name, and number the rows through them in order."""
        self._shards = dict(sorted(self._shards.items()))
        contents: list[bytes] = []
        for shard in self._shards.values():
            contents += shard.contents
        self._row = {content: row for row, content in enumerate(contents)}

    def _open(self, path: Path) -> "_Shard":
        """Map one shard; its header, size and hashes are checked, its features are not read."""
        check_regular(check_inside(path))
        with path.open("rb") as raw_file:
            length = int.from_bytes(raw_file.read(8), "little")
            header = raw_file.read(min(length, _HEADER_BYTES))
        with safe_open(path, framework="pt") as file:  # checks the file's length against its header
            metadata = file.metadata() or {}
            hashes = file.get_tensor("hashes")
            features = file.get_tensor("features")
        if metadata.get("format") != _FORMAT:
            raise ValueError(f"its format is {metadata.get('format')}, not {_FORMAT}")
        if metadata.get("hashes") != _sha256(hashes):
            raise ValueError("its hashes do not match their checksum")
        if metadata.get("key") != self.key:
            raise ValueError("its features come from another backbone or preprocessing")
        if features.shape != (len(hashes), *self.shape) or features.dtype != _DTYPE:
            raise NegbenchError(
                f"{path} holds features {list(features.shape[1:])} {features.dtype}, but the backbone gives "
                f"{list(self.shape)} {_DTYPE}: its feature_key must distinguish the two"
            )
        contents = [row.tobytes() for row in hashes.numpy()]
        status = path.stat()
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        offset = 8 + length + int(json.loads(header)["features"]["data_offsets"][0])
        return _Shard(contents, features, metadata["features"], stamp, offset)

    def _write(self, contents: Sequence[bytes], features: Tensor) -> None:
        """Add a shard; only with the lock held."""
        hashes = torch.frombuffer(bytearray(b"".join(contents)), dtype=torch.uint8).reshape(-1, 32)
        checksum = _sha256(features)
        metadata = {"format": _FORMAT, "key": self.key, "hashes": _sha256(hashes), "features": checksum}
        numbers = [int(path.name.split("-")[0]) for path in self.folder.glob("*-*.safetensors")]
        path = self.folder / f"{max(numbers, default=-1) + 1:05d}-{checksum[:8]}.safetensors"
        try:
            with atomic_write(path, "wb") as file:
                file.write(save({"hashes": hashes, "features": features}, metadata))
        except NegbenchError as error:
            raise NegbenchError(f"{error}; the finished shards are kept: free disk space and rerun") from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the writer's lock, with the folder reread and cleared of damaged and half-written files."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NegbenchError(f"cannot write {self.folder}: {error.strerror}; set NEGBENCH_CACHE") from error
        with lock_file(self.folder / ".lock"):
            self._refresh()
            for name, why in self._damaged.items():
                _log.warning("removing %s: %s", self.folder / name, why)
                (self.folder / name).unlink(missing_ok=True)
                self._shards.pop(name, None)
            self._damaged.clear()
            yield


@dataclass(frozen=True, eq=False)
class _Shard:
    contents: list[bytes]
    features: Tensor  # [n, L, C], mapped
    checksum: str
    stamp: tuple[int, int, int]  # of the file: inode, size, time of its last change
    offset: int  # where its features begin in the file


def _matches_checksum(path: Path, stamp: tuple[int, int, int], checksum: str) -> bool:
    """Whether a shard's features are those that were written.

    Reads the file once per process for each `stamp` (inode, size, modification time in ns), unless it was written a
    moment ago: file-system clocks tick in milliseconds and inodes are reused, so another file may have its stamp.
    """
    matches = _matches if time.time_ns() - stamp[2] > SETTLED else _matches.__wrapped__
    return matches(path, stamp, checksum)


@cache
def _matches(path: Path, _changed: tuple[int, int, int], checksum: str) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            return _sha256(file.get_tensor("features")) == checksum
    except (SafetensorError, OSError):  # deleted, or damaged since it was opened
        return False


def _sha256(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().data).hexdigest()


# --- encoding ----------------------------------------------------------------------------------------------------


class _Job:
    """One writer's pass over the images that are not stored."""

    def __init__(self, store: FeatureStore, backbone: Backbone, device: torch.device, workers: int | None) -> None:
        self.store = store
        self.backbone = backbone.to(device)
        self.device = device
        self.workers = workers
        # the shard in progress
        self._contents: list[bytes] = []
        self._features: list[Tensor] = []
        self._begun = time.perf_counter()

    def run(self, items: Sequence[tuple[bytes, str, Path]], progress: Progress) -> int:
        """Encode (content, id, file) triples and store them; return the number stored. See `FeatureStore.ensure`."""
        unreadable: list[str] = []
        try:
            with self.backbone.evaluating(), torch.inference_mode():
                paths = [path for _, _, path in items]
                read = decode_ahead(paths, self.backbone.transform, pool=reading_pool(self.workers))
                pairs = zip(items, read, strict=True)
                while len(unreadable) < _MOST_UNREADABLE:
                    batch = list(islice(pairs, self.store.batch))
                    if not batch:
                        break
                    unreadable += [str(pixels) for _, pixels in batch if isinstance(pixels, DataError)]
                    good = {item: pixels for item, pixels in batch if isinstance(pixels, Tensor)}
                    now = content_hashes({image: path for _, image, path in good}, self.store.root)
                    for content, image, path in good:
                        if now[image] != content:
                            raise DataError(f"{path} changed while it was encoded: rerun the command")
                    if good:
                        features = self._encode(torch.stack(list(good.values())), list(good))
                        self._add([content for content, _, _ in good], features)
                        progress(len(good))
        finally:
            self._flush()  # also on Ctrl-C, or an image outside the range: what is encoded is kept
        if unreadable:
            more = f" (and {len(unreadable) - 1} more)" if len(unreadable) > 1 else ""
            raise DataError(f"{unreadable[0]}{more}")
        return len(items)

    def _add(self, contents: Sequence[bytes], features: Tensor) -> None:
        """Add a batch; write a shard when it is large or old enough."""
        limit = max(1, _SHARD_BYTES // self.store.image_bytes)
        if self._contents and len(self._contents) + len(contents) > limit:
            self._flush()
        self._contents += contents
        self._features.append(features)
        if len(self._contents) >= limit or time.perf_counter() - self._begun > _SHARD_SECONDS:
            self._flush()

    def _flush(self) -> None:
        """Write the shard in progress; discard it even if that fails: a second attempt would fail again."""
        contents = self._contents
        features = self._features
        self._contents = []
        self._features = []
        self._begun = time.perf_counter()
        if contents:
            self.store._write(contents, torch.cat(features))

    def _encode(self, pixels: Tensor, items: Sequence[tuple[bytes, str, Path]]) -> Tensor:
        """Encode [b, 3, H, W] pixels as [b, L, C] float16 on the CPU, in a batch of the store's size."""
        store = self.store
        padding = pixels[:1].expand(store.batch - len(pixels), *pixels.shape[1:])
        batch = torch.cat([pixels, padding])
        features = self.backbone.image_features(batch.to(self.device, non_blocking=True))
        if features.shape != (store.batch, *store.shape):
            raise NegbenchError(
                f"{type(self.backbone).__name__}.image_features returned {tuple(features.shape)} for {store.batch} "
                f"images, but the store expects {store.shape} per image"
            )
        features = features[: len(items)]
        halves = features.to(_DTYPE)
        fits = torch.isfinite(halves).flatten(1).all(1).tolist()
        if not all(fits):
            worst = fits.index(False)
            _, image, path = items[worst]
            value = float(features[worst].float().abs().max())
            what = f"a feature of {value:g}" if value < float("inf") else "a feature that is not finite"
            limit = torch.finfo(_DTYPE).max
            raise NegbenchError(f"image '{image}' ({path}) has {what}: the store's limit is {limit:g} (float16)")
        return halves.cpu()


def _device_of(backbone: Backbone) -> torch.device:
    """Return the device of a backbone's weights; the CPU if it has none."""
    for tensor in (*backbone.parameters(), *backbone.buffers()):
        return tensor.device
    return torch.device("cpu")
