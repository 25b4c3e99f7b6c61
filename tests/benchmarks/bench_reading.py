"""How long training steps wait for stored features and for pictures, as they were read before and read ahead.

    python tests/benchmarks/bench_reading.py [--gib 4] [--steps 30] [--step-ms 150] [--folder DIR]

A made step of 150 ms sleeps, as a GPU's does for the CPU. It asks for 32 references and 64 candidates of a store of
4 GiB (BLIP-2 ViT-L's features, 526 KB an image; they stay in half precision on the CPU), once with its pages in memory
and once after `posix_fadvise` dropped them; then for as many JPEGs of 450 x 600. The two ways take their turns every
ten steps, so that another program's load meets both. Printed: the median wait of a step and its share of the time, the
time of a processor, which other programs hardly change, and what the reading alone takes; both ways have the same
checksums. For pictures: the time of a step that does nothing else, and that of as many threads which only decode, in
turns, as medians. Two lines say what the machine allowed: which share of the store's pages was in memory, and how long
processes had to wait for a processor. Waits mean something where these say 100 % and next to nothing.
"""

import argparse
import ctypes
import math
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from negbench.backbones._preprocess import Preprocess
from negbench.data.reading import (
    MappedRows,
    PictureSource,
    RowSource,
    ShardRows,
    StoredFeatures,
    read_ahead,
    reading_threads,
)
from negbench.files.image_files import decode_ahead, readable
from negbench.machine.contents import content_hashes, stamp
from negbench.machine.heap import keep_memory

SHAPE = (257, 1024)
SHARD = 240  # images
REFERENCES, CANDIDATES = 32, 64
PICTURES = 300
BLOCK = 10  # steps that each way takes in turn


class HalfFeatures(StoredFeatures):
    """Features as they go to a GPU: in half precision, which the GPU widens."""

    def _finish(self, buffer, tasks):  # type: ignore[no-untyped-def]
        for task in tasks:
            task.result()
        return buffer, None

    def _values(self, reading) -> Tensor:  # type: ignore[no-untyped-def]
        return reading.ready.result()[0]


class Toy:
    """A backbone as far as pictures are concerned."""

    transform = Preprocess(pad="target", target_ratio=1.25, size=224)


