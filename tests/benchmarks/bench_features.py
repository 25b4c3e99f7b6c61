"""Feature store: encoding against a plain loop, opening 20,000 images, gathering against torch.index_select.

Run `python tests/benchmarks/bench_features.py` (1 GB of disk below the temporary folder). What is compared is measured
in turns and the least time counts, so that a busy machine disturbs both alike.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from negbench.backbones._preprocess import Preprocess
from negbench.contracts import Backbone
from negbench.data import features
from negbench.data.contents import content_hashes
from negbench.data.features import FeatureStore
from negbench.data.reading import StoredFeatures

SHAPE = (257, 1024)  # BLIP-2's ViT-L tokens, 0.5 MiB an image


class Patches(Backbone):
    """A cheap image tower (one convolution), so that decoding and storing are what is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = Preprocess()
        self.patches = nn.Conv2d(3, 64, 32, 32)

    @property
    def feature_key(self) -> str:
        return "patches"

    def image_features(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.patches(pixels).flatten(2).transpose(1, 2)
        return features


Patches.__abstractmethods__ = frozenset()  # nobody asks for the rest


def seconds(*calls: Callable[[], object], repeats: int = 3) -> list[float]:
    """Least wall time of each call."""
    best = [float("inf")] * len(calls)
    for _ in range(repeats):
        for index, call in enumerate(calls):
            begun = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - begun)
    return best


def encoding(folder: Path, count: int = 256) -> None:
    """Images per second of `ensure` and of a loop that keeps everything in memory."""
    images, random = {}, np.random.default_rng(0)
    (folder / "jpeg").mkdir()
    for index in range(count):
        small = random.integers(0, 256, (30, 20, 3), dtype=np.uint8)
        path = folder / "jpeg" / f"{index}.jpg"
        Image.fromarray(small).resize((400, 600), Image.Resampling.BICUBIC).save(path)  # FashionIQ's usual size
        images[str(index)] = path
    backbone = Patches().eval()

    def loop() -> None:
        kept = []
        with torch.inference_mode():
            for batch in np.array_split(np.array(list(images.values()), dtype=object), count // 64):
                pixels = torch.stack([backbone.transform(Image.open(path)) for path in batch])
                kept.append(backbone.image_features(pixels).half())

    fresh = itertools.count()

    def ensure(workers: int) -> None:
        store = FeatureStore(folder / f"encoding{next(fresh)}", "patches", (49, 64))
        assert store.ensure(images, backbone, workers=workers) == count

    print(f"\nencoding {count} JPEG files of 400 x 600, features 49 x 64")
    floor, *taken = seconds(loop, partial(ensure, 1), partial(ensure, 4))
    for label, spent in zip(("plain loop", "ensure, 1 thread", "ensure, 4 threads"), (floor, *taken), strict=True):
        print(f"{label:<30}{count / spent:>9.0f} images/s {floor / spent:>6.2f} x the loop")


def opening(folder: Path, count: int = 20_000) -> None:
    """Time from nothing to a filled-in row table, when every image is stored and hashed already."""
    (folder / "many").mkdir()
    images = {}
    for index in range(count):
        path = folder / "many" / f"{index}.bin"
        path.write_bytes(index.to_bytes(4, "big") * 256)
        os.utime(path, ns=(0, 0))  # what was written a moment ago is read again
        images[f"image{index}"] = path
    (cold,) = seconds(lambda: content_hashes(images, folder), repeats=1)
    store = FeatureStore(folder, "many", (1, 64))
    contents = list(content_hashes(images, folder).values())
    with store.writing():
        for begin in range(0, count, 1000):
            part = contents[begin : begin + 1000]
            store._write(part, torch.randn(len(part), 1, 64).half())

    def warm() -> None:
        again = FeatureStore(folder, "many", (1, 64))
        assert again.ensure(images, Patches()) == 0
        again.rows(list(images))

    print(f"\nopening {count} images in 20 shards")
    print(f"{'first time: hash 1 KiB each':<30}{cold:>8.3f} s")
    print(f"{'warm: ensure and rows':<30}{seconds(warm)[0]:>8.3f} s")


def gathering(folder: Path, count: int = 800, batch: int = 128) -> None:
    """Images per second of a random batch: held, mapped, and the floor that any gather has."""
    store = FeatureStore(folder, "gather", SHAPE)
    rows_of_shard = features._SHARD_BYTES // store.image_bytes
    names = [index.to_bytes(32, "big") for index in range(count)]
    with store.writing():
        for begin in range(0, count, rows_of_shard):
            part = names[begin : begin + rows_of_shard]
            store._write(part, torch.randn(len(part), *SHAPE).half())
    store._content = {str(index): name for index, name in enumerate(names)}
    store = _reopened(store)
    ids = [str(index) for index in range(count)]
    mapped, held = store.load(ids, budget_bytes=0), store.load(ids)
    table = held._source
    assert isinstance(table, Tensor)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))[: 4 * batch].split(batch)

    def all_of(source: StoredFeatures) -> None:
        for index in order:
            source[index]

    def select() -> None:
        for index in order:
            table.index_select(0, index).float()

    print(
        f"\ngathering batches of {batch} from {count} images of {SHAPE[0]} x {SHAPE[1]} half, "
        f"{torch.get_num_threads()} threads"
    )
    floor, *taken = seconds(select, partial(all_of, held), partial(all_of, mapped))
    labels = ("torch.index_select + float", "held", "mapped, in page cache")
    for label, spent in zip(labels, (floor, *taken), strict=True):
        rate = 4 * batch / spent
        size = rate * store.image_bytes / 2**30
        print(f"{label:<30}{rate:>9.0f} images/s {size:>6.2f} GiB/s {floor / spent:>6.2f} x the floor")


def _reopened(store: FeatureStore) -> FeatureStore:
    again = FeatureStore(store.root, store.key, store.shape)
    again._content = store._content
    return again


def main() -> int:
    """All three tables."""
    with tempfile.TemporaryDirectory() as folder:
        encoding(Path(folder))
        opening(Path(folder))
        gathering(Path(folder))
    print(f"\ntorch {torch.__version__}, {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
