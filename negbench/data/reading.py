"""Images by position: stored features, held in memory or read from shards, or pictures decoded anew.

Threads read what a caller announces, while the steps before it are computed. What an image's values are depends on the
image alone, so reading ahead changes no number.
"""

import math
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import torch
from PIL import Image
from torch import Tensor

from negbench.contracts import Backbone
from negbench.errors import DataError, NegbenchError
from negbench.files.image_files import pixel_bytes, read_image
from negbench.machine.contents import content_hashes, stamp
from negbench.machine.files import cache_dir
from negbench.machine.free_memory import size
from negbench.machine.hardware import cores

_LEAST_THREADS = 4
_MOST_THREADS = 32
_ITEMS_AHEAD = 2  # batches or blocks whose images are read before they are asked for
_AHEAD_BYTES = 2**30  # of them, at most
_LOAD_BYTES = 64 * 2**20  # of features that pass to a GPU at a time
_LARGE_PICTURE = 2**27  # bytes of pixels: such pictures are decoded one at a time

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}  # process, number of threads -> the pool; one at most

Item = TypeVar("Item")


def reading_threads(workers: int | None) -> int:
    """Return how many threads read and decode: as many as `compute.workers` says, at least 4, or one a core."""
    return workers or min(max(cores(), _LEAST_THREADS), _MOST_THREADS)


def reading_pool(workers: int | None) -> ThreadPoolExecutor:
    """Return this process's one pool of `reading_threads`, which encoding, training and scoring share.

    A forked process, and another number of threads, get a new one; the threads of the last one end with it.
    """
    count = reading_threads(workers)
    key = (os.getpid(), count)
    if key not in _pools:
        _pools.clear()
        _pools[key] = ThreadPoolExecutor(count, thread_name_prefix="negbench-read")
    return _pools[key]


@dataclass(eq=False)
class Reading:
    """Images that threads are reading, or have read.

    Attributes:
        index: [n] int64 positions, each once.
        ready: the values [n, ...] on the source's device, and on a GPU the event after which they are there.
    """

    index: Tensor
    ready: "Future[tuple[Tensor, torch.cuda.Event | None]]" = field(default_factory=Future)