def write_store(folder: Path, images: int) -> list[Path]:
    """Write shards of features; one random shard's rows are enough, as no one looks at them."""
    rows = torch.randn(SHARD, *SHAPE, generator=torch.Generator().manual_seed(0)).half()
    paths = []
    for number in range(-(-images // SHARD)):
        paths.append(folder / f"{number:05d}.safetensors")
        rows[:, 0, 0] = torch.arange(number * SHARD, (number + 1) * SHARD)
        save_file({"features": rows}, paths[-1])
    return paths


def shard_of(path: Path) -> ShardRows:
    with safe_open(path, framework="pt") as file:
        rows = file.get_tensor("features")
    status = path.stat()
    with path.open("rb") as raw:
        offset = 8 + int.from_bytes(raw.read(8), "little")
    return ShardRows(rows, path, offset, (status.st_ino, status.st_size, status.st_mtime_ns))


def ways_of(paths: Sequence[Path]) -> tuple[RowSource, Callable[[Tensor], Tensor]]:
    """Return the source that reads ahead, and a reader of mapped rows, as steps had it before."""
    shards = [shard_of(path) for path in paths]
    total = sum(len(shard.rows) for shard in shards)

    def mapped(rows: Tensor) -> Tensor:
        out = torch.empty(len(rows), *SHAPE, dtype=torch.float16)
        for position, row in enumerate(rows.tolist()):
            out[position].copy_(shards[row // SHARD].rows[row % SHARD])
        return out

    return HalfFeatures(MappedRows(shards), torch.arange(total), torch.device("cpu"), SHAPE, torch.float16), mapped


def drop_pages(paths: Sequence[Path]) -> None:
    """Let the next read of these files go to the disk."""
    os.sync()
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def pages_in_memory(paths: Sequence[Path]) -> float:
    """Return which share of the files' pages is in memory."""
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    resident = 0
    pages = 0
    for path in paths:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            count = -(-len(mapped) // mmap.PAGESIZE)
            flags = (ctypes.c_ubyte * count)()
            start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
            if mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(mapped)), flags):
                raise OSError(ctypes.get_errno(), "mincore")
            resident += sum(byte & 1 for byte in flags)
            pages += count
    return resident / pages


def waited_for_processors() -> float:
    """Return the seconds since the machine's start in which some process waited for a processor; nan if unknown."""
    try:
        line = Path("/proc/pressure/cpu").read_text(encoding="ascii").splitlines()[0]
    except OSError:
        return math.nan
    return int(line.rpartition("=")[2]) / 1e6


def write_pictures(folder: Path) -> dict[str, Path]:
    random = np.random.default_rng(0)
    files = {}
    for number in range(PICTURES):
        small = random.integers(0, 256, (60, 45, 3), dtype=np.uint8)
        files[f"i{number}"] = folder / f"i{number}.jpg"
        Image.fromarray(small).resize((450, 600), Image.Resampling.BICUBIC).save(files[f"i{number}"], quality=90)
    return files


def steps_of(count: int, images: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return what each step asks for: references, distinct candidates."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(images, (REFERENCES + CANDIDATES,), generator=generator) for _ in range(count)]
    return [(rows[:REFERENCES], rows[REFERENCES:].unique()) for rows in drawn]


def waits_of(
    steps: Iterator[tuple[Tensor, Tensor]], read: Callable[[Tensor], Tensor], seconds: float
) -> Iterator[tuple[float, float]]:
    """Take steps; yield each one's seconds of waiting and a checksum."""
    for references, candidates in steps:
        begun = time.perf_counter()
        parts = read(references), read(candidates)
        waited = time.perf_counter() - begun
        yield waited, sum(float(part[:, 0, 0].double().sum()) for part in parts)
        time.sleep(seconds)


def compare(
    what: str, before: Callable[[Tensor], Tensor], source: RowSource, plan: list[tuple[Tensor, Tensor]], step: float
) -> None:
    """Print the waits of both ways, which take their turn every ten steps."""
    ahead = list[float]()
    now = list[float]()
    processor = 0.0
    for first in range(0, len(plan), BLOCK):
        block = plan[first : first + BLOCK]
        begun = time.process_time()
        new = list(waits_of(read_ahead(source, block, list), source, step))
        processor += time.process_time() - begun
        old = list(waits_of(iter(block), before, step))
        assert [checksum for _, checksum in new] == [checksum for _, checksum in old], f"block at {first}"
        ahead += [wait for wait, _ in new[1:]]  # nothing was read ahead of the first
        now += [wait for wait, _ in old[1:]]
    share = median(ahead) / (median(ahead) + step)
    print(
        f"{what:26} wait a step: {1000 * median(now):6.1f} ms read in it, {1000 * median(ahead):6.1f} ms read ahead "
        f"({share:.1%} of the time; {1000 * processor / len(plan):.0f} ms of a processor a step)",
        flush=True,
    )


def compare_decoding(pictures: RowSource, paths: Sequence[Path], plan: list[tuple[Tensor, Tensor]]) -> None:
    """Print what steps take that only read pictures, and what threads take that only decode the same ones."""
    ahead = list[float]()
    alone = list[float]()

    def decode(path: Path) -> Tensor:
        return Toy.transform(Image.open(path))

    with ThreadPoolExecutor(reading_threads(None)) as pool:
        for first in range(0, len(plan), BLOCK):
            block = plan[first : first + BLOCK]
            begun = time.perf_counter()
            for _ in waits_of(read_ahead(pictures, block, list), pictures, 0.0):
                pass
            read = time.perf_counter()
            pictures_of_block = list[Path]()
            for references, candidates in block:
                pictures_of_block += [paths[row] for row in references.unique().tolist()]
                pictures_of_block += [paths[row] for row in candidates.unique().tolist()]
            for _ in pool.map(decode, pictures_of_block):
                pass
            alone.append((time.perf_counter() - read) / len(block))
            ahead.append((read - begun) / len(block))
    print(
        f"pictures, no step: {1000 * median(ahead):.0f} ms a step; threads that only decode them take "
        f"{1000 * median(alone):.0f} ms"
    )


def compare_features(folder: Path, options: argparse.Namespace) -> None:
    """Print the waits for stored features, from memory and from the disk."""
    step = options.step_ms / 1000
    images = max(SHARD, int(options.gib * 2**30 / (2 * SHAPE[0] * SHAPE[1])))
    paths = write_store(folder, images)
    total = SHARD * len(paths)
    for path in paths:
        path.read_bytes()
    print(f"store: {pages_in_memory(paths):.0%} of its pages in memory")
    source, mapped = ways_of(paths)
    compare("features, in memory", mapped, source, steps_of(options.steps, total, 0), step)
    del source, mapped  # pages that a process has mapped and read are not dropped
    for turn in range(4):  # with images of its own
        plan = steps_of(BLOCK, total, 10 + turn)
        drop_pages(paths)
        source, mapped = ways_of(paths)
        begun = time.perf_counter()
        for references, candidates in plan:
            source(references)
            source(candidates)
        alone = (time.perf_counter() - begun) / len(plan)
        drop_pages(paths)
        waits = [wait for wait, _ in waits_of(read_ahead(source, plan, list), source, step)][1:]
        drop_pages(paths)
        now = [wait for wait, _ in waits_of(iter(plan), mapped, step)][1:]
        print(
            f"features, from the disk: {1000 * alone:4.0f} ms a step to read them; wait {1000 * median(now):5.0f} "
            f"ms read in the step, {1000 * median(waits):5.0f} ms read ahead",
            flush=True,
        )
        del source, mapped


def compare_pictures(folder: Path, options: argparse.Namespace) -> None:
    """Print the waits for pictures, and what decoding them takes."""
    file = write_pictures(folder)
    stamps = {image: stamp(path) for image, path in file.items()}
    contents = content_hashes(file, folder)
    pictures = PictureSource(Toy(), file, contents, stamps, torch.device("cpu"))  # type: ignore[arg-type]
    paths = list(file.values())

    def read_now(rows: Tensor) -> Tensor:
        return torch.stack(list(readable(decode_ahead([paths[row] for row in rows.tolist()], Toy.transform))))

    plan = steps_of(max(6, options.steps // 3), PICTURES, 3)
    compare("pictures", read_now, pictures, plan, options.step_ms / 1000)
    compare_decoding(pictures, paths, steps_of(4 * BLOCK, PICTURES, 4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--step-ms", type=float, default=150.0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()  # as every run
    started = time.perf_counter()
    waited = waited_for_processors()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        compare_features(Path(name), options)
        compare_pictures(Path(name), options)
    share = (waited_for_processors() - waited) / (time.perf_counter() - started)
    print(f"processors: in {share:.0%} of this time some process waited for one")


if __name__ == "__main__":
    main()
