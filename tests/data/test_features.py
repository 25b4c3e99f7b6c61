"""The feature store against a plain loop over images; after kills and damage, between processes, on a full disk."""

import errno
import hashlib
import json
import os
import shutil
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from negbench.contracts import Backbone
from negbench.data import features
from negbench.data.features import FeatureStore, store_of
from negbench.errors import DataError, NegbenchError, OptionError
from negbench.machine import contents, room
from negbench.machine.contents import content_hashes

ROWS, WIDTH, SIDE = 2, 8, 12


def shrink(image: Image.Image) -> Tensor:
    pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)), dtype=np.float32) / 255
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


class Pooled(Backbone):
    """A backbone whose image features are one linear map of pooled pixels."""

    def __init__(self, *, scale: float = 1.0, pause: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 16, ROWS * WIDTH)
        values = torch.randn(ROWS * WIDTH, 3 * 16, generator=torch.Generator().manual_seed(3))
        self.linear.weight.data.copy_(values)
        self.linear.bias.data.copy_(values[:, 0])
        self.drop = nn.Dropout(0.5)
        self.scale, self.pause = scale, pause
        self.batches: list[int] = []
        self.transform = shrink

    def image_features(self, pixels: Tensor) -> Tensor:
        self.batches.append(len(pixels))
        time.sleep(self.pause)
        pooled = nn.functional.adaptive_avg_pool2d(pixels, 4).flatten(1)
        return self.drop(self.linear(pooled)).reshape(-1, ROWS, WIDTH) * self.scale

    @property
    def feature_key(self) -> str:
        return "pooled"


Pooled.__abstractmethods__ = frozenset()  # other methods are not used