class RowSource(ABC):
    """Images by position: `source(index)` is [n, ...] float32 on `device`, index [n] int64.

    Attributes:
        device: where images go.
        shape: of one image's values.
        dtype: in which they are read.
        workers: threads that read; None: `reading_threads`.
    """

    def __init__(self, device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.device = device
        self.shape = shape
        self.dtype = dtype
        self.workers: int | None = None
        self._readings: list[Reading] = []
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @abstractmethod
    def _fill(self, position: int, out: Tensor) -> None:
        """Write one image's values to `out`, on the CPU; called in threads."""

    @property
    def in_memory(self) -> bool:
        """Whether every image is in the memory of the device."""
        return False

    @property
    def _at_once(self) -> int:
        """Images that a thread reads in one go."""
        return 1

    def _are_in_memory(self, index: Tensor) -> Tensor:
        """Return [n] bool: which of these images are in the device's memory."""
        return torch.zeros(len(index), dtype=torch.bool)

    def _rows_in_memory(self, index: Tensor) -> Tensor:
        """Return images that are in the device's memory, float32."""
        raise NotImplementedError

    def __call__(self, index: Tensor) -> Tensor:
        """Return the images at positions [n] int64: held, read ahead, or read now."""
        index = index.cpu()
        if not len(index):
            return torch.empty(0, *self.shape, device=self.device)
        in_memory = self._are_in_memory(index)
        if bool(in_memory.all()):
            return self._rows_in_memory(index)
        for reading in self._readings:
            position = _positions_in(reading.index, index)
            if bool((position >= 0).all()):
                return _select(self._values(reading), position)
        return self._gather(index, in_memory)

    def _gather(self, index: Tensor, in_memory: Tensor) -> Tensor:
        """Put together what is held, what is read ahead, and what is read now."""
        parts: list[tuple[Tensor, Tensor]] = []  # which images, [n] bool, and their values
        lacking = ~in_memory
        if bool(in_memory.any()):
            parts.append((in_memory, self._rows_in_memory(index[in_memory])))
        for reading in self._readings:
            position = _positions_in(reading.index, index)
            read_ahead = (position >= 0) & lacking
            if bool(read_ahead.any()):
                parts.append((read_ahead, _select(self._values(reading), position[read_ahead])))
                lacking &= ~read_ahead
        if bool(lacking.any()):
            positions = index[lacking]
            reading = self._start(_each_once(positions))
            parts.append((lacking, _select(self._values(reading), _positions_in(reading.index, positions))))
        last, values_of_last = parts[-1]
        if bool(last.all()):
            return values_of_last
        result = values_of_last.new_empty(len(index), *self.shape)
        for which, values in parts:
            result[which.to(result.device)] = values
        return result

    # --- reading ahead -------------------------------------------------------------------------------------------

    def announce(self, index: Tensor) -> Reading | None:
        """Begin to read images that will be asked for; return what `forget` takes, None if nothing is to be read.

        Any part of them may then be asked for, in any order and more than once.
        """
        index = index.cpu()
        if self.in_memory or not len(index):
            return None
        index = _each_once(index[~self._are_in_memory(index)])
        images = len(index) + sum(len(reading.index) for reading in self._readings)
        if not len(index) or images * math.prod(self.shape) * self.dtype.itemsize > _AHEAD_BYTES:
            return None
        reading = self._start(index)
        self._readings.append(reading)
        return reading

    def forget(self, readings: Iterable[Reading | None]) -> None:
        """Drop what was announced."""
        for reading in readings:
            if reading is not None:
                self._readings.remove(reading)

    def _start(self, index: Tensor) -> Reading:
        """Let the threads read these images."""
        buffer = self._buffer(len(index))
        tasks = self._fill_in_threads(index, buffer)
        reading = Reading(index)
        reading.ready = self._threads().submit(self._finish, buffer, tasks)
        return reading

    @torch.inference_mode(False)  # threads write to it, whatever mode the caller is in
    def _buffer(self, count: int) -> Tensor:
        """Return an empty [count, ...] tensor on the CPU, pinned for a GPU."""
        return torch.empty(count, *self.shape, dtype=self.dtype, pin_memory=self.device.type == "cuda")

    def _fill_in_threads(self, index: Tensor, out: Tensor) -> list[Future[None]]:
        """Let threads write these images to the rows of `out`, some neighbours at a time."""
        parts = index.argsort().split(self._at_once)
        return [self._threads().submit(self._fill_some, index, part.tolist(), out) for part in parts]

    def _fill_some(self, index: Tensor, rows: list[int], out: Tensor) -> None:
        for row in rows:
            self._fill(int(index[row]), out[row])

    def _finish(self, buffer: Tensor, tasks: Sequence[Future[None]]) -> tuple[Tensor, torch.cuda.Event | None]:
        """Wait for the images, in a thread of the pool, whose earlier tasks they are; send them on their way."""
        for task in tasks:
            task.result()
        if self._stream is None:
            return buffer.float() if buffer.is_floating_point() else buffer, None
        with torch.cuda.stream(self._stream):
            values = buffer.to(self.device, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        return values, event

    def _values(self, reading: Reading) -> Tensor:
        """Return a reading's images, float32, once they are there."""
        values, event = reading.ready.result()
        if event is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(event)
            values.record_stream(stream)
        return values.float() if values.is_floating_point() else values

    def _threads(self) -> ThreadPoolExecutor:
        return reading_pool(self.workers)


def _each_once(index: Tensor) -> Tensor:
    """Return the numbers of [n], each once; in their order if none is repeated."""
    distinct = index.unique()
    return index if len(distinct) == len(index) else distinct


def _positions_in(numbers: Tensor, index: Tensor) -> Tensor:
    """Return the position of each of `index` [n] among distinct numbers [m], or -1."""
    if torch.equal(numbers, index):
        return torch.arange(len(index))
    ordered, order = numbers.sort()
    at = torch.searchsorted(ordered, index).clamp(max=len(ordered) - 1)
    return torch.where(ordered[at] == index, order[at], -1)


def _select(values: Tensor, position: Tensor) -> Tensor:
    """Return `values[position]`; a view where the positions follow each other."""
    first = int(position[0])
    count = len(position)
    if torch.equal(position, torch.arange(first, first + count)):
        return values[first : first + count]
    return values.index_select(0, position.to(values.device))


def read_ahead(
    source: RowSource, items: Iterable[Item], images_of: Callable[[Item], Sequence[Tensor]]
) -> Iterator[Item]:
    """Yield items; while one is used, the images of the next two are read.

    Args:
        source: reads.
        items: such as an epoch's batches.
        images_of: the positions [n] int64 that each call for an item will ask for.
    """
    if source.in_memory:
        yield from items
        return
    waiting = deque[Item]()
    readings = deque[list[Reading | None]]()  # of each item that waits
    try:
        for item in items:
            readings.append([source.announce(index) for index in images_of(item)])
            waiting.append(item)
            if len(waiting) > _ITEMS_AHEAD:
                yield waiting.popleft()
                source.forget(readings.popleft())
        while waiting:
            yield waiting.popleft()
            source.forget(readings.popleft())
    finally:
        for of_item in readings:
            source.forget(of_item)


class InTurn:
    """Reads parts of many images one after the other: asked for one, it begins to read the next.

    Args:
        source: reads.
        parts: positions [n] int64 of each.
    """

    def __init__(self, source: RowSource, parts: Sequence[Tensor]) -> None:
        self._source = source
        self._parts = parts
        self._reading: Reading | None = None  # of the part that comes now

    def __call__(self, index: Tensor) -> Tensor:
        """Return the images at these positions, a part or others."""
        current = self._reading
        self._reading = None
        for part, following in pairwise(self._parts):
            if torch.equal(part, index):
                self._reading = self._source.announce(following)
        values = self._source(index)
        self._source.forget([current])
        return values


# --- kinds of sources ------------------------------------------------------------------------------------------------


class RowsInMemory(RowSource):
    """A table [N, ...] in memory, on its own device."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(table.device, tuple(table.shape[1:]), table.dtype)
        self._table = table

    @property
    def in_memory(self) -> bool:
        """True."""
        return True

    def __call__(self, index: Tensor) -> Tensor:
        """Return rows of the table, in its own precision."""
        return self._table.index_select(0, index.to(self._table.device))

    def _fill(self, position: int, out: Tensor) -> None:
        out.copy_(self._table[position])


@dataclass(frozen=True, eq=False)
class ShardRows:
    """The rows of one shard.

    Attributes:
        rows: [n, L, C], mapped.
        path: the shard's file.
        offset: where in the file the first row begins, in bytes.
        stamp: inode, size and modification time of the file that is mapped.
    """

    rows: Tensor
    path: Path
    offset: int
    stamp: tuple[int, int, int]


class MappedRows:
    """Feature rows spread over shards: read from the files, which costs less than the page faults of a mapping.

    A reader keeps working when shards are replaced under it.
    """

    def __init__(self, shards: Sequence[ShardRows]) -> None:
        self._shards = shards
        self._starts = [0]
        for shard in shards:
            self._starts.append(self._starts[-1] + len(shard.rows))
        self._ends = torch.tensor(self._starts[1:], dtype=torch.int64)
        self._files: list[int | None] = [_open_same(shard) for shard in shards]
        weakref.finalize(self, _close, self._files)

    def read(self, row: int, out: Tensor) -> None:
        """Write row `row` to `out` [L, C], contiguous, on the CPU."""
        number = int(torch.searchsorted(self._ends, row, right=True))
        shard = self._shards[number]
        row_in_shard = row - self._starts[number]
        file = self._files[number]
        if file is None:
            out.copy_(shard.rows[row_in_shard])
            return
        target = memoryview(out.view(-1).view(torch.uint8).numpy().data)
        start = shard.offset + row_in_shard * len(target)
        done = 0
        while done < len(target):
            count = os.preadv(file, [target[done:]], start + done)
            if count == 0:
                raise DataError(f"{shard.path} has become shorter while it was read: rerun the command")
            done += count


def _open_same(shard: ShardRows) -> int | None:
    """Open a shard's file; None if it is another one by now, or too many files are open: its mapping is read."""
    try:
        file = os.open(shard.path, os.O_RDONLY)
    except OSError:
        return None
    status = os.fstat(file)
    if (status.st_ino, status.st_size, status.st_mtime_ns) != shard.stamp:
        os.close(file)
        return None
    return file


def _close(files: Sequence[int | None]) -> None:
    for file in files:
        if file is not None:
            with suppress(OSError):
                os.close(file)


class StoredFeatures(RowSource):
    """Stored image features [n, L, C] by position, made by `FeatureStore.load`.

    The first images, as many as fit a budget, are held on the device in the stored precision; the others are read.
    """

    def __init__(
        self, rows: MappedRows, position: Tensor, device: torch.device, shape: tuple[int, int], dtype: torch.dtype
    ) -> None:
        super().__init__(device, shape, dtype)
        self._rows = rows
        self._position = position  # [N] the stored row of each; those of equal pictures are the same
        rows_stored, inverse = position.unique(return_inverse=True)
        positions = torch.arange(len(position))
        first = torch.full_like(rows_stored, len(position)).scatter_reduce_(0, inverse, positions, "amin")
        self._firsts = first.sort().values  # [U] the first position of each stored row
        self._number = first.argsort().argsort()[inverse]  # [N] which of these a position is
        self._table: Tensor | None = None  # the first of them that are held

    def __len__(self) -> int:
        return len(self._position)

    @property
    def image_bytes(self) -> int:
        """Bytes of one image's features."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def total_bytes(self) -> int:
        """Bytes of all images' features."""
        return len(self._firsts) * self.image_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of those that are held on the device."""
        return 0 if self._table is None else self._table.nbytes

    @property
    def in_memory(self) -> bool:
        """Whether all of them are."""
        return self.held_bytes == self.total_bytes

    def __str__(self) -> str:
        """Return '1.2 GiB of features: 0.5 GiB held in memory, the others are read ahead by 4 threads'."""
        where = "the GPU's memory" if self.device.type == "cuda" else "memory"
        if self.in_memory:
            return f"{size(self.total_bytes)} of features: held in {where}"
        text = f"{size(self.total_bytes)} of features: "
        text += f"{size(self.held_bytes)} held in {where}, the others are" if self.held_bytes else "they are"
        return f"{text} read ahead by {reading_threads(self.workers)} threads"

    @torch.inference_mode(False)
    def hold(self, budget_bytes: int) -> None:
        """Hold as many images on the device as the budget allows: the first ones, so those of train before val's."""
        count = min(len(self._firsts), budget_bytes // self.image_bytes)
        if count * self.image_bytes == self.held_bytes:
            return
        self._table = None
        table = torch.empty(count, *self.shape, dtype=self.dtype, device=self.device)
        step = max(1, _LOAD_BYTES // self.image_bytes)
        for first in range(0, count, step):
            block = slice(first, min(first + step, count))
            rows = table[block] if self.device.type == "cpu" else self._buffer(block.stop - first)
            for task in self._fill_in_threads(self._firsts[block], rows):
                task.result()
            if self.device.type != "cpu":
                table[block] = rows.to(self.device)
        self._table = table

    def __getitem__(self, index: Tensor) -> Tensor:
        """Return [*index.shape, L, C] float32 on the device."""
        return self(index.flatten()).reshape(*index.shape, *self.shape)

    def _are_in_memory(self, index: Tensor) -> Tensor:
        count = 0 if self._table is None else len(self._table)
        return self._number[index] < count

    def _rows_in_memory(self, index: Tensor) -> Tensor:
        assert self._table is not None
        return self._table.index_select(0, self._number[index].to(self.device)).float()

    @property
    def _at_once(self) -> int:
        return max(1, 2**22 // self.image_bytes)

    def _fill(self, position: int, out: Tensor) -> None:
        self._rows.read(int(self._position[position]), out)


class PictureSource(RowSource):
    """Pictures, decoded anew at each call, for a tower that trains: [n, C, H, W] by position in `file`.

    Args:
        backbone: its `transform` makes tensors of pictures; called in threads.
        file: image id -> picture.
        contents: image id -> SHA-256 of the picture when the run began.
        stamps: image id -> the picture's stamp (`machine.contents.stamp`) before that; renewed as files move.
        device: where the tensors go.

    A call raises DataError for a picture that is another one by now.
    """

    def __init__(
        self,
        backbone: Backbone,
        file: Mapping[str, Path],
        contents: Mapping[str, bytes],
        stamps: dict[str, tuple[int, ...]],
        device: torch.device,
    ) -> None:
        blank = backbone.transform(Image.new("RGB", (32, 32)))
        super().__init__(device, tuple(blank.shape), blank.dtype)
        self._transform = backbone.transform
        self._file = file
        self._contents = contents
        self._stamps = stamps
        self._ids = list(file)
        self._large = threading.Lock()

    def _fill(self, position: int, out: Tensor) -> None:
        image = self._ids[position]
        path = self._file[image]
        while True:
            with self._large if pixel_bytes(path) > _LARGE_PICTURE else nullcontext():
                pixels = self._transform(read_image(path))
            now = stamp(path)
            if now == self._stamps[image]:
                break
            self._stamps[image] = now
            if content_hashes({image: path}, cache_dir())[image] != self._contents[image]:
                raise DataError(f"{path} changed while the run read it: rerun the command")
        if pixels.shape != out.shape:
            raise NegbenchError(f"{path} becomes a tensor {list(pixels.shape)}, a blank picture {list(out.shape)}")
        out.copy_(pixels)
