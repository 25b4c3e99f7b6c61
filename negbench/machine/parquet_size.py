"""What a parquet file takes in memory once it is read, found out without unpacking it.

The footer of a file from somebody else may say anything, so the pages are counted: each begins with a header that says
how many values it holds and what it unpacks to, and the reader of Arrow follows these headers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from pyarrow.parquet import ColumnChunkMetaData, ColumnSchema, ParquetFile

MOVES_SCORES = False  # only refuses files

_MUCH = 2**26  # bytes of texts above which their lengths are looked up
ROWS = 65_536  # read at once
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}  # of parquet's types, in memory
_DECIMAL = 32  # bytes that Arrow takes for one, whatever its width in the file
_ONE_BY_ONE = {0, 6}  # encodings that write out each text: PLAIN, DELTA_LENGTH_BYTE_ARRAY
_BY_DIFFERENCE = 7  # DELTA_BYTE_ARRAY, which writes what differs from the text before
_LONGEST_LIST = 65_536  # within a header


class PagesError(ValueError):
    """Error: a column's pages are none; says why."""


@dataclass(frozen=True)
class Pages:
    """The pages of a column's chunk, by their own headers.

    Args:
        values: how many they hold, those of a dictionary not counted.
        size: bytes to which all of them unpack.
        largest: bytes to which the largest unpacks.
        encodings: those of the values, as parquet numbers them.
    """

    values: int
    size: int
    largest: int
    encodings: frozenset[int]


