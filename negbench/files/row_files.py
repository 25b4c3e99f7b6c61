"""Read the rows of any table (.jsonl, .json, .csv, .tsv, .parquet), and what stands at a path within a row."""

import ast
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from negbench.errors import DataError, OptionError, short_repr
from negbench.files.reader import Reader, parse_json
from negbench.machine.received import check_rows, read_parquet

ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
CELLS = (".csv", ".tsv")  # a value is a text
SEPARATOR = ";"  # of a list within one cell
VAL = ("val", "valid", "validation")
SPLITS = {name: name for name in ("train", "test", "dev", *VAL)} | {"training": "train", "testing": "test"}
_LONGEST = 2**24  # characters of a cell
_SEPARATORS = ",;\t|"
_LIST = re.compile(r"\s*(\[.*\]|\{.*\}|\(.*,.*\))\s*", re.DOTALL)


@dataclass(frozen=True)
class FileRow:
    """One row: `values` by column, or by index ("0", "1", ...) where the file names none.

    `where` names it in errors, by file and line; `number` is its last line, or its position in an array or a table,
    from 1; `cells` says that every value is a text.
    """

    where: str
    number: int
    values: dict[str, Any]
    cells: bool = False

    def where_of(self, column: str) -> str:
        """Name a column of this row, for errors."""
        return f"{self.where}, column '{column}'"

    def entries(self, column: str, value: Any) -> list[Any]:
        """Return a column's list, also one written as a text: with `SEPARATOR` between in cells.

        Raises:
            DataError: anything else.
        """
        value = unwritten(None if value != value else value)  # pandas's NaN
        if isinstance(value, str) and self.cells and not _LIST.fullmatch(value):
            value = [part.strip() for part in value.split(SEPARATOR) if part.strip()]
        if not isinstance(value, list | None):
            raise DataError(f'{self.where_of(column)}: expected a list, got {short_repr(value)}: write ["a", "b"]')
        return value or []


def read_rows(path: Path, *, header: bool = True) -> list[FileRow]:
    """Read every row of a file.

    Args:
        path: .jsonl, or .json with an array of rows, objects or arrays of rows by key (the key becomes column `key`,
            or `split` if all are splits), one array of rows in an object, or columns as pandas writes them; .csv or
            .tsv (commas, semicolons, tabs or bars); .parquet.
        header: whether the first line of a .csv or .tsv names the columns.

    Raises:
        OptionError: another extension.
        DataError: no such file, or not in its format; names the row.
    """
    ending = path.suffix.lower()
    reader = Reader(path.parent)
    if ending not in ENDINGS:
        raise OptionError(f"file must end in {', '.join(ENDINGS)}, got {short_repr(path)}")
    if ending == ".parquet":
        return _parquet(reader.raw(path), path)
    text = reader.text(path, rows=True)
    if ending not in CELLS:
        return _json(text, path)
    with _long_cells():
        return list(_cells(text, path, header))


def at(values: Mapping[str, Any], path: str) -> Any:
    """Return what stands at a path, as `img_set.id` or `query-image[1]`; None where nothing does.

    A column of exactly that name comes first.

    Example:
        >>> at({"img_set": {"id": 7}, "pair": [4, "a.jpg"]}, "pair[1]")
        'a.jpg'
    """
    if path in values or path.isidentifier():
        return values.get(path)
    value: Any = values
    for step in re.findall(r"[^.\[\]]+", path):
        value = unwritten(value)
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def unwritten(value: Any) -> Any:
    """Return the list or object that a text holds, as a CSV file gives one back; anything else as it is.

    So is a list as numpy prints it, without commas: Python would join its parts.
    """
    if not isinstance(value, str) or not _LIST.fullmatch(value) or re.search(r"""['"]\s+['"]""", value):
        return value
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            parsed = parse(value.strip())
            return list(parsed) if isinstance(parsed, tuple) else parsed
    return value


def check_one(entry: str, where: str, is_name: Callable[[str], bool]) -> None:
    """Raise DataError for an entry of a list that is several names with another separator between."""
    for mark in ("|", ",", SEPARATOR, "\t", "\n", "/", " "):
        parts = [part.strip() for part in entry.split(mark)]
        if len(parts) > 1 and all(is_name(part) for part in parts):
            what = f"{short_repr(entry)} is {len(parts)} images with {mark!r} between"
            raise DataError(f"{where}: {what}: write a list, or in a .csv put {SEPARATOR!r} there, in quotes")


