"""The door for received files: what is no regular file is refused, and so is what would fill the memory.

Each bomb is opened in a child that may take little memory: without the check, the child fails with another error.
`make faults` tries bombs of full size; `make test` divides them, and the rule's gibibyte, by 64.
"""

import ast
import gc
import io
import os
import resource
import socket
import struct
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import EpsImagePlugin, Image
from pyarrow import parquet

from negbench.cli.main import run as negbench
from negbench.errors import NegbenchError
from negbench.files.image_files import read_image
from negbench.files.row_files import read_rows
from negbench.files.vector_files import read_vectors
from negbench.machine import files, received
from negbench.machine import free_memory as memory
from negbench.machine.parquet_size import ROWS, read_pages, unpacked_size

ROOT = Path(__file__).parents[2]
SCALE = 1 if "NEGBENCH_FAULTS" in os.environ else 64
GIB = 2**30 // SCALE


def limit_memory(most: int) -> None:
    """Let this process take so many bytes more, and no others."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + most,) * 2)


def tell(action: Callable[[], Any], most: int, plenty: bool) -> None:
    """Print the line with which an action is refused, in a process with little memory."""
    received._GIB = GIB
    received.free_memory = lambda: 2**50 if plenty else most  # with plenty, only the rule of 16 times can refuse it
    limit_memory(most)
    try:
        action()
    except NegbenchError as error:
        print(f"refused: {error}", end="")


@pytest.fixture
def refusal(forked: Callable[..., Any]) -> Callable[..., str]:
    """Return a function that gives the line with which an action is refused in a child of little memory."""

    def line(action: Callable[[], Any], most: int = GIB, plenty: bool = False) -> str:
        child = forked(partial(tell, action, most, plenty))
        text = child.communicate()
        assert child.returncode == 0, text
        assert text.startswith("refused: "), text
        assert "\n" not in text
        return text

    return line


# --- what is no regular file ---------------------------------------------------------------------------------------


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def a_link_to_a_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def a_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


STRANGE: dict[str, Callable[[Path], None]] = {
    "FIFO": os.mkfifo,
    "socket": a_socket,
    "device": a_link_to_a_device,
    "link to a FIFO": a_link_to_a_fifo,
}


def read_sums_beside(path: Path) -> Any:
    return files.sums_in(path.parent)


def read_rows_beside(path: Path) -> Any:
    return read_rows(path.with_name("rows.csv"))


READERS: dict[str, Callable[[Path], Any]] = {
    "bytes": received.read_bytes,
    "text": received.read_text,
    "npy": received.npy_array,
    "npz": received.npz_arrays,
    "parquet": received.read_parquet,
    "checkpoint": received.load_checkpoint,
    "safetensors": received.check_safetensors,
    "picture": read_image,
    "hash": files.sha256_of,
    "sums": read_sums_beside,
    "rows": read_rows_beside,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", STRANGE)
def test_only_regular_files_are_read(tmp_path, monkeypatch, kind, reader):
    monkeypatch.chdir(tmp_path)  # a socket's name must be short
    name = {"sums": files.SUMS, "rows": "rows.csv"}.get(reader, "f")
    STRANGE[kind](Path(name))
    with pytest.raises(NegbenchError, match=r"is not read: it is a |is a link that leads out"):
        READERS[reader](Path(name))


def test_a_link_to_a_regular_file_is_read_and_a_folder_is_an_error(tmp_path):
    (tmp_path / "there").write_bytes(b"1")
    (tmp_path / "link").symlink_to("there")
    assert received.read_bytes(tmp_path / "link") == b"1"
    with pytest.raises(IsADirectoryError):
        received.read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        received.read_bytes(tmp_path / "none")


def test_a_pipe_that_takes_the_place_of_a_listed_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "listed")
    with pytest.raises(NegbenchError, match=r"is not read: it is a named pipe"):
        received.open_unbuffered(tmp_path / "listed", listed=True)


def test_a_sweep_does_not_wait_at_a_pipe(tmp_path):
    os.mkfifo(tmp_path / ".x.partial")
    (tmp_path / ".y.partial").touch()
    assert files.sweep(tmp_path) == [tmp_path / ".y.partial"]


def test_links_within_the_runs_folder_are_read_and_those_out_of_it_are_not(tmp_path):
    runs = tmp_path / "runs"
    outside = tmp_path / "secret.json"
    outside.write_text("{}", encoding="utf-8")
    files.write_json(runs / "a" / "x.json", {})
    (runs / "b").mkdir()
    (runs / "b" / "x.json").symlink_to(runs / "a" / "x.json")
    assert files.read_json(runs / "b" / "x.json") == {}
    (runs / "b" / "y.json").symlink_to(outside)
    with pytest.raises(NegbenchError, match=r"y\.json is a link that leads out of "):
        files.read_json(runs / "b" / "y.json")


# --- what fills the memory -----------------------------------------------------------------------------------------


def equal_texts(path: Path, text: str, rows: int) -> Path:
    """Write a parquet file of one text in every row; the text is stored once."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([text]))
    schema = pa.schema([("reference", column.type), ("target", column.type)])
    parquet.write_table(pa.table([column, column], schema), path, store_schema=False)
    return path


