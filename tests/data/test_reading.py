"""Reading ahead: the values of a plain table whatever was announced, and runs of the same bits."""

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from negbench.data import reading
from negbench.data.features import FeatureStore, feature_budget
from negbench.data.reading import InTurn, PictureSource, RowsInMemory, RowSource, read_ahead, reading_threads
from negbench.errors import DataError
from negbench.loop import runs
from negbench.loop.runs import DATA
from negbench.machine import signals
from negbench.machine.contents import content_hashes, stamp
from tests.loop.test_within_epochs import record_of, run_in_parts
from tests.runs import config_of, run, untrained

SHAPE = (5, 8)
IMAGE_BYTES = 2 * 5 * 8
NAMES = [f"image {number}" for number in torch.randperm(30, generator=torch.Generator().manual_seed(1)).tolist()]
FROZEN = ("backbone.name=clip", "backbone.init=random", "backbone.size=toy", "compute.feature_memory_gib=1e-9")
TRAINED = ("backbone.name=clip", "backbone.init=random", "backbone.size=toy", "backbone.frozen=false")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    """Thirty images in shards of seven."""
    store = FeatureStore(tmp_path_factory.mktemp("cache"), "key", SHAPE, 4)
    contents = {name: hashlib.sha256(name.encode()).digest() for name in NAMES}
    table = torch.randn(30, *SHAPE, generator=torch.Generator().manual_seed(0)).half()
    with store.writing():
        for rows in torch.arange(30).split(7):
            store._write([contents[f"image {row}"] for row in rows.tolist()], table[rows])
    store._refresh()
    store._content = contents
    return store


@pytest.fixture(scope="module")
def table() -> Tensor:
    """[30, 5, 8] float32: what the store holds of `NAMES`."""
    stored = torch.randn(30, *SHAPE, generator=torch.Generator().manual_seed(0)).half().float()
    return stored[[int(name.split()[1]) for name in NAMES]]


REQUESTS = {
    "one": [3],
    "neighbours": [0, 1, 2],
    "the announced": [3, 4, 9, 20],
    "the announced, backwards": [20, 9, 4, 3],
    "repeated": [5, 5, 2, 29],
    "all": list(range(30)),
    "none": [],
}


@pytest.mark.parametrize("budget", [0, 11, 30], ids="held={}".format)
@pytest.mark.parametrize("announced", [[], [[3, 4, 9, 20]], [[3, 4, 9, 20], list(range(10)), [9, 9]]], ids=len)
@pytest.mark.parametrize("request_", REQUESTS)
def test_values_are_those_of_the_table(store, table, budget, announced, request_):
    source = store.load(NAMES, budget_bytes=budget * IMAGE_BYTES)
    handles = [source.announce(torch.tensor(index)) for index in announced]
    index = torch.tensor(REQUESTS[request_], dtype=torch.int64)
    assert torch.equal(source(index), table[index])
    assert torch.equal(source(index), table[index])  # twice, as a backward pass that computes it again
    source.forget(handles)
    assert source._readings == []


def test_the_first_images_are_held(store, table):
    source = store.load(NAMES, budget_bytes=11 * IMAGE_BYTES + 1)
    assert (source.held_bytes, source.total_bytes, source.in_memory) == (11 * IMAGE_BYTES, 30 * IMAGE_BYTES, False)
    assert source._are_in_memory(torch.arange(30)).tolist() == [True] * 11 + [False] * 19
    source.hold(10**6)
    assert source.in_memory
    assert torch.equal(source(torch.arange(30)), table)
    source.hold(0)
    assert source.held_bytes == 0


def test_equal_pictures_are_held_once(store, table):
    source = store.load([NAMES[4], *NAMES, NAMES[7]], budget_bytes=30 * IMAGE_BYTES)
    assert source.in_memory
    assert torch.equal(source(torch.tensor([0, 5, 31])), table[[4, 4, 7]])


