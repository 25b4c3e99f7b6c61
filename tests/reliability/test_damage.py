"""A changed byte or a missing end in every kind of file that is read: refused by name, or the file is made again."""

import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kills import many

from negbench.analysis.findings import read_findings
from negbench.api import load
from negbench.cli.main import run as negbench
from negbench.errors import NegbenchError, RunError
from negbench.grid.comparison import ComparisonFolder
from negbench.loop.runs import RunContext
from negbench.machine import contents
from negbench.machine.files import SUMS, DamagedError, intact
from negbench.metrics.score_curves import ScoreCurves
from negbench.mining.pool_file import read_pools
from negbench.report.loaded import Comparison
from negbench.store.runfolder import RunFolder
from tests.runs import config_of, flags_of

TIMES = many(6, 50)


def damages(content: bytes, seed: int) -> Iterator[bytes]:
    """Yield `TIMES` damaged copies: bits flipped at offsets spread over the file, and ends cut off at any length."""
    chance = random.Random(seed)
    for number in range(TIMES):
        at = chance.randrange(len(content))
        if number % 3 == 2:
            yield content[:at]
        else:
            yield content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def damage_in_turn(path: Path) -> Iterator[bytes]:
    """Write each of `damages` to `path`, and restore the content at the end."""
    content = path.read_bytes()
    try:
        for wrong in damages(content, len(content)):
            path.write_bytes(wrong)
            yield wrong
    finally:
        path.write_bytes(content)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, vector_flags: list[str]) -> Path:
    """Return a runs folder with a finished comparison of two strategies."""
    runs = tmp_path_factory.mktemp("runs")
    assert negbench(duel(vector_flags, runs)) == 0
    return runs


def duel(vector_flags: list[str], runs: Path) -> list[str]:
    grid = ["--strategies", "qure,all-corpus", "--seeds", "1", "--name", "duel", "--no-report", "--lr=fixed"]
    return ["compare", *grid, *vector_flags, "--runs-dir", str(runs), "--tracking-uri", "none"]


@pytest.fixture(scope="module")
def finished(bench: Path) -> RunFolder:
    return RunFolder(next(bench.glob("qure-*-s0-*")))  # the report shows its queries


@pytest.fixture(scope="module")
def halfway(
    tmp_path_factory: pytest.TempPathFactory, vector_sets: list[str], interrupted: Callable[..., RunContext]
) -> RunFolder:
    """Return a run that was interrupted after its first epoch."""
    runs = tmp_path_factory.mktemp("halfway")
    interrupted(config_of(refresh_twice(vector_sets), "qure"), runs, 1)
    return RunFolder(next(runs.glob("qure-*")))


def refresh_twice(sets: list[str]) -> list[str]:
    return [*(text for text in sets if "n_def" not in text), "schedule.refresh_epochs=[0,1]"]  # which overrides n_def


# --- what cannot be made again ----------------------------------------------------------------------------------------


def read_curves(folder: RunFolder) -> ScoreCurves:
    return ScoreCurves.load(folder.path / "curves-start.npz")


def read_bits(folder: RunFolder) -> Any:
    return read_pools(folder.path / "pools-00.bits", (1, 1))


READERS: dict[str, Callable[[RunFolder], Any]] = {
    "config.json": lambda folder: folder.config,
    "result.json": lambda folder: folder.result,
    "metrics.jsonl": RunFolder.metrics,
    "ranks.parquet": RunFolder.ranks,
    "mining-00.parquet": lambda folder: folder.table("mining-00"),
    "model.safetensors": RunFolder.weights,
    "curves-start.npz": read_curves,
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_of_a_run_is_named(finished, name):
    read = READERS[name]
    read(finished)
    for _ in damage_in_turn(finished.path / name):
        with pytest.raises(DamagedError, match=rf"{name} is damaged \(.*\): move its folder"):
            read(finished)
    read(finished)


@pytest.mark.parametrize("name", [name for name in READERS if name != "config.json"])
def test_without_the_list_of_hashes_there_is_no_traceback(finished, tmp_path, name):
    """In a folder of an older version, without hashes, what is readable is read and damaged files are named."""
    copy = RunFolder(shutil.copytree(finished.path, tmp_path / finished.run_id))
    (copy.path / SUMS).unlink()
    messages = list[str]()
    for _ in damage_in_turn(copy.path / name):
        try:
            READERS[name](copy)
        except NegbenchError as error:
            messages.append(str(error))
    assert messages
    assert [line for line in messages if str(copy.path / name) not in line] == []


def test_a_damaged_list_of_cells_is_named_and_damaged_statistics_are_computed_again(bench):
    folder = bench / "duel"
    for _ in damage_in_turn(folder / "comparison.json"):
        with pytest.raises(DamagedError, match=r"comparison\.json is damaged"):
            ComparisonFolder(folder).cells()
    before = [repr(verdict) for verdict in read_findings(bench, "duel").verdicts]
    for number, _ in enumerate(damage_in_turn(folder / "statistics.json")):
        verdicts = [repr(verdict) for verdict in read_findings(bench, "duel").verdicts]
        assert verdicts == before, f"damage {number}"


def test_a_damaged_list_of_hashes_accepts_nothing_wrong(finished):
    """Files whose lines it lost are refused, and the others are still read."""
    want = finished.result
    results = list[Any]()
    for _ in damage_in_turn(finished.path / SUMS):
        with suppress(DamagedError, RunError):  # a file, or its name in the list, is missing
            results.append(finished.result)
    assert len(results) < TIMES
    assert results == [want] * len(results)


@pytest.mark.parametrize("name", ["checkpoint.pt", "pools-00.bits"])
def test_an_interrupted_run_does_not_go_on_from_a_damaged_file(halfway, vector_sets, name, expect_error):
    flags = flags_of(refresh_twice(vector_sets))
    again = ["run", "--strategy", "qure", *flags, "--tracking-uri", "none", "--runs-dir", str(halfway.path.parent)]
    for number, _ in enumerate(damage_in_turn(halfway.path / name)):
        (halfway.path / "error.txt").unlink(missing_ok=True)  # it is interrupted, not failed
        message = expect_error(again, f"{name} is damaged")
        assert ("delete" in message) == (name == "checkpoint.pt"), f"damage {number}"
    (halfway.path / "error.txt").unlink(missing_ok=True)


# --- what is made again -----------------------------------------------------------------------------------------------


Features = Callable[..., tuple[Any, dict[str, Path]]]


def test_damaged_features_are_encoded_anew(subtests, features, tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "SETTLED", -(10**18))  # files written just now are cached
    _, images = features(tmp_path, 4, fill=False)
    for path in images.values():
        os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**10))  # a recent file is read again and not looked up

    def encode() -> torch.Tensor:
        store, _ = features(tmp_path, 4)
        return store.load(list(images))[torch.arange(4)]

    want = encode()
    for file in (next(tmp_path.rglob("*.safetensors")), tmp_path / "features" / "hashes.json"):
        with subtests.test(file=file):
            for wrong in damages(file.read_bytes(), 3):
                for path in tmp_path.rglob("*.safetensors"):
                    path.unlink()
                file.write_bytes(wrong)
                # encoding again may use another batch size, which may change the last bit
                torch.testing.assert_close(encode(), want, rtol=2e-3, atol=2e-3)
                contents_now = [path.read_bytes() for path in tmp_path.rglob("*.safetensors")]
                assert wrong not in contents_now, f"{len(wrong)} bytes"