def one_list(path: Path, values: int) -> Path:
    """Write a parquet file of one row with one long list."""
    offsets = pa.array([0, values], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.array(np.zeros(values, np.float32)))
    parquet.write_table(pa.table({"texts": ["a"], "features": lists}), path)
    return path


def texts_in_a_list(path: Path, text: str, values: int) -> Path:
    """Write a parquet file of one row with a list of equal texts."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(values, np.int8)), pa.array([text]))
    lists = pa.ListArray.from_arrays(pa.array([0, values], pa.int32()), texts)
    parquet.write_table(pa.table({"ids": ["a"], "relevant": lists}), path, store_schema=False)
    return path


def texts_by_prefix(path: Path, text: str, rows: int) -> Path:
    """Write a parquet file whose texts are stored as what differs from the text before: nothing."""
    table = pa.table({"reference": pa.array([text] * rows)})
    parquet.write_table(table, path, use_dictionary=False, column_encoding={"reference": "DELTA_BYTE_ARRAY"})
    return path


def graft(path: Path, footer: Path, pages: Path) -> Path:
    """Write a parquet file whose footer is that of one file, and whose pages are those of another."""
    content = bytearray(footer.read_bytes())
    start, room = _chunk(footer)
    other_start, length = _chunk(pages)
    assert length <= room
    content[start : start + length] = pages.read_bytes()[other_start : other_start + length]
    path.write_bytes(content)
    return path


def _chunk(path: Path) -> tuple[int, int]:
    """Return where the first column's pages begin, and how long they are."""
    chunk = parquet.ParquetFile(path).metadata.row_group(0).column(0)
    return chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size


def list_of(path: Path, values: Any, **how: Any) -> Path:
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    parquet.write_table(pa.table({"features": lists}), path, compression="zstd", **how)
    return path


def longer_list_than_told(path: Path, values: int) -> Path:
    """Write a parquet file of one list of zeros, of which the footer tells 40,000."""
    numbers = pa.array(np.random.default_rng(0).random(40_000))
    footer = list_of(path.with_name("footer.parquet"), numbers, use_dictionary=False)
    pages = list_of(path.with_name("pages.parquet"), pa.array(np.zeros(values)), use_dictionary=False)
    return graft(path, footer, pages)