def test_a_replaced_shard_and_too_many_open_files_are_read_from_the_mapping(store, table, monkeypatch):
    def refuse(*arguments: Any, **options: Any) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(reading.os, "open", refuse)
    source = store.load(NAMES, budget_bytes=0)
    monkeypatch.undo()
    assert source._rows._files == [None] * 5
    assert torch.equal(source(torch.arange(30)), table)


def test_a_file_of_another_stamp_is_not_opened(store, monkeypatch):
    shard = next(iter(store._shards.values()))
    rows = reading.ShardRows(shard.features, store.folder / next(iter(store._shards)), shard.offset, (0, 0, 0))
    assert reading._open_same(rows) is None


# --- what is read when -----------------------------------------------------------------------------------------------


class Noting(RowSource):
    """Images whose values are their positions; notes which were read."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), (1,), torch.float32)
        self.read: list[int] = []

    def _fill(self, position: int, out: Tensor) -> None:
        if position == 99:
            raise DataError("image 99 cannot be read")
        self.read.append(position)
        out.fill_(position)


def test_what_is_announced_is_read_before_it_is_asked_for():
    source = Noting()
    handle = source.announce(torch.tensor([4, 2, 4]))
    assert handle is not None
    handle.ready.result()
    assert sorted(source.read) == [2, 4]
    assert source(torch.tensor([2, 4])).flatten().tolist() == [2, 4]
    assert sorted(source.read) == [2, 4]


def test_an_error_is_raised_where_the_image_is_asked_for():
    source = Noting()
    source.announce(torch.tensor([1, 99]))
    assert source(torch.tensor([5])).item() == 5
    with pytest.raises(DataError, match="image 99"):
        source(torch.tensor([99]))


def test_the_next_two_items_are_read_while_one_is_used():
    source = Noting()

    def images_of(item: int) -> list[Tensor]:
        return [torch.tensor([item]), torch.tensor([item + 100])]

    announced = []
    for _ in read_ahead(source, range(6), images_of):
        announced.append(torch.cat([handle.index for handle in source._readings]).tolist())
    assert announced == [
        [0, 100, 1, 101, 2, 102],
        [1, 101, 2, 102, 3, 103],
        [2, 102, 3, 103, 4, 104],
        [3, 103, 4, 104, 5, 105],
        [4, 104, 5, 105],
        [5, 105],
    ]
    assert source._readings == []


def test_of_many_images_the_next_part_is_read_while_one_is_computed():
    source = Noting()
    parts = torch.arange(7).split(3)
    read = InTurn(source, parts)
    for part, announced in zip(parts, ([[3, 4, 5]], [[6]], []), strict=True):
        assert torch.equal(read(part).flatten(), part.float()), f"part {part}"
        assert [handle.index.tolist() for handle in source._readings] == announced, f"part {part}"
    assert read(torch.tensor([5, 1])).flatten().tolist() == [5, 1]  # no part: read at once
    assert source._readings == []


def test_an_epoch_that_ends_early_drops_what_was_announced():
    source = Noting()
    items = read_ahead(source, range(6), lambda item: [torch.tensor([item])])
    next(items)
    assert len(source._readings) == 3
    items.close()  # type: ignore[attr-defined]
    assert source._readings == []


def test_so_much_is_read_ahead_and_no_more(monkeypatch):
    monkeypatch.setattr(reading, "_AHEAD_BYTES", 4 * 5)  # five numbers
    source = Noting()
    assert source.announce(torch.arange(3)) is not None
    assert source.announce(torch.arange(10, 13)) is None
    assert source(torch.arange(10, 13)).flatten().tolist() == [10, 11, 12]


def test_images_in_memory_are_not_announced():
    source = RowsInMemory(torch.randn(9, 2))
    assert source.announce(torch.arange(3)) is None
    assert list(read_ahead(source, range(3), lambda item: pytest.fail("nothing is to be read"))) == [0, 1, 2]


def test_a_forked_process_has_threads_of_its_own(monkeypatch):
    source = Noting()
    threads = source._threads()
    assert source._threads() is threads
    monkeypatch.setattr(reading.os, "getpid", lambda: -1)
    assert source._threads() is not threads


@pytest.mark.parametrize(("workers", "cores", "threads"), [(None, 2, 4), (0, 16, 16), (3, 16, 3), (None, 500, 32)])
def test_the_number_of_threads(workers, cores, threads, monkeypatch):
    monkeypatch.setattr(reading, "cores", lambda: cores)
    assert reading_threads(workers) == threads


def test_large_pictures_are_decoded_one_at_a_time(tmp_path, monkeypatch):
    """With a limit that every picture exceeds."""
    file = {f"i{n}": tmp_path / f"i{n}.png" for n in range(6)}
    for number, path in enumerate(file.values()):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path)
    together = 0
    most = 0

    def transform(image: Image.Image) -> Tensor:
        nonlocal together, most
        together += 1
        most = max(most, together)
        pixels = torch.tensor(float(image.getpixel((0, 0))[0]))
        together -= 1
        return pixels

    monkeypatch.setattr(reading, "_LARGE_PICTURE", 1)
    backbone: Any = type("Toy", (), {"transform": staticmethod(transform)})
    stamps = {image: stamp(path) for image, path in file.items()}
    source = PictureSource(backbone, file, content_hashes(file, tmp_path), stamps, torch.device("cpu"))
    assert source(torch.arange(6)).tolist() == [*range(6)]
    assert most == 1


# --- what is held ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "held_bytes", "step", "budget"),
    [(80, 0, 10, 40), (80, 0, 60, 20), (80, 0, 90, 0), (50, 30, 10, 40), (50, 30, 60, 20)],
)
def test_a_gpu_holds_what_the_step_leaves_at_most_half_of_what_is_free(free, held_bytes, step, budget, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 100))
    assert feature_budget(torch.device("cuda"), held_bytes, step) == budget


@pytest.mark.parametrize(("memory", "budget"), [(2**40, 2**32), (2**30, 2**29)])
def test_a_cpu_holds_four_gibibytes_at_most_half_of_its_memory(memory, budget, set_memory):
    set_memory(memory)
    assert feature_budget(torch.device("cpu")) == budget


@pytest.mark.parametrize(("device", "pinned"), [("cpu", False), ("cuda", True)])
def test_memory_that_is_read_into_is_pinned_for_a_gpu(device, pinned, store, monkeypatch):
    source = store.load(NAMES, "cpu", 0)
    source.device = torch.device(device)
    asked_for = list[bool]()
    empty = torch.empty

    def note(*shape: int, pin_memory: bool, **how: Any) -> Tensor:
        asked_for.append(pin_memory)
        return empty(*shape, **how)

    monkeypatch.setattr(torch, "empty", note)
    source._buffer(3)
    assert asked_for == [pinned]


GPU_RUNS = {  # compute.feature_memory_gib -> what is held of 30 bytes that are free where a step takes 12
    "half of what is free": (None, 15),
    "a size that is set": (2.0**-29, 2),
}


@pytest.mark.parametrize(("setting", "budget"), GPU_RUNS.values(), ids=GPU_RUNS)
def test_a_run_on_a_gpu_holds_what_its_step_leaves(setting, budget, toy_root, store, monkeypatch):
    """The device is a stand-in: only what decides is asked of it."""
    sets = [f"dataset.root='{toy_root}'", "backbone.weights='random'"]
    if setting is not None:
        sets.append(f"compute.feature_memory_gib={setting}")
    opened = untrained(config_of(sets, "qure"))
    source = store.load(NAMES, "cpu", 0)
    source.device = torch.device("cuda")
    budgets = list[int]()
    monkeypatch.setattr(source, "hold", budgets.append)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30, 100))
    monkeypatch.setattr(runs, "step_memory", lambda run, plan: {"weights": 5, "activations": 7})
    runs.hold_features(replace(opened, scene=replace(opened.scene, source=source)))
    assert budgets == [budget]


# --- a GPU -----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("budget", [0, 11, 30], ids="held={}".format)
def test_a_gpu_has_the_values_of_the_table(budget, store, table, subtests):
    """Read into pinned memory and copied on a stream of its own, or held."""
    source = store.load(NAMES, "cuda", budget * IMAGE_BYTES)
    assert source._buffer(2).is_pinned()
    assert source.held_bytes == budget * IMAGE_BYTES
    ahead = source.announce(torch.arange(8, 20))
    for index in (torch.arange(30), torch.arange(8, 20), torch.tensor([20, 9, 9, 3])):
        with subtests.test(rows=len(index)):
            values = source(index)
            assert values.device.type == "cuda"
            assert torch.equal(values.cpu(), table[index])
    source.forget([ahead])


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def unannounced(spy_on: Callable[..., Any]) -> Callable[[], list[int]]:
    """Return a function that gives the sizes of the requests so far that nothing had announced.

    Without those of one and two images, which are asked for to measure what they take.
    """
    calls = spy_on(RowSource, "_gather")

    def sizes() -> list[int]:
        return [len(index) for _, index, _ in calls if len(index) > 2]

    return sizes


STRATEGIES = ["qure", "in-batch", "in-batch+qure", "hycole"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_that_reads_ahead_has_the_bits_of_one_that_holds_all(strategy, toy_sets, tmp_path, unannounced, logged):
    sets = [*toy_sets, "train.num_negatives=2"] if strategy == "qure" else toy_sets
    in_memory = run(config_of(sets, strategy), tmp_path / "in memory")
    assert in_memory.details["features"]["held_bytes"] == in_memory.details["features"]["bytes"]
    ahead = run(config_of(sets, strategy, "compute.feature_memory_gib=1e-9"), tmp_path / "ahead")
    assert ahead.details["features"]["held_bytes"] < ahead.details["features"]["bytes"]
    assert "read ahead by" in " ".join(record.getMessage() for record in logged)
    assert unannounced() == []  # each step, refresh and scoring asks for what had been announced
    assert (in_memory.path / "ranks.parquet").read_bytes() == (ahead.path / "ranks.parquet").read_bytes()
    torch.testing.assert_close(ahead.folder.weights(), in_memory.folder.weights(), rtol=0, atol=0)


@pytest.mark.parametrize("tower", [TRAINED, FROZEN], ids=["trains", "frozen"])
def test_a_run_has_one_pool_of_as_many_threads_as_asked(tower, toy_root, tmp_path, unannounced, monkeypatch):
    """Regression: `compute.workers` did nothing where the tower trains, and each read made a pool of four threads.

    A frozen tower's encodes the pictures first, and reads their features ahead.
    """
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path / "cache"))
    pools = list[int]()
    monkeypatch.setattr(reading, "_pools", {})

    class Counting(ThreadPoolExecutor):
        def __init__(self, threads: int, **more: Any) -> None:
            pools.append(threads)
            super().__init__(threads, **more)

    monkeypatch.setattr(reading, "ThreadPoolExecutor", Counting)
    sets = [f"dataset.root='{toy_root}'", *tower, "train.epochs=2", "train.batch_size=36", "schedule.n_def=2"]
    of_three = run(config_of(sets, "qure", "compute.workers=3"), tmp_path / "3").folder
    of_one = run(config_of(sets, "qure", "compute.workers=1"), tmp_path / "1").folder
    assert pools == [3, 1]
    assert unannounced() == []
    torch.testing.assert_close(of_three.weights(), of_one.weights(), rtol=0, atol=0)


@pytest.mark.parametrize("tower", [TRAINED, FROZEN], ids=["trains", "frozen"])
def test_a_run_that_reads_ahead_resumes_within_an_epoch(tower, toy_root, tmp_path, monkeypatch):
    """Stopped in a step while the next ones' images are read: nothing stays announced, and all bits are the same."""
    monkeypatch.setattr(signals, "_noted", [])
    sets = [f"dataset.root='{toy_root}'", *tower, "train.epochs=2", "train.batch_size=16", "schedule.n_def=2"]
    config = config_of(sets, "qure", "compute.workers=2")
    whole = run(config, tmp_path / "whole").folder
    parts = run_in_parts(config, tmp_path / "parts", [2, 7])
    assert record_of(parts) == record_of(whole)
    scene = DATA._scene
    assert scene is not None
    assert scene[1].source._readings == []