def test_every_bit_of_a_shards_header_is_checked(features, tmp_path):
    _, images = features(tmp_path, 2)
    (shard,) = tmp_path.rglob("*.safetensors")
    content = shard.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for at in range(0, 8 * header, 1 if TIMES > 6 else 59):
        wrong = bytearray(content)
        wrong[at // 8] ^= 1 << at % 8
        shard.write_bytes(wrong)
        store, _ = features(tmp_path, 2, fill=False)
        assert len(store.missing(images)) == 2, f"bit {at % 8} of {content[:header]!r}[{at // 8}]"


def test_a_shard_that_changed_within_a_tick_is_read_again(features, tmp_path):
    """Damage in place is seen though size, inode and modification time are those of the shard just checked."""
    _, images = features(tmp_path, 4)
    assert features(tmp_path, 4, fill=False)[0].missing(images) == []
    (shard,) = tmp_path.rglob("*.safetensors")
    before = shard.stat()
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 0x40  # a byte of the features, which are nearly all of it
    with shard.open("r+b") as file:
        file.write(content)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (shard.stat().st_ino, shard.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert features(tmp_path, 4, fill=False)[0].missing(images) == list(images)


# --- malice -----------------------------------------------------------------------------------------------------------


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", [*READERS, "checkpoint.pt", "pools-00.bits"])
def test_a_pickle_in_the_place_of_any_file_is_not_run(finished, tmp_path, name):
    """Pickled code never runs, even without the list of hashes, which would refuse the file."""
    copy = RunFolder(shutil.copytree(finished.path, tmp_path / finished.run_id))
    (copy.path / SUMS).unlink()
    readers = {**READERS, "checkpoint.pt": RunFolder.checkpoint, "pools-00.bits": read_bits}
    marker = tmp_path / "marker"
    evil = Malicious(marker)
    path = copy.path / name
    path.write_bytes(pickle.dumps(evil))
    with suppress(NegbenchError):
        readers[name](copy)
    torch.save({"state": evil}, path)
    with suppress(NegbenchError):
        readers[name](copy)
    with path.open("wb") as file:
        np.save(file, np.array([evil], dtype=object))
    with suppress(NegbenchError):
        readers[name](copy)
    assert not marker.exists()


# --- what is whole ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [MemoryError("12 GiB"), UnicodeEncodeError("ascii", "é", 0, 1, "no"), ValueError("another version")]
)
def test_no_file_is_to_be_deleted_unless_its_hash_differs(finished, error):
    path = finished.path / "ranks.parquet"
    with (
        pytest.raises(NegbenchError, match=r"cannot read .*; its content is as it was written") as refusal,
        intact(path),
    ):
        raise error
    assert not isinstance(refusal.value, DamagedError)
    assert "delete" not in str(refusal.value)
    missing = ImportError("no module", name="pyarrow")
    with pytest.raises(ImportError, match="no module"), intact(path):
        raise missing


TABLES = ("answer.md", "table.csv", "behaviour.csv", "cost.csv")


def test_a_changed_digit_in_a_table_is_computed_again_and_a_rerun_repairs_it(subtests, bench, vector_flags):
    contents = {name: (bench / "duel" / name).read_bytes() for name in TABLES}
    before = {name: repr(getattr(load("duel", bench), name.partition(".")[0])) for name in TABLES}
    for name in TABLES:
        with subtests.test(name=name):
            at = next(position for position, byte in enumerate(contents[name]) if chr(byte).isdigit())
            wrong = bytes([contents[name][at] ^ 1])
            (bench / "duel" / name).write_bytes(contents[name][:at] + wrong + contents[name][at + 1 :])
            loaded = load("duel", bench)
            assert isinstance(loaded, Comparison)
            assert repr(getattr(loaded, name.partition(".")[0])) == before[name]
    assert negbench(duel(vector_flags, bench)) == 0
    assert {name: (bench / "duel" / name).read_bytes() for name in TABLES} == contents