def unpacked_size(open_file: Callable[[], Any], file: ParquetFile, columns: Sequence[str] | None) -> Iterator[int]:
    """Yield, a part at a time, the bytes that a parquet file's columns take once they are read.

    A text is stored once in a dictionary, however many rows have it: its column takes at most the number of its values
    times what its pages unpack to. Where that is much, the lengths of the texts are read in batches of rows.

    Args:
        open_file: opens the file, or its bytes, for each of several readers.
        file: the same, opened already.
        columns: those that will be read; None: all.

    Raises:
        PagesError: what should be a page is none.
    """
    lengths_wanted: list[str] = []
    batch = ROWS
    with open_file() as source:
        for column_index in range(file.metadata.num_columns):
            column = file.metadata.schema.column(column_index)
            if columns is not None and not _is_among(column.path, columns):
                continue
            texts_at_most = largest_group = largest_batch = 0
            in_batches = True
            for number in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                pages = read_pages(source, group.column(column_index))
                values = max(pages.values, group.num_rows)  # Arrow makes room for as many as the footer tells
                largest_group = max(largest_group, values)
                batches = max(1, group.num_rows // ROWS)
                largest_batch = max(largest_batch, values // batches)
                yield _offsets(column, group.num_rows, values) + values // 8 + 1
                if column.physical_type != "BYTE_ARRAY":
                    yield max(values * _value_width(column), pages.size)
                    continue
                yield 4 * values + pages.size
                if not pages.encodings <= _ONE_BY_ONE:
                    texts_at_most += pages.values * pages.size
                if _BY_DIFFERENCE in pages.encodings:
                    batch = max(1, min(batch, _MUCH // max(1, pages.largest)))
                    in_batches = in_batches and column.max_repetition_level == 0  # a row may be a list of any length
            yield largest_group * _levels_width(column)  # Arrow reads one group at a time
            if column.max_repetition_level and column.physical_type != "BYTE_ARRAY":
                yield largest_batch * _value_width(column)  # lists of a batch grow by doubling while they are read
            if texts_at_most > _MUCH and in_batches:
                lengths_wanted.append(column.path)
            else:
                yield texts_at_most
    if lengths_wanted:
        yield from _lengths_of_texts(open_file(), lengths_wanted, batch)


def _is_among(path: str, columns: Sequence[str]) -> bool:
    """Whether a leaf, such as `features.list.element`, belongs to one of these columns."""
    return any(path == name or path.startswith(f"{name}.") for name in columns)


def _offsets(column: ColumnSchema, rows: int, values: int) -> int:
    """Return the bytes that say where lists begin: once a row, and at most once a value for each list within them."""
    depth = column.max_repetition_level
    return 4 * rows + 4 * (depth - 1) * values if depth else 0


def _levels_width(column: ColumnSchema) -> int:
    """Return the bytes for each value that say, while it is read, where its list begins and what is missing."""
    width = 0
    if column.max_repetition_level > 0:
        width += 2
    if column.max_definition_level > 0:
        width += 2
    return width


def _value_width(column: ColumnSchema) -> int:
    """Return the bytes that Arrow takes for a value of fixed width."""
    width = column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS[column.physical_type]
    return max(width, _DECIMAL) if column.logical_type.type == "DECIMAL" else width


# --- pages ---------------------------------------------------------------------------------------------------------


def read_pages(file: BinaryIO, chunk: ColumnChunkMetaData) -> Pages:
    """Read the headers of a chunk's pages, as far as Arrow's reader follows them.

    Raises:
        PagesError: what should be a page is none.
    """
    start = chunk.data_page_offset
    if chunk.dictionary_page_offset is not None and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    file.seek(start)
    end = start + chunk.total_compressed_size
    values = total = largest = 0
    encodings: set[int] = set()
    while values < chunk.num_values and file.tell() < end:
        header = _Header(file).read_struct()
        numbers = [header.get(2), header.get(3)]
        for field, encoding in ((5, 2), (8, 4)):  # a page of data of version 1, of version 2; others hold no values
            if isinstance(header.get(field), dict):
                count = header[field].get(1)
                numbers += [count, header[field].get(encoding)]
                encodings.add(header[field].get(encoding))
                values += count if isinstance(count, int) else 0
        if any(not isinstance(number, int) or number < 0 for number in numbers):
            raise PagesError(f"no header of a page at byte {file.tell():,}")
        unpacked = header[2]
        packed = header[3]
        total += unpacked
        largest = max(largest, unpacked)
        file.seek(packed, os.SEEK_CUR)
    return Pages(values, total, largest, frozenset(encodings))


class _Header:
    """A reader of Thrift's compact protocol, in which parquet writes its headers.

    Source: apache/thrift, doc/specs/thrift-compact-protocol.md. Texts are skipped.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def read_struct(self, depth: int = 0) -> dict[int, Any]:
        """Read a struct: the number of each field, and its value."""
        if depth > 16:
            raise PagesError("a header within headers, 16 deep")
        fields: dict[int, Any] = {}
        number = 0
        while True:
            byte = self._byte()
            kind = byte & 15
            if kind == 0:
                return fields
            step = byte >> 4
            number = number + step if step else self._signed()
            fields[number] = kind == 1 if kind in (1, 2) else self._read(kind, depth)

    def _read(self, kind: int, depth: int) -> Any:
        """Read, or skip, a value of one of the kinds of the protocol."""
        if kind in (1, 2, 3):  # of a list: a truth value, a byte
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self.file.seek(8, os.SEEK_CUR)
        if kind == 8:
            return self.file.seek(self._unsigned(), os.SEEK_CUR)
        if kind in (9, 10):
            byte = self._byte()
            count = self._unsigned() if byte >> 4 == 15 else byte >> 4
            if count > _LONGEST_LIST:
                raise PagesError("a header with a long list")
            for _ in range(count):
                self._read(byte & 15, depth)
            return None
        if kind == 12:
            return self.read_struct(depth + 1)
        raise PagesError(f"a header with a field of kind {kind}")

    def _byte(self) -> int:
        byte = self.file.read(1)
        if not byte:
            raise PagesError("the file ends within a page's header")
        return byte[0]

    def _unsigned(self) -> int:
        number = shift = 0
        while shift < 35:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
        raise PagesError("a number of more than 32 bits in a page's header")

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)


# --- texts ---------------------------------------------------------------------------------------------------------


def _lengths_of_texts(source: Any, columns: list[str], batch: int) -> Iterator[int]:
    """Yield the bytes of the texts in batches of rows, reading each different text once."""
    from pyarrow.parquet import ParquetFile

    with source:
        file = ParquetFile(source, read_dictionary=columns)
        for rows in file.iter_batches(batch_size=batch, columns=columns):
            for column in rows.columns:
                yield from _text_bytes(column)


def _text_bytes(array: Any) -> Iterator[int]:
    """Yield the bytes that the texts of an array take once they are written out, within lists and structs, too."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        lengths = pc.fill_null(pc.binary_length(array.dictionary), 0).to_numpy(zero_copy_only=False)
        codes = array.indices.drop_null().to_numpy(zero_copy_only=False)
        yield int(lengths.astype(np.int64)[codes].sum()) if len(lengths) else 0
    elif pa.types.is_struct(array.type):
        for index in range(array.type.num_fields):
            yield from _text_bytes(array.field(index))
    elif pa.types.is_map(array.type):
        yield from _text_bytes(array.keys)
        yield from _text_bytes(array.items)
    elif hasattr(array, "flatten") and pa.types.is_nested(array.type):
        yield from _text_bytes(array.flatten())
    elif array.nbytes:
        yield int(array.nbytes)
