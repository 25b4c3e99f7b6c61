"""The one door for files that somebody else may have made.

Only regular files are opened: a FIFO would block for ever, a device such as /dev/zero never ends. Nothing is read that
would fill the memory: neither a file that unpacks to more than 16 times its size and more than 1 GiB, nor anything that
takes more than half of the memory that the process may still take. Both are found out before anything is unpacked.
"""

from __future__ import annotations

import io
import os
import pickletools
import stat
import tarfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from negbench.errors import DataError
from negbench.machine.free_memory import free_memory, size
from negbench.machine.parquet_size import ROWS, PagesError, unpacked_size

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    import pyarrow.parquet
    from PIL.Image import Image

_GIB = 2**30
_ANYWHERE = 2**22  # bytes that are read however little memory there is
_MOST_TIMES = 16  # what a file may unpack to, in its own size, once that is more than a gibibyte
_VALUE = 64  # bytes that Python takes for a value of a JSON file or a cell, about
_FOOTER = 32  # times its length is what a parquet file's footer takes in memory, about
_ROW = 512  # bytes that Python takes for a row of a table besides its values, about
_KINDS = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_SQLITE = b"SQLite format 3\0"  # with which its files begin
TORCHSCRIPT = (  # ends "FILE is ..."
    "a TorchScript archive, which runs code when it is read: save its tensors where you trust it, "
    "`torch.save(torch.jit.load(FILE).state_dict(), 'tensors.pth')`"
)
_RUNS_A_PROGRAM = {"EPS"}  # Pillow starts Ghostscript to draw these pictures


# --- which files ---------------------------------------------------------------------------------------------------


def check_regular(path: Path) -> None:
    """Raise DataError unless `path` is a regular file, or a link to one.

    Raises:
        OSError: there is no such file, or it is a folder.
    """
    _check_kind(path, path.stat().st_mode)