def names_of(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List the columns of a row, those of an object in it as paths."""
    names = []
    for name, value in values.items():
        if isinstance(value, dict):
            names += names_of(value, f"{prefix}{name}.")
        else:
            names.append(f"{prefix}{name}")
    return names


# --- formats -----------------------------------------------------------------------------------------------------


def _parquet(content: bytes, path: Path) -> list[FileRow]:
    """Return the rows of a .parquet, given its bytes."""
    import pyarrow

    try:
        table = read_parquet(path, content=content)
        check_rows(path, table)
        _check_once(table.column_names, str(path))
        rows = table.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as parquet: {str(error).splitlines()[0]}") from error
    return [FileRow(f"{path}: row {number}", number, row) for number, row in enumerate(rows, start=1)]


def _json(text: str, path: Path) -> list[FileRow]:
    """Read one JSON value, or one a line, whatever the ending says."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    of_lines = path.suffix.lower() == ".jsonl"
    data: Any = None
    try:
        data = parse_json(text, str(path))
        by_line = of_lines and len(lines) == 1 and not _is_list_of_rows(data)
    except DataError as error:
        by_line = not lines or "Extra data" in str(error) or (of_lines and lines[0][1].strip() != "[")
        if not by_line:
            raise
    rows = []
    if by_line:
        for number, line in lines:
            where = f"{path}: line {number}"
            rows.append(FileRow(where, number, _values(parse_json(line, where), where)))
        return rows
    for number, row in enumerate(_entries(data, path), start=1):
        where = f"{path}: row {number}"
        rows.append(FileRow(where, number, _values(row, where)))
    return rows


def _is_list_of_rows(value: Any) -> bool:
    """Whether a value is a list of objects or of lists."""
    return isinstance(value, list) and bool(value) and all(isinstance(part, dict | list) for part in value)


def _entries(data: Any, path: Path) -> list[Any]:
    """Return the rows of a JSON document in one of the usual forms."""
    if isinstance(data, list):
        return data
    rows = None
    if isinstance(data, dict) and data:
        if not all(isinstance(value, dict) for value in data.values()):
            rows = _rows_of_lists(data, path)
        elif _are_columns(data):
            columns = {name: list(value.values()) for name, value in data.items()}
            rows = _rows_of_lists(columns, path)
        else:
            rows = [{"key": key, **value} for key, value in data.items()]
    if rows is None:
        raise DataError(f"{path}: expected a list of objects, a row each, got {short_repr(data)}")
    return rows


def _are_columns(data: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether these are columns as pandas writes them: each maps the same row numbers to values."""
    row_numbers = {tuple(column) for column in data.values()}
    if len(row_numbers) > 1:
        return False
    return all(number.isdecimal() for number in row_numbers.pop())


def _rows_of_lists(data: Mapping[str, Any], path: Path) -> list[Any] | None:
    """Return the rows of an object whose values are lists, and perhaps others; None if they are no rows.

    They are the one list of rows beside other facts, a list of rows for each split or key, or columns of equal length.
    """
    lists_of_rows = [value for value in data.values() if _is_list_of_rows(value)]
    if len(lists_of_rows) == 1:
        return list(lists_of_rows[0])
    if len(lists_of_rows) == len(data):
        column = "split" if all(key.lower() in SPLITS for key in data) else "key"
        rows = []
        for key, entries in data.items():
            for entry in entries:
                rows.append({column: key, **_values(entry, f"{path}: {key}")})
        return rows
    columns = [value for value in data.values() if isinstance(value, list)]
    if len(columns) == len(data) and len({len(column) for column in columns}) == 1:
        return [dict(zip(data, row, strict=True)) for row in zip(*columns, strict=True)]
    return None


def _values(row: Any, where: str) -> dict[str, Any]:
    """Return the values of a row by column, or by index if it is a list."""
    if isinstance(row, list):
        return {str(index): value for index, value in enumerate(row)}
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object, got {short_repr(row)}")
    return row


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let the csv module read cells of up to `_LONGEST` characters in this block; else it stops at 131,072."""
    before = csv.field_size_limit(_LONGEST)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _cells(text: str, path: Path, header: bool) -> Iterator[FileRow]:
    """Yield the rows of a table; an empty cell is None."""
    number = 0
    names: list[str] = []
    try:
        records = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=_separator(text, path))
        for cells in records:
            number = records.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if not names:
                indices = [str(index) for index in range(len(cells))]
                # pandas writes a header of numbers for a table without names
                is_header = header or cells == indices
                names = [cell.strip() for cell in cells] if is_header else indices
                _check_once(names, f"{path}: line {number}")
                if is_header:
                    continue
            where = f"{path}: line {number}"
            if len(cells) != len(names):
                first = "header" if header else "first line"
                raise DataError(f"{where}: expected {len(names)} cells, as in the {first}, got {len(cells)}")
            values = {name: cell if cell.strip() else None for name, cell in zip(names, cells, strict=True)}
            yield FileRow(where, number, values, cells=True)
    except csv.Error as error:
        where = f"{path}: line {number + 1}"
        if "field limit" in str(error):
            raise DataError(
                f"{where}: a cell has more than {_LONGEST:,} characters: close the quote that begins it, or divide it"
            ) from error
        raise DataError(f"{where}: not valid CSV: {error}; double the quotes in a quoted cell") from error


def _separator(text: str, path: Path) -> str:
    """Return the separator that gives the first rows equally many cells, or else the first line the most."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    first = text.lstrip().partition("\n")[0]

    def fit(separator: str) -> tuple[bool, int]:
        rows = csv.reader(io.StringIO(text.lstrip(), newline=""), delimiter=separator)
        try:
            widths = {len(row) for row in islice(rows, 50) if row}
        except csv.Error:  # with another separator a whole line is one cell, which may be too long
            return False, 0
        return len(widths) == 1 and widths != {1}, first.count(separator)

    return max(_SEPARATORS, key=fit)


def _check_once(names: list[str], where: str) -> None:
    """Raise DataError if a column occurs twice."""
    if len(set(names)) < len(names):
        raise DataError(f"{where}: column {short_repr(max(names, key=names.count))} occurs twice: rename one")