def images_of(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.png"))}


def by_loop(backbone: Pooled, images: dict[str, Path]) -> Tensor:
    """Encode one image at a time in float32."""
    backbone.eval()
    with torch.no_grad():
        return torch.cat([backbone.image_features(shrink(Image.open(path))[None]) for path in images.values()])


def main(root: str, folder: str, shard_rows: str, pause: str) -> None:
    """Encode a folder in this process; print one line per finished batch and a JSON summary."""
    features._SHARD_BYTES = int(shard_rows) * 2 * ROWS * WIDTH
    store = FeatureStore(Path(root), "pooled", (ROWS, WIDTH), batch=2)
    backbone = Pooled(pause=float(pause))
    print("ready", flush=True)
    sys.stdin.readline()
    encoded = store.ensure(images_of(Path(folder)), backbone, progress=partial(print, flush=True))
    print(json.dumps({"encoded": encoded, "batches": backbone.batches}), flush=True)


@pytest.fixture
def start(forked):
    """Return a function that starts a process running `main` with the given arguments."""

    def start_main(*arguments):
        return forked(partial(main, *(str(argument) for argument in arguments)))

    return start_main


def release(*processes):
    """Let all processes begin to encode once all are ready."""
    for number, process in enumerate(processes):
        assert process.stdout.readline() == "ready\n", f"process {number}"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write twelve images of different sizes and modes, and `copy` with the bytes of `i03`."""
    folder = tmp_path / "images"
    folder.mkdir()
    random = np.random.default_rng(0)
    for index in range(12):
        pixels = random.integers(0, 256, (10 + index, 20 - index, 3), dtype=np.uint8)
        Image.fromarray(pixels).convert("RGB" if index % 2 else "L").save(folder / f"i{index:02d}.png")
    (folder / "copy.png").write_bytes((folder / "i03.png").read_bytes())
    return folder


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> int:
    """Limit shards to four images."""
    monkeypatch.setattr(features, "_SHARD_BYTES", 4 * 2 * ROWS * WIDTH)
    return 4


def new_store(tmp_path: Path, batch: int = 5) -> FeatureStore:
    return FeatureStore(tmp_path / "cache", "pooled", (ROWS, WIDTH), batch)


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    return new_store(tmp_path)


@pytest.fixture
def images(folder: Path) -> dict[str, Path]:
    return images_of(folder)


# --- encoding and reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [None, 0])
def test_equals_the_plain_loop(store, images, small_shards, budget):
    backbone = Pooled()
    assert store.ensure(images, backbone) == 12  # of 13 ids, as two share a picture
    loaded = store.load(list(images), budget_bytes=budget)
    assert loaded.in_memory is (budget is None)
    assert len(loaded) == 13
    assert loaded.shape == (ROWS, WIDTH)
    index = torch.tensor([12, 0, 5, 5, 3])
    rows = loaded[index]
    assert rows.dtype == torch.float32
    error = torch.finfo(torch.float16).eps
    torch.testing.assert_close(rows, by_loop(backbone, images)[index], rtol=error, atol=error)
    assert torch.equal(loaded[index.reshape(5, 1)], rows[:, None])
    assert loaded[torch.zeros(0, dtype=torch.int64)].shape == (0, ROWS, WIDTH)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_any_number_of_workers_gives_the_same(tmp_path, images, workers):
    def encode(workers: int | None) -> Tensor:
        store = FeatureStore(tmp_path / f"{workers}", "pooled", (ROWS, WIDTH), batch=5)
        store.ensure(images, Pooled(), workers=workers)
        return store.load(list(images))[torch.arange(13)]

    assert torch.equal(encode(workers), encode(None))


def test_every_batch_of_the_encoder_has_one_size(tmp_path, images):
    backbone = Pooled()
    new_store(tmp_path).ensure({image: images[image] for image in ("i03", "i05")}, backbone)
    new_store(tmp_path).ensure(images, backbone)
    assert backbone.batches == [5] * 3


def test_only_what_is_new_is_encoded(store, images):
    assert store.ensure({image: images[image] for image in ("i03", "i05")}, Pooled()) == 2
    assert store.missing(images) == [image for image in images if image not in ("copy", "i03", "i05")]
    counts: list[int] = []
    assert store.ensure(images, Pooled(), progress=counts.append) == 10
    assert counts == [3, 5, 5]
    assert len(store) == 12


def test_content_decides_not_the_name(store, images, folder):
    store.ensure(images, Pooled())
    (folder / "i00.png").write_bytes((folder / "i07.png").read_bytes())
    assert store.ensure(images, Pooled()) == 0
    rows = store.rows(["i00", "i07"])
    assert rows[0] == rows[1]
    Image.new("RGB", (9, 9), (1, 2, 3)).save(folder / "i00.png")
    assert store.ensure(images, Pooled()) == 1


def test_mode_of_every_module_and_the_global_generators_are_left_alone(tmp_path, folder):
    backbone = Pooled()
    backbone.train()
    backbone.linear.eval()
    state = torch.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()  # noqa: NPY002
    store_of(backbone, root=tmp_path).ensure(images_of(folder), backbone, workers=1)
    assert (backbone.training, backbone.linear.training, backbone.drop.training) == (True, False, True)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert [name for name, parameter in backbone.named_parameters() if parameter.grad is not None] == []


@pytest.mark.gpu
@pytest.mark.parametrize("budget", [None, 0])
def test_on_a_gpu(store, images, small_shards, budget):
    backbone = Pooled()
    want = by_loop(backbone, images)
    assert store.ensure(images, backbone, device="cuda", workers=1) == 12
    loaded = store.load(list(images), "cuda", budget)
    assert loaded.in_memory is (budget is None)
    index = torch.tensor([7, 7, 0, 12], device="cuda")
    assert loaded[index].device.type == "cuda"
    torch.testing.assert_close(loaded[index].cpu(), want[index.cpu()], rtol=2e-3, atol=2e-3)


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_missing_file_is_named(store, images, folder):
    with pytest.raises(DataError, match=r"1 of 14 images have no file, the first: 'gone' at .*gone\.png"):
        store.ensure(images | {"gone": folder / "gone.png"}, Pooled())


def test_unreadable_images_are_named_and_the_others_stored(tmp_path, store, images, folder):
    (folder / "i04.png").write_bytes((folder / "i04.png").read_bytes()[:60])
    (folder / "i06.png").write_bytes(b"")
    (folder / "i08.png").write_text("<html>404</html>")
    with pytest.raises(DataError, match=r"i04\.png is not a readable image.*\(and 2 more\)") as caught:
        store.ensure(images, Pooled())
    assert "\n" not in str(caught.value)
    assert new_store(tmp_path).missing(images) == ["i04", "i06", "i08"]


@pytest.mark.parametrize(("scale", "what"), [(1e6, r"a feature of \d"), (float("nan"), "a feature that is not finite")])
def test_out_of_half_range_names_the_image(store, images, scale, what):
    with pytest.raises(NegbenchError, match=rf"image 'copy' \(.*copy\.png\) has .*{what}.*65504"):
        store.ensure(images, Pooled(scale=scale))


def test_a_full_disk_loses_nothing_finished(tmp_path, images, small_shards, monkeypatch):
    real_fsync = os.fsync
    calls = 0

    def fsync(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 4:  # two syncs per shard: file and folder
            raise OSError(errno.ENOSPC, "No space left on device")
        real_fsync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(NegbenchError, match=r"No space left on device; the finished shards are kept"):
        new_store(tmp_path, 2).ensure(images, Pooled())
    monkeypatch.setattr(os, "fsync", real_fsync)
    store = new_store(tmp_path, 2)
    assert len(store) == 2 * small_shards
    assert not list(store.folder.glob(".*.partial"))
    leftover = store.folder / ".00009-aaaaaaaa.safetensors.x1y2.partial"  # as a kill leaves it
    leftover.write_bytes(b"half a shard")
    assert store.ensure(images, Pooled()) == 12 - 2 * small_shards
    assert not leftover.exists()


def test_too_little_room_is_said_before_encoding(tmp_path, store, images, monkeypatch):
    backbone = Pooled()
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(room.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(NegbenchError, match=r"of disk, .*set NEGBENCH_CACHE"):
        store.ensure(images, backbone)
    assert backbone.batches == []


def test_an_interrupt_keeps_what_is_encoded(tmp_path, store, images):
    def interrupt(count: int) -> None:
        if count == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.ensure(images, Pooled(), progress=interrupt)
    assert len(new_store(tmp_path)) == 5


def test_changed_shape_under_one_key_is_refused(tmp_path, store, images):
    store.ensure(images, Pooled())
    with pytest.raises(NegbenchError, match=r"feature_key must distinguish the two"):
        FeatureStore(tmp_path / "cache", "pooled", (1, WIDTH), 5)
    with pytest.raises(NegbenchError, match=r"returned \(5, 2, 8\) for 5 images"):
        FeatureStore(tmp_path / "new", "pooled", (1, WIDTH), 5).ensure(images, Pooled())


def test_a_fine_tuned_backbone_is_refused(store, images):
    backbone = Pooled()
    backbone.frozen_images = False
    with pytest.raises(NegbenchError, match="trains its image tower"):
        store.ensure(images, backbone)


def test_a_picture_replaced_while_it_is_encoded_is_not_stored(tmp_path, store, images):
    backbone = Pooled()

    def replace_first(image: Image.Image) -> Tensor:
        new = shutil.copy(images["i01"], tmp_path / f"{threading.get_ident()}")
        new.replace(images["i00"])  # at once, whoever reads it now
        return shrink(image)

    backbone.transform = replace_first
    with pytest.raises(DataError, match=r"i00\.png changed while it was encoded: rerun"):
        store.ensure(images, backbone)
    assert len(new_store(tmp_path)) == 0


def test_a_cache_that_vanishes_is_told_from_images_never_encoded(store, images):
    store.ensure(images, Pooled())
    shutil.rmtree(store.folder)
    with pytest.raises(NegbenchError, match=f"13 images have no stored .*; files vanished from {store.folder}: rerun"):
        store.load(list(images))


def test_reading_what_is_not_there(store, images):
    with pytest.raises(NegbenchError, match="1 images have no stored features, the first: 'i00'"):
        store.load(["i00"])
    store.missing(images)
    with pytest.raises(NegbenchError, match="2 images have no stored features, the first: 'i01'"):
        store.load(["i01", "i02"])


def test_bad_keys(tmp_path, subtests):
    for key in ("", "../up", "a/b", ".hidden"):
        with subtests.test(key=key), pytest.raises(OptionError, match="key must be"):
            FeatureStore(tmp_path, key, (1, 1))


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_damaged_shard_is_encoded_anew_and_a_reader_keeps_its_rows(tmp_path, images, small_shards, logged):
    """A damaged list of hashes; tests/reliability/test_damage.py damages the other parts bit by bit."""
    backbone = Pooled()
    store = new_store(tmp_path, 4)
    store.ensure(images, backbone)
    reader = store.load(list(images), budget_bytes=0)
    want = reader[torch.arange(13)]
    shard = sorted(store.folder.glob("*.safetensors"))[1]
    wrong = bytearray(shard.read_bytes())
    wrong[wrong.index(store._shards[shard.name].contents[0])] ^= 1
    (tmp_path / "wrong").write_bytes(wrong)
    (tmp_path / "wrong").replace(shard)
    assert new_store(tmp_path, 4).ensure(images, backbone) == 4
    assert f"{shard} is damaged" in " ".join(record.getMessage() for record in logged)
    assert not shard.exists()
    assert torch.equal(reader[torch.arange(13)], want)
    again = new_store(tmp_path, 4)
    again.ensure(images, backbone)
    assert torch.equal(again.load(list(images), budget_bytes=0)[torch.arange(13)], want)


# --- several processes -----------------------------------------------------------------------------------------------


def test_four_processes_on_an_empty_store_encode_each_image_once(tmp_path, folder, start):
    processes = [start(tmp_path / "cache", folder, 3, 0.05) for _ in range(4)]
    release(*processes)
    reports = [json.loads(process.communicate().splitlines()[-1]) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum(report["encoded"] for report in reports) == 12
    assert sum(len(report["batches"]) for report in reports) == 6  # of two
    assert len(new_store(tmp_path, 2)) == 12


def test_readers_beside_a_writer_see_whole_shards_only(tmp_path, folder, start):
    (folder / "copy.png").unlink()
    images = images_of(folder)
    process = start(tmp_path / "cache", folder, 2, 0.05)
    want = dict(zip(images, by_loop(Pooled(), images), strict=True))
    release(process)
    counts = set()
    while process.poll() is None:
        reader = new_store(tmp_path, 2)
        lacking = reader.missing(images)
        ready = [image for image in images if image not in lacking]
        rows = reader.load(ready, budget_bytes=0)[torch.arange(len(ready))]
        for image, row in zip(ready, rows, strict=True):
            torch.testing.assert_close(row, want[image], rtol=2e-3, atol=2e-3)
        counts.add(len(ready))
        time.sleep(0.01)
    assert process.returncode == 0
    assert len(counts) > 2  # it was read while being filled


# --- content hashes --------------------------------------------------------------------------------------------------


def test_hashes_are_those_of_the_bytes(tmp_path, images):
    want = {image: hashlib.sha256(path.read_bytes()).digest() for image, path in images.items()}
    assert content_hashes(images, tmp_path) == want
    assert list(content_hashes(images, tmp_path)) == list(images)


@pytest.fixture
def settled(monkeypatch):
    """Let files count as unchanged at once: the time of an inode's change cannot be set back."""
    monkeypatch.setattr(contents, "SETTLED", 0)


def test_unchanged_files_are_not_read_again(tmp_path, images, folder, monkeypatch, settled, spy_on):
    first = content_hashes(images, tmp_path)
    read = spy_on(contents, "_file_sha256")
    monkeypatch.chdir(folder)
    assert content_hashes({image: Path(path.name) for image, path in images.items()}, tmp_path) == first
    assert read == []
    os.utime(folder / "i05.png", ns=(0, 1))
    assert content_hashes(images, tmp_path) == first
    assert read == [(str(folder / "i05.png"),)]


def test_names_of_any_characters(tmp_path, settled):
    images = {}
    for name in ("a b.png", "näh.png", "two\nlines.png", "\udcff.png"):
        (tmp_path / name).write_bytes(name.encode("utf-8", "surrogateescape"))
        images[name] = tmp_path / name
    first = content_hashes(images, tmp_path / "cache")
    assert len(set(first.values())) == 4
    assert content_hashes(images, tmp_path / "cache") == first
    assert len(contents.read_entries(tmp_path / "cache" / "features" / "hashes.json")) == 4


def test_files_of_equal_size_and_time_that_change_places_are_read_again(tmp_path, settled):
    files = {name: tmp_path / name for name in ("first", "other")}
    for name, path in files.items():
        path.write_bytes(name.encode())
        os.utime(path, ns=(0, 10**18))
    want = content_hashes(files, tmp_path)
    (tmp_path / "first").rename(tmp_path / "kept")
    (tmp_path / "other").rename(tmp_path / "first")
    (tmp_path / "kept").rename(tmp_path / "other")
    assert content_hashes(files, tmp_path) == {"first": want["other"], "other": want["first"]}
    (tmp_path / "first").write_bytes(b"later")  # in place, with its time set back
    os.utime(tmp_path / "first", ns=(0, 10**18))
    assert content_hashes(files, tmp_path)["first"] == hashlib.sha256(b"later").digest()


def test_a_file_rewritten_within_a_tick_is_read_again(tmp_path):
    """A picture of equal size and modification time gets its own hash, as recently written files are not cached."""
    path = tmp_path / "a.png"
    path.write_bytes(b"first")
    before = path.stat().st_mtime_ns
    assert content_hashes({"a": path}, tmp_path)["a"] == hashlib.sha256(b"first").digest()
    path.write_bytes(b"other")
    os.utime(path, ns=(before, before))
    assert content_hashes({"a": path}, tmp_path)["a"] == hashlib.sha256(b"other").digest()


def test_no_flipped_bit_of_the_memory_gives_another_hash(tmp_path, images, settled):
    """With any bit of the hash cache flipped, the whole cache is discarded and hashes are computed again."""
    images = dict(list(images.items())[:2])
    want = content_hashes(images, tmp_path)
    memory = tmp_path / "features" / "hashes.json"
    content = memory.read_bytes()
    assert len(contents.read_entries(memory)) == 2
    for at in range(len(content)):
        memory.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        contents._parse.cache_clear()  # as a new process
        assert contents.read_entries(memory) == {}, f"cut at {at}"
    assert content_hashes(images, tmp_path) == want
    assert len(contents.read_entries(memory)) == 2