def _check_kind(path: Path | str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(21, "Is a directory", str(path))
    if not stat.S_ISREG(mode):
        what = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise DataError(f"{path} is not read: it is {what}: put a regular file in its place")


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file to read its bytes; errors as in `check_regular`."""
    return io.BufferedReader(open_unbuffered(path))


def open_unbuffered(path: Path | str, *, listed: bool = False) -> io.FileIO:
    """Open a regular file to read it in large pieces; errors as in `check_regular`.

    A FIFO that takes the file's place between the check and the opening does not block either.

    Args:
        path: the file.
        listed: a listing of its folder has just called it a regular file: it is not asked again before it is opened.
    """
    if not listed:
        check_regular(Path(path))
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_kind(path, os.fstat(handle).st_mode)
        return io.FileIO(handle)
    except BaseException:
        os.close(handle)
        raise


def check_folder(folder: Path) -> None:
    """Raise DataError if a FIFO, a device or a socket lies in a folder that a library is about to read."""
    for path in sorted(folder.iterdir()):
        if path.exists() and not path.is_dir():
            check_regular(path)


# --- how much ------------------------------------------------------------------------------------------------------


def check_fits(path: Path, count: int) -> None:
    """Raise DataError if reading a file takes more than half of the memory that this process may still take.

    Args:
        path: the file, for the error.
        count: bytes that its contents take in memory.
    """
    if count <= _ANYWHERE:
        return
    free = free_memory()
    if count > free // 2:
        raise DataError(
            f"{path} is not read: its contents take about {size(count)}, more than half of the {size(free)} of memory "
            "that this process may still take: divide the file, or give the process more memory"
        )


def check_unpacked(path: Path, count: int) -> None:
    """Raise DataError if a file unpacks to more than 16 times its size and more than 1 GiB, or does not fit.

    Args:
        path: the file.
        count: bytes to which it unpacks.
    """
    packed = path.stat().st_size
    if count > max(_GIB, _MOST_TIMES * packed):
        raise DataError(
            f"{path} is not read: its {packed:,} bytes unpack to {size(count)}, more than {_MOST_TIMES} times as much: "
            "such files are made to fill the memory; if it is yours, write it again without compression"
        )
    check_fits(path, count)


def check_text(path: Path, content: bytes, *, rows: bool = False) -> None:
    """Raise DataError if the values in a text of JSON or CSV take too much memory.

    Args:
        path: the file, for the error.
        content: its bytes.
        rows: each line becomes a row with a `where` of its own.
    """
    if len(content) * (2 + _VALUE + _ROW) <= _ANYWHERE:  # whatever is in it
        return
    values = sum(content.count(mark) for mark in (b",", b"[", b"{", b":", b";", b"\t"))
    lines = content.count(b"\n") if rows else 0
    check_fits(path, 2 * len(content) + _VALUE * values + _ROW * lines)


# --- bytes and text ------------------------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes:
    """Read a file whole; errors as in `check_regular` and `check_fits`."""
    with open_unbuffered(path) as file:
        check_fits(path, os.fstat(file.fileno()).st_size)
        return file.readall()


def read_text(path: Path, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Read a text whole, with the line ends of Python's text files; errors as in `read_bytes`; UnicodeDecodeError."""
    text = read_bytes(path).decode(encoding, errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json_text(path: Path) -> str:
    """Read the text of a JSON file whose values fit into memory; errors as in `read_text`."""
    content = read_bytes(path)
    check_text(path, content)
    return content.decode("utf-8-sig")


# --- arrays --------------------------------------------------------------------------------------------------------


def _check_array(file: Any, length: int, what: str) -> int:
    """Compare the header of a .npy file with its length; return the bytes of its array.

    Raises:
        DataError: it claims more, or less, than there is.
        ValueError: not a .npy file, or one of Python objects.
    """
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    if version == (1, 0):
        shape, _, kind = npy.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, kind = npy.read_array_header_2_0(file)
    else:  # (3, 0) differs in the encoding of its field names only, and has no public reader
        shape, _, kind = npy._read_array_header(file, version)  # type: ignore[attr-defined]
    if kind.hasobject:
        raise ValueError("Object arrays cannot be loaded when allow_pickle=False")
    claimed = kind.itemsize
    for count in shape:
        claimed *= int(count)
    present = length - file.tell()
    if claimed > present:
        raise DataError(
            f"{what} is cut off or damaged: by its header it holds {' x '.join(map(str, shape))} values of {kind}, "
            f"{claimed:,} bytes, but {present:,} follow: save it again"
        )
    return claimed


def npy_array(path: Path) -> np.ndarray[Any, Any]:
    """Read a .npy file of numbers or texts.

    Raises:
        DataError: its header does not fit its length, or it does not fit into memory.
        OSError, ValueError, EOFError: no such file, another format, or Python objects in it.
    """
    import numpy as np

    with open_regular(path) as file:
        check_fits(path, _check_array(file, os.fstat(file.fileno()).st_size, str(path)))
        file.seek(0)
        array: np.ndarray[Any, Any] = np.load(file, allow_pickle=False)
    return array


def npz_arrays(path: Path) -> np.lib.npyio.NpzFile:
    """Open a .npz file, whose arrays are read when they are asked for; close it, or use it in a `with` block.

    Raises:
        DataError: as in `npy_array`, or it unpacks to too much (see `check_unpacked`).
        OSError, ValueError, zipfile.BadZipFile: no such file, or another format.
    """
    import numpy as np

    file = open_regular(path)
    try:
        with zipfile.ZipFile(file) as pack:
            check_unpacked(path, sum(entry.file_size for entry in pack.infolist()))
            for entry in pack.infolist():
                if entry.filename.endswith(".npy"):
                    _check_entry(pack, entry, path)
        file.seek(0)
        loaded: np.lib.npyio.NpzFile = np.load(file, allow_pickle=False)
        loaded.fid = file  # type: ignore[assignment]  # closed with it
        return loaded
    except BaseException:
        file.close()
        raise


def _check_entry(pack: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> None:
    """Compare the header of an array in a .npz with its length."""
    with pack.open(entry) as packed:
        begin = packed.read(64 * 1024)
    array = io.BytesIO(begin)
    try:
        _check_array(array, entry.file_size, f"{path}: array '{entry.filename.removesuffix('.npy')}'")
    except ValueError:
        return  # of Python objects, or no array: said when it is asked for


# --- tables --------------------------------------------------------------------------------------------------------


@contextmanager
def open_parquet(
    path: Path, columns: Sequence[str] | None = None, content: bytes | None = None
) -> Iterator[pyarrow.parquet.ParquetFile]:
    """Open a parquet file after finding out, by its footer and the headers of its pages, what it unpacks to.

    It is closed at the end of the `with` block.

    Args:
        path: the file.
        columns: those that will be read; default: all.
        content: the file's bytes, if they are read already.

    Raises:
        DataError: it unpacks to too much (see `check_unpacked`), or its pages are damaged.
        OSError, pyarrow.ArrowException: no such file, or not parquet.
    """
    import pyarrow
    from pyarrow.parquet import ParquetFile

    check_regular(path)

    def source() -> Any:
        return open_regular(path) if content is None else pyarrow.BufferReader(content)

    check_fits(path, _FOOTER * _footer_length(path, source()))
    with source() as opened:
        file = ParquetFile(opened)
        total = 0
        try:
            for count in unpacked_size(source, file, columns):
                total += count
                check_unpacked(path, total)
        except PagesError as error:
            raise DataError(f"{path} is damaged ({error}): write it again") from error
        yield file


def _footer_length(path: Path, source: Any) -> int:
    """Return the bytes of a parquet file's footer, which its last eight bytes tell; 0 if the file is shorter."""
    with source as file:
        length = int(file.seek(0, os.SEEK_END))
        if length < 8:
            return 0
        file.seek(length - 8)
        footer = int.from_bytes(file.read(4), "little")
        return min(footer, length)


def read_parquet(path: Path, columns: Sequence[str] | None = None, content: bytes | None = None) -> pyarrow.Table:
    """Read a parquet file, or some columns of it, as an Arrow table; arguments and errors as in `open_parquet`."""
    import pyarrow

    with open_parquet(path, columns, content) as file:
        batches = file.iter_batches(ROWS, columns=None if columns is None else list(columns))
        schema = file.schema_arrow
        if columns is not None:
            schema = pyarrow.schema([schema.field(name) for name in schema.names if name in columns], schema.metadata)
        table = pyarrow.Table.from_batches(batches, schema)
    pyarrow.default_memory_pool().release_unused()  # what it took to decode, which Arrow would keep
    return table


def check_rows(path: Path, table: pyarrow.Table) -> None:
    """Raise DataError if the rows of a table, as Python objects, do not fit into memory."""
    values = table.num_rows * table.num_columns + table.nbytes // 8
    check_fits(path, _ROW * table.num_rows + _VALUE * values + table.nbytes)


# --- databases -----------------------------------------------------------------------------------------------------


def check_database(url: str) -> None:
    """Raise DataError if a database that SQLAlchemy is about to open is a file, but none that SQLite wrote.

    Args:
        url: such as `sqlite:///runs/mlflow.db`; servers, and files that are not there yet, are not looked at.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(url)
    except ArgumentError:
        return  # said by whoever opens it
    if parts.get_backend_name() != "sqlite" or not parts.database or not os.path.lexists(parts.database):
        return
    path = Path(parts.database)
    with open_regular(path) as file:
        begin = file.read(len(_SQLITE))
    if begin not in (b"", _SQLITE):
        raise DataError(f"{path} is no SQLite database: it begins with {begin!r}: name another, or delete it")


# --- archives, weights, pictures -----------------------------------------------------------------------------------


def check_archive(path: Path, archive: tarfile.TarFile, names: Iterable[str]) -> None:
    """Raise DataError unless these members of a tar file are regular files that unpack to little enough."""
    members = [archive.getmember(name) for name in names]
    for member in members:
        if not member.isreg():
            raise DataError(f"{path} is not unpacked: {member.name} in it is no regular file")
    check_unpacked(path, sum(member.size for member in members))


def is_torchscript(names: Iterable[str]) -> bool:
    """Whether a zip archive of these files is what `torch.jit.save` wrote: code beside the tensors."""
    return any(name.rpartition("/")[2] == "constants.pkl" for name in names)


def load_checkpoint(path: Path) -> Any:
    """Read what `torch.save` wrote, on the CPU: tensors and plain values only, so that no code runs.

    Raises:
        DataError: a TorchScript archive.
        DataError: the file, or a tensor in it, unpacks to too much (see `check_unpacked`).
        OSError, RuntimeError, pickle.UnpicklingError: whatever torch raises for a file that it does not read.
    """
    import torch

    with open_regular(path) as file:
        length = os.fstat(file.fileno()).st_size
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as pack:
                if is_torchscript(pack.namelist()):  # torch would warn, and advise to run the code
                    raise DataError(f"{path} is {TORCHSCRIPT}")
                check_unpacked(path, sum(entry.file_size for entry in pack.infolist()))
                for entry in pack.infolist():
                    if entry.filename.endswith(".pkl"):
                        with pack.open(entry) as pickled:
                            _check_pickle(path, pickled)
        else:
            check_fits(path, length)
            file.seek(0)
            _check_pickle(path, file)
        file.seek(0)
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    check_unpacked(path, sum(_tensor_bytes(loaded)))
    return loaded


def _check_pickle(path: Path, file: Any) -> None:
    """Refuse a pickle that makes a bytearray: of the functions that torch lets a checkpoint call, it fills memory."""
    try:
        for _ in range(8):  # one in a zip file; five, one after the other, in files of torch before 1.6
            for operation, argument, _ in pickletools.genops(file):
                words = str(argument).split() if operation.name == "GLOBAL" else [str(argument)]
                if "bytearray" in words:
                    raise DataError(f"{path} is not read: it holds a bytearray, which no file of weights needs")
    except (ValueError, UnicodeDecodeError, IndexError):  # the end, the numbers after the pickles, or no pickle
        return


def _tensor_bytes(value: Any) -> Iterator[int]:
    """Yield the bytes of each tensor in a value, and in what it holds."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value.numel() * value.element_size()
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensor_bytes(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensor_bytes(part)


def check_safetensors(path: Path) -> None:
    """Raise DataError unless a .safetensors file is a regular one that fits into memory; it is not packed."""
    check_regular(path)
    check_fits(path, path.stat().st_size)


@contextmanager
def open_picture(path: Path, file: BinaryIO) -> Iterator[Image]:
    """Open a picture of any format that Pillow draws by itself; nothing is decoded yet.

    Args:
        path: for errors.
        file: the picture's bytes.

    Raises:
        DataError: it has too many pixels.
        Exception: whatever Pillow raises for a damaged file.
    """
    from PIL import Image as pil

    pil.init()
    formats = [name for name in pil.ID if name not in _RUNS_A_PROGRAM]
    with warnings.catch_warnings(action="ignore", category=pil.DecompressionBombWarning):
        try:
            image = pil.open(file, formats=formats)
        except pil.DecompressionBombError as error:
            raise DataError(f"{path} is not read: it has {_pixels_of(error)}: make it smaller") from error
    with image:
        check_fits(path, 4 * image.width * image.height)
        yield image


def _pixels_of(error: Exception) -> str:
    """Return the number of pixels in Pillow's error, and its limit."""
    numbers = [int(word.strip("()")) for word in str(error).split() if word.strip("()").isdecimal()]
    if len(numbers) != 2:
        return "more pixels than Pillow reads"
    pixels, limit = numbers
    return f"{pixels / 1e6:,.0f} million pixels, more than Pillow's limit of {limit / 1e6:,.0f} million"