def larger_page_than_told(path: Path, values: int) -> Path:
    """Write a parquet file of 4,000 numbers of 64 bytes, by its footer, in a page that unpacks to more."""
    how: dict[str, Any] = {"compression": "zstd", "use_dictionary": False}
    how |= {"row_group_size": 2**30, "data_page_size": 2**31 - 1, "max_rows_per_page": 2**30}

    def write(part: Path, numbers: bytes) -> Path:
        wide = pa.FixedSizeBinaryArray.from_buffers(pa.binary(64), len(numbers) // 64, [None, pa.py_buffer(numbers)])
        parquet.write_table(pa.table({"features": wide}), part, **how)
        return part

    footer = write(path.with_name("footer.parquet"), np.random.default_rng(0).bytes(64 * 4_000))
    pages = write(path.with_name("pages.parquet"), bytes(64 * values))
    return graft(path, footer, pages)


def another_encoding_than_told(path: Path, text: str, values: int) -> Path:
    """Write a parquet file of a list of equal texts, stored once, of which the footer says that each is written out."""
    letters = np.random.default_rng(0).choice([*"abcdefgh"], (4_000, 40))
    texts = pa.array(["".join(row) for row in letters])
    footer = list_of(path.with_name("footer.parquet"), texts, use_dictionary=False)
    equal = pa.DictionaryArray.from_arrays(pa.array(np.zeros(values, np.int8)), pa.array([text]))
    pages = list_of(path.with_name("pages.parquet"), equal, store_schema=False)
    return graft(path, footer, pages)


def one_page_for_all(path: Path, values: int) -> Path:
    """Write a parquet file whose row groups, 1,000 by its footer, all name the same page."""
    one = path.with_name("one.parquet")
    table = pa.table({"features": np.zeros(values // 1000)})
    parquet.write_table(table, one, compression="zstd", use_dictionary=False)
    metadata = parquet.read_metadata(one)
    group = parquet.read_metadata(one)
    for _ in range(999):
        metadata.append_row_groups(group)
    metadata.write_metadata_file(path.with_name("footer"))
    _, length = _chunk(one)
    pages = one.read_bytes()[: 4 + length]  # after "PAR1"
    footer = path.with_name("footer").read_bytes()[4:]
    path.write_bytes(pages + footer)
    return path


def big_header(path: Path, header: Any, body: bytes) -> Path:
    """Write a .npz whose array has this header and is followed by these bytes."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, header)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as pack:
        pack.writestr("ids.npy", _npy(np.array(["a"])))
        with pack.open("features.npy", "w", force_zip64=True) as entry:
            entry.write(content.getvalue())
            entry.write(body)
    return path


def _npy(array: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def zeros(path: Path, count: int) -> Path:
    """Write a .npz of `count` bytes of zeros, packed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as pack:
        pack.writestr("ids.npy", _npy(np.array(["a"])))
        with pack.open("features.npy", "w", force_zip64=True) as entry:
            np.lib.format.write_array_header_1_0(entry, _header((1, count), "|u1"))
            for _ in range(count // 2**20):
                entry.write(bytes(2**20))
    return path


def _header(shape: tuple[int, ...], kind: str = "<f4") -> dict[str, Any]:
    return {"descr": kind, "fortran_order": False, "shape": shape}


def long_npy(path: Path) -> Path:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, _header((10**6, 10**6)))
        file.write(bytes(100))
    return path


def deflated_checkpoint(path: Path, count: int) -> Path:
    """Write a checkpoint of zeros whose zip entries are packed, which torch unpacks."""
    plain = io.BytesIO()
    torch.save({"w": torch.zeros(1024)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as pack:
        for entry in source.infolist():
            pack.writestr(entry.filename, source.read(entry))
        with pack.open("archive/data/1", "w", force_zip64=True) as more:
            for _ in range(count // 2**20):
                more.write(bytes(2**20))
    return path


def tall_tensor(path: Path) -> Path:
    """Write a checkpoint of one number that is seen as 2**31 of them: copied, it would be 8 GiB."""
    torch.save({"w": torch.zeros(1).expand(2**31)}, path)
    return path


def filling_pickle(path: Path) -> Path:
    """Write a checkpoint of 60 bytes that makes a bytearray of 4 GB, as torch's unpickler allows."""
    path.write_bytes(b"\x80\x02c__builtin__\nbytearray\n\x8a\x08" + struct.pack("<q", 4 * 10**9) + b"\x85R.")
    return path


def filling_pickle_in_a_zip(path: Path) -> Path:
    plain = io.BytesIO()
    torch.save({}, plain)
    pickled = filling_pickle(path).read_bytes().replace(b"__builtin__", b"builtins")
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w") as pack:
        for entry in source.infolist():
            pack.writestr(entry.filename, pickled if entry.filename.endswith(".pkl") else source.read(entry))
    return path


def lists_of_lists(path: Path, count: int) -> Path:
    path.write_text(f"[{','.join(['[]'] * count)}]", encoding="utf-8")
    return path


def short_rows(path: Path, count: int) -> Path:
    path.write_text("reference,target\n" + "1,2\n" * count, encoding="utf-8")
    return path


def large_picture(path: Path, side: int) -> Path:
    Image.new("1", (side, side)).save(path)
    return path


def read_named_by_text(path: Path) -> Any:
    return read_vectors(path, "texts")


def read_named_by_id(path: Path) -> Any:
    return read_vectors(path, "ids")


def read_unnamed(path: Path) -> Any:
    return read_vectors(path, "")


@dataclass(frozen=True)
class Bomb:
    """A small file that would fill the memory.

    Attributes:
        file: its name.
        make: writes the file at a path, from `values`.
        read: the reader that must refuse it.
        plenty: it is refused even where there is plenty of memory.
    """

    file: str
    make: Callable[..., Path]
    values: tuple[Any, ...]
    read: Callable[[Path], Any]
    plenty: bool = True


TEXT = "x" * 1000
BOMBS: dict[str, Bomb] = {
    "parquet: 40 million equal rows": Bomb("b.parquet", equal_texts, ("x" * 20, 40_000_000 // SCALE), read_rows),
    "parquet: a text of 1,000 letters in every row": Bomb(
        "b.parquet", equal_texts, (TEXT, 1_000_000 // SCALE), read_rows
    ),
    "parquet: one list of 180 million zeros": Bomb(
        "b.parquet", one_list, (180_000_000 // SCALE,), read_named_by_text, plenty=False
    ),
    "parquet: one list of 300 million zeros": Bomb("b.parquet", one_list, (300_000_000 // SCALE,), read_named_by_text),
    "parquet: a list of equal texts": Bomb("b.parquet", texts_in_a_list, (TEXT, 2_000_000 // SCALE), read_rows),
    "parquet: texts by what differs": Bomb("b.parquet", texts_by_prefix, ("x" * 100_000, 12_000 // SCALE), read_rows),
    "parquet: rows as Python objects": Bomb(
        "b.parquet", equal_texts, ("x", 1_500_000 // SCALE), read_rows, plenty=False
    ),
    "parquet: a longer list than its footer tells": Bomb(
        "b.parquet", longer_list_than_told, (150_000_000 // SCALE,), received.read_parquet
    ),
    "parquet: a larger page than its footer tells": Bomb(
        "b.parquet", larger_page_than_told, (18_000_000 // SCALE,), received.read_parquet
    ),
    "parquet: another encoding than its footer tells": Bomb(
        "b.parquet", another_encoding_than_told, (TEXT, 2_000_000 // SCALE), received.read_parquet
    ),
    "parquet: one page in 1,000 row groups": Bomb(
        "b.parquet", one_page_for_all, (150_000_000 // SCALE,), received.read_parquet
    ),
    "npz: zeros": Bomb("b.npz", zeros, (GIB + 2**20,), read_named_by_id),
    "npz: a header that claims more": Bomb(
        "b.npz", big_header, (_header((10**6, 10**6)), bytes(100)), read_named_by_id
    ),
    "npy: a header that claims more": Bomb("b.npy", long_npy, (), read_unnamed),
    "checkpoint: packed zeros": Bomb("b.pt", deflated_checkpoint, (GIB + 2**20,), received.load_checkpoint),
    "checkpoint: a tensor of one number": Bomb("b.pt", tall_tensor, (), received.load_checkpoint),
    "checkpoint: a pickle that fills memory": Bomb("b.pt", filling_pickle, (), received.load_checkpoint),
    "checkpoint: such a pickle in a zip": Bomb("b.pt", filling_pickle_in_a_zip, (), received.load_checkpoint),
    "JSON: lists of lists": Bomb("b.json", lists_of_lists, (8_000_000 // SCALE,), read_rows, plenty=False),
    "JSON of a run": Bomb("b.json", lists_of_lists, (8_000_000 // SCALE,), files.read_json, plenty=False),
    "CSV: short rows": Bomb("b.csv", short_rows, (1_500_000 // SCALE,), read_rows, plenty=False),
    "picture: 169 million pixels": Bomb(
        "b.png", large_picture, (round(13_000 / SCALE**0.5),), read_image, plenty=False
    ),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused_before_they_are_unpacked(tmp_path, refusal, bomb):
    path = bomb.make(tmp_path / bomb.file, *bomb.values)
    line = refusal(lambda: bomb.read(path), GIB, bomb.plenty)
    assert str(path) in line
    assert path.stat().st_size < 64 * 2**20


def test_a_picture_for_which_pillow_starts_a_program_is_not_read(tmp_path, monkeypatch):
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("Ghostscript")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", refuse)
    Image.new("RGB", (4, 4)).save(tmp_path / "x.eps")
    (tmp_path / "x.eps").rename(tmp_path / "x.jpg")
    with pytest.raises(NegbenchError, match=r"x\.jpg is not a readable image: it is a text that begins with"):
        read_image(tmp_path / "x.jpg")


def test_a_file_that_is_larger_than_half_of_the_memory_is_refused(tmp_path, refusal):
    with (tmp_path / "b.npy").open("wb") as file:  # a hole: no disk is taken
        np.lib.format.write_array_header_1_0(file, _header((600, 2**18 // SCALE)))
        file.truncate(128 + 600 * 2**20 // SCALE)
    assert "more than half of the " in refusal(lambda: read_vectors(tmp_path / "b.npy", ""))


def test_a_pipe_in_an_archive_and_one_that_is_too_large_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.tgz"
    with tarfile.open(path, "w:gz") as archive:
        pipe = tarfile.TarInfo("package/pipe")
        pipe.type = tarfile.FIFOTYPE
        archive.addfile(pipe)
        large = tarfile.TarInfo("package/large")
        large.size = 5 * 2**20
        archive.addfile(large, io.BytesIO(bytes(large.size)))
    with tarfile.open(path, "r:gz") as archive:
        with pytest.raises(NegbenchError, match="package/pipe in it is no regular file"):
            received.check_archive(path, archive, ["package/pipe"])
        received.check_archive(path, archive, ["package/large"])
        monkeypatch.setattr(received, "free_memory", lambda: 9 * 2**20)
        with pytest.raises(NegbenchError, match="more than half"):
            received.check_archive(path, archive, ["package/large"])


# --- what is read as before ----------------------------------------------------------------------------------------


def test_parquet_of_every_kind_of_column_is_read(tmp_path):
    """The bound looks into dictionaries, lists and structs; the table is the one that pyarrow reads alone."""
    texts = [f"text {number % 7}" * 40 for number in range(5000)]
    table = pa.table(
        {
            "text": texts,
            "lists": [[text, "y"] for text in texts],
            "deep": [[[1.0, 2.0], [3.0, 4.0]]] * 5000,
            "struct": [{"a": text, "b": {"c": [text]}} for text in texts],
            "map": pa.array([[(text, 1)] for text in texts], pa.map_(pa.string(), pa.int64())),
            "none": [None] * 5000,
            "fixed": pa.array([[1, 2]] * 5000, pa.list_(pa.int16(), 2)),
            "bytes": [b"1"] * 5000,
            "time": pa.array([1] * 5000, pa.timestamp("ns")),
            "half": pa.array(np.ones(5000, np.float16)),
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=999)
    assert received.read_parquet(tmp_path / "t.parquet").equals(parquet.read_table(tmp_path / "t.parquet"))
    some = received.read_parquet(tmp_path / "t.parquet", ["lists", "fixed"])
    assert some.equals(table.select(["lists", "fixed"]))


@pytest.mark.parametrize("rows", [50, 0])
def test_a_table_of_many_batches_is_the_one_that_pyarrow_reads(tmp_path, monkeypatch, rows):
    """With the index of pandas, and with no row."""
    monkeypatch.setattr(received, "ROWS", 7)
    frame = pd.DataFrame(
        {"a": range(50), "b": [[1.0] * (n % 3) for n in range(50)]}, index=[f"x{n}" for n in range(50)]
    )
    frame[:rows].to_parquet(tmp_path / "t.parquet")
    table = received.read_parquet(tmp_path / "t.parquet")
    assert table.equals(parquet.read_table(tmp_path / "t.parquet"), check_metadata=True)
    pd.testing.assert_frame_equal(table.to_pandas(), pd.read_parquet(tmp_path / "t.parquet"))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_the_headers_of_pages_agree_with_an_honest_footer(tmp_path, version, compression, dictionary):
    random = np.random.default_rng(0)
    texts = [f"text {number}" * 20 for number in random.integers(0, 999, 5000)]
    lists = pa.array([[*range(number % 5)] for number in range(5000)])
    table = pa.table({"a": random.random(5000), "b": texts, "c": lists, "d": [None] * 5000})
    how: dict[str, Any] = {"data_page_version": version, "compression": compression, "use_dictionary": dictionary}
    path = tmp_path / "t.parquet"
    parquet.write_table(table, path, row_group_size=2000, data_page_size=1000, **how)
    metadata = parquet.read_metadata(path)
    many = 0
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            with path.open("rb") as file:
                pages = read_pages(file, chunk)
                assert file.tell() == _end(chunk), f"group {group}, column {column}"
            assert pages.values == chunk.num_values, f"group {group}, column {column}"
            headers = chunk.total_uncompressed_size - pages.size
            most = 200 * (1 + len(pages.encodings) + pages.values // 8)
            assert 0 <= headers < most, f"group {group}, column {column}"
            assert pages.largest <= pages.size, f"group {group}, column {column}"
            many += pages.largest < pages.size
    assert many > 3


def _end(chunk: Any) -> int:
    start = min(offset for offset in (chunk.dictionary_page_offset, chunk.data_page_offset) if offset)
    return int(start + chunk.total_compressed_size)


@pytest.mark.parametrize("byte", [0, 1, 7, 100, 255])
def test_pages_that_are_none_are_one_line(tmp_path, byte):
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"a": np.arange(5000.0)}), path, compression="none")
    content = bytearray(path.read_bytes())
    content[4:40] = bytes([byte]) * 36
    path.write_bytes(content)
    with pytest.raises((NegbenchError, OSError)) as caught:
        received.read_parquet(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("rows", "bytes_of_one"), [(1, 12), (4 * ROWS, 9)])
def test_lists_count_what_reading_them_takes(tmp_path, rows, bytes_of_one):
    """Bytes for each number: itself, its levels, and again as much of a batch of rows, which grows by doubling."""
    count = 2**20
    offsets = pa.array(np.linspace(0, count, rows + 1, dtype=np.int32))
    table = pa.table({"features": pa.ListArray.from_arrays(offsets, pa.array(np.zeros(count, np.float32)))})
    path = tmp_path / "v.parquet"
    parquet.write_table(table, path, compression="zstd")
    size = sum(unpacked_size(lambda: path.open("rb"), parquet.ParquetFile(path), None))
    places_and_missing = 4 * rows + count // 8
    assert size == pytest.approx(count * bytes_of_one + places_and_missing, abs=1000)


def test_a_long_text_in_few_rows_is_read(tmp_path):
    """By its footer this could be 1 GiB and more; the dictionary shows that it is 64 MiB."""
    texts = ["x" * 2**18 + str(number) for number in range(16)] * 16
    parquet.write_table(pa.table({"text": texts}), tmp_path / "t.parquet")
    assert received.read_parquet(tmp_path / "t.parquet")["text"].to_pylist() == texts


@pytest.mark.parametrize("form", ["npy", "npz", "parquet"])
def test_embeddings_of_many_shapes_are_read_as_written(tmp_path, form):
    rows = np.random.default_rng(0).normal(size=(7, 3, 4)).astype(np.float32)
    names = [f"n{number}" for number in range(7)]
    path = tmp_path / f"v.{form}"
    if form == "npy":
        np.save(path, rows)
        path.with_suffix(".txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    elif form == "npz":
        np.savez_compressed(path, ids=np.array(names), features=rows)
    else:
        parquet.write_table(pa.table({"ids": names, "features": rows.tolist()}), path, row_group_size=3)
    read_names, vectors = read_vectors(path, "ids")
    assert read_names == names
    assert np.array_equal(vectors.astype(np.float32), rows)
    vectors[0] = 0  # writable, as torch wants it


@pytest.mark.skipif("NEGBENCH_FAULTS" not in os.environ, reason="`make faults` reads 2 GB")
def test_two_gigabytes_of_embeddings_are_read(tmp_path, forked):
    """A real parquet of 2 GB, in a process that may take 8 GB more."""
    width, rows = 512, 1_000_000
    random = np.random.default_rng(0)
    kind = pa.list_(pa.float32())
    with parquet.ParquetWriter(tmp_path / "v.parquet", pa.schema([("ids", pa.string()), ("features", kind)])) as writer:
        for start in range(0, rows, 100_000):
            values = pa.array(random.random(100_000 * width, np.float32))
            offsets = pa.array(np.arange(0, 100_001 * width, width, dtype=np.int32))
            ids = [str(start + number) for number in range(100_000)]
            writer.write_table(pa.table({"ids": ids, "features": pa.ListArray.from_arrays(offsets, values)}))
    assert (tmp_path / "v.parquet").stat().st_size > 2 * 10**9

    def read() -> None:
        limit_memory(8 * 2**30)
        names, vectors = read_vectors(tmp_path / "v.parquet", "ids")
        print(len(names), vectors.shape, f"{float(vectors[-1, -1]):.4f}")

    child = forked(read)
    assert child.communicate().split()[0] == str(rows)


# --- how much there is ---------------------------------------------------------------------------------------------


def test_the_least_of_all_limits_counts(tmp_path, monkeypatch, forked):
    def print_free_memory() -> None:
        limit_memory(2**30)
        print(memory.free_memory())

    assert int(forked(print_free_memory).communicate()) <= 2**30
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    for name, text in (("max", "1000000"), ("current", "900000"), ("stat", "anon 1\ninactive_file 5000\n")):
        (group.parent / f"memory.{name}").write_text(text, encoding="ascii")
    (group / "memory.max").write_text("max", encoding="ascii")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    read = Path.read_text

    def read_text(path: Path, **options: Any) -> str:
        if str(path) == "/proc/self/cgroup":
            return "0::/a/b\n"
        return read(path, **options)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert memory.free_memory() == 105_000


@pytest.mark.parametrize("words", ["run --strategy top-k", "compare --strategies top-k,in-batch --workers 2"])
def test_too_few_addresses_for_torch_are_one_line(words):
    """In a process of its own: torch, and its workers, would abort it without a word of Python."""
    command = f"ulimit -v 2500000; exec {sys.executable} -m negbench {words}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("negbench: error: `ulimit -v` allows this process 2.4 GiB of addresses")


# --- commands ------------------------------------------------------------------------------------------------------


def test_commands_say_one_line(tmp_path, forked, subtests):
    """`audit` of a table, `mine` of a list, and a run on packed vectors."""
    table = equal_texts(tmp_path / "b1.parquet", "x" * 1000, 1_000_000 // SCALE)
    lists = one_list(tmp_path / "v.parquet", 300_000_000 // SCALE)
    np.savez(tmp_path / "images.npz", ids=np.array(["a", "b"]), features=np.eye(2, dtype=np.float32))
    np.save(tmp_path / "t.npy", np.array([0]))
    mine = ["--images", f"{tmp_path}/images.npz", "--targets", f"{tmp_path}/t.npy", "--strategy", "top-k:k=1"]
    commands = [
        ["audit", "--strategy", "top-k:k=5", "--dataset", str(table)],
        ["mine", "--queries", str(lists), *mine, "--out", f"{tmp_path}/n.parquet"],
    ]
    for words in commands:

        def command(words: list[str] = words) -> None:
            os.dup2(1, 2)
            received._GIB = GIB
            limit_memory(2**30)
            raise SystemExit(negbench(words))

        with subtests.test(words[0]):
            child = forked(command)
            (line,) = child.communicate().splitlines()
            assert child.returncode == 2
            assert line.startswith("negbench: error: ")
            assert " is not read: " in line


# --- nothing reads past the door -----------------------------------------------------------------------------------

READS = {"read_text", "read_bytes", "read_parquet", "read_table", "ParquetFile", "safe_open", "load_file", "ZipFile"}
READS |= {"np.load", "torch.load", "pil.open", "Image.open", "tarfile.open", "open_memmap", "memmap", "from_file"}
PACKAGED = ("__file__", "_HERE", "PATH")  # files that come with negbench
BESIDE = {  # file: the call, and why it needs no door
    "negbench/analysis/unchanged.py": "path.read_bytes",  # negbench's own code
    "negbench/cli/list_.py": "file.read_text",  # negbench's own recipes
    "negbench/papers/claim.py": "path.read_text",  # negbench's own claims
    "negbench/systems/system.py": "path.read_text",  # negbench's own systems
    "negbench/machine/free_memory.py": "read_text",  # the kernel's
    "negbench/machine/file_kinds.py": "zipfile.ZipFile",  # what the door opened
    "negbench/mining/pool_file.py": "map",  # after `intact`; and the file that it just wrote
    "negbench/worlds/_icons.py": "Image.open",  # drawn a moment ago
    "backbones/lite.py": "torch.load",  # its hash is known
}
DOOR = {"negbench/machine/received.py", "negbench/machine/parquet_size.py"}
CHECKED = {  # a library opens the path: the line before asks the door
    *("negbench/benchmarks/icir.py", "negbench/data/features.py", "negbench/store/runfolder.py", "backbones/tiny.py"),
    *("negbench/worlds/_fetch.py", "backbones/_captions.py", "backbones/_lavis.py", "backbones/_open_clip.py"),
    "backbones/_weights.py",
}


def test_nothing_reads_past_the_door():
    """A call that reads a file is the door's own, reads what comes with negbench, or is listed with its reason."""
    paths = list[Path]()
    for room in ("negbench", "backbones", "strategies"):
        paths += (ROOT / room).rglob("*.py")
    past = []
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
                continue
            call = ast.unparse(node.func)
            last = call.rpartition(".")[2]
            reads = call in READS - {"read_text", "read_bytes", "read_parquet"} or ("." in call and last in READS)
            needs_no_door = any(mark in call for mark in PACKAGED) or BESIDE.get(name, "no call") in call
            if reads and not needs_no_door and name not in CHECKED | DOOR:
                past.append(f"{name}:{node.lineno}: {call}")
    assert past == []


@pytest.mark.parametrize("columns", [None, ["ids"], ["absent"]], ids=["all", "one", "none"])
def test_a_table_is_closed_once_it_is_read(tmp_path, columns):
    """Python warns of a file that its garbage collection closes."""
    parquet.write_table(pa.table({"ids": ["a", "b"], "n": [1, 2]}), tmp_path / "t.parquet")
    gc.collect()  # what other tests left open
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        received.read_parquet(tmp_path / "t.parquet", columns)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
