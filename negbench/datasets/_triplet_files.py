"""Read triplets (.jsonl, .csv): every flaw becomes a one-line error that names the file, row and column."""

import csv
import hashlib
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from negbench.contracts import check_option
from negbench.datasets._read import Reader, note, parsed, quoted, typed
from negbench.datasets.image_files import relative_path
from negbench.errors import DataError, OptionError

REQUIRED = ("reference", "text", "target")
OPTIONAL = ("relevant", "group", "split")
SEPARATOR = ";"  # of a list within one cell of a CSV file


@dataclass(frozen=True)
class TripletRow:
    """One triplet, checked. `where` is its place in the file, `number` its last line, from 1."""

    where: str
    number: int
    reference: str
    text: str
    target: str
    relevant: tuple[str, ...]
    group: str | None
    split: str | None


@dataclass(frozen=True)
class TripletTable:
    """Contents of a triplet file: its rows, unread columns, and the hash of its bytes."""

    rows: list[TripletRow]
    unread: tuple[str, ...]
    content: str


def read_triplets(path: Path, columns: str = "") -> TripletTable:
    """Read every row of a file.

    Args:
        path: .jsonl (one object a line) or .csv (with a header; commas, semicolons or tabs); columns
            reference, text, target, and optionally relevant (a list; in CSV names separated by
            ';'), group and split. Image names may be whole numbers, or paths with backslashes.
        columns: the file's own names for these, as reference=ref,text=caption.

    Raises:
        OptionError: another extension, or columns that cannot be read.
        DataError: no such file, not in its format, a column missing, a value of the wrong type; names row and column.
    """
    kind = path.suffix.lower()
    formats = {".jsonl": _jsonl, ".csv": _csv}
    reader = Reader(path.parent)
    if kind not in formats:
        raise OptionError(f"file must end in {', '.join(formats)}, got {str(path)!r}")
    if not path.is_file():
        raise DataError(f"triplets: there is no file {path}")
    rows, present, names = [], dict[str, None](), _renamed(columns)
    for number, entry in formats[kind](reader, path, names):
        present |= dict.fromkeys(entry)
        rows.append(_row(entry, number, f"{path}: line {number}"))
    if not rows:
        raise DataError(f"{path}: it contains no triplet")
    return TripletTable(rows, tuple(name for name in present if name not in REQUIRED + OPTIONAL), reader.content)


def read_names(path: Path) -> tuple[list[str], str]:
    """Read a gallery file (one name per line, or a .npz with `ids`); return its images and the hash of its content.

    Raises DataError that names a bad line.
    """
    if path.suffix == ".npz":
        note(path)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                ids = [_image(str(name), f"{path}: ids") for name in arrays["ids"].tolist()]
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: has no readable 'ids': {error}") from error
        return list(dict.fromkeys(ids)), hashlib.sha256("\n".join(ids).encode()).hexdigest()
    reader = Reader(path.parent)
    names = dict.fromkeys(_image(line.strip(), where) for where, line in reader.lines(path))
    return list(names), reader.content


# --- formats -----------------------------------------------------------------------------------------------------


def _renamed(columns: str) -> dict[str, str]:
    """Return the file's column name -> ours."""
    pairs = [part.partition("=") for part in columns.split(",") if part.strip()]
    for ours, _, theirs in pairs:
        known = ours.strip() in REQUIRED + OPTIONAL and bool(theirs.strip())
        check_option(
            "columns", columns, known, f"OURS=THEIRS with commas between, OURS of {', '.join(REQUIRED + OPTIONAL)}"
        )
    return {theirs.strip(): ours.strip() for ours, _, theirs in pairs}


def _jsonl(reader: Reader, path: Path, names: Mapping[str, str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(reader.text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}: line {number}"
            entry = typed(parsed(line, where), dict, where)
            own = {names.get(name, name): value for name, value in entry.items()}
            _check_columns(own, where)
            yield number, own


def _csv(reader: Reader, path: Path, names: Mapping[str, str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    text = reader.text(path)
    separator = max(",;\t", key=text.lstrip().partition("\n")[0].count)
    records = csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    try:
        header = [names.get(name.strip(), name.strip()) for name in records.fieldnames or ()]
        _check_columns(header, f"{path}: line 1")
        for record in records:
            if None in record or None in record.values():
                want = len(records.fieldnames or ())
                raise DataError(f"{path}: line {records.line_num}: expected {want} cells, as in the header")
            own = {names.get(name.strip(), name.strip()): value for name, value in record.items()}
            yield records.line_num, {name: _cell(name, value) for name, value in own.items()}
    except csv.Error as error:
        raise DataError(f"{path}: line {records.line_num}: not valid CSV: {error}") from error


def _check_columns(found: Iterable[str], where: str) -> None:
    """Name all columns that are missing at once, so that one more try is enough."""
    if missing := [column for column in REQUIRED if column not in found]:
        named = ",".join(f"{column}=NAME" for column in missing)
        raise DataError(
            f"{where}: no column {', '.join(missing)} (it has {quoted(list(found))}): name them with --columns {named} "
            f"(init, embed) or --set dataset.columns={named}"
        )


def _cell(column: str, value: str) -> Any:
    """Convert a cell to its JSON value: empty is null, `relevant` is a list."""
    if not value.strip():
        return None
    return [name.strip() for name in value.split(SEPARATOR) if name.strip()] if column == "relevant" else value


# --- rows --------------------------------------------------------------------------------------------------------


def _row(entry: Mapping[str, Any], number: int, where: str) -> TripletRow:
    def place(column: str) -> str:
        return f"{where}, column '{column}'"

    def required(column: str) -> str:
        if entry.get(column) is None:
            raise DataError(f"{place(column)} is missing (it has {quoted([k for k, v in entry.items() if v])})")
        return _string(entry[column], place(column))

    def optional(column: str) -> str | None:
        return None if entry.get(column) is None else _string(entry[column], place(column))

    listed = [] if entry.get("relevant") is None else entry["relevant"]
    if not isinstance(listed, list):
        raise DataError(f"{place('relevant')}: expected a list, got {quoted(listed)}")
    return TripletRow(
        where=where,
        number=number,
        reference=_image(required("reference"), place("reference")),
        text=required("text"),
        target=_image(required("target"), place("target")),
        relevant=tuple(_image(_string(value, place("relevant")), place("relevant")) for value in listed),
        group=optional("group"),
        split=optional("split"),
    )


def _string(value: Any, where: str) -> str:
    """Return non-empty, stripped text that can be written to a file; a whole number becomes its digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise DataError(f"{where}: expected a string, got {quoted(value)}")
    if not value.strip():
        raise DataError(f"{where}: is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: {quoted(value)} is not valid text") from error
    return value.strip()


def _image(value: str, where: str) -> str:
    return relative_path(value.replace("\\", "/"), where).as_posix()
