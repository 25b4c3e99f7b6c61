"""Read triplets from tables of any form: every flaw becomes a one-line error that names the file, row and column."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from negbench.contracts import check_option
from negbench.errors import DataError, NegbenchError, printable, short_repr
from negbench.files.captions import join_captions
from negbench.files.image_files import is_picture, path_below
from negbench.files.reader import Reader, note
from negbench.files.row_files import SEPARATOR, SPLITS, VAL, FileRow, at, check_one, names_of, read_rows, unwritten
from negbench.files.vector_files import read_vectors

REQUIRED = ("reference", "text", "target")
JUDGED = {"judged_wrong": "unspecified", **{f"judged_wrong_{kind}": kind for kind in ("composed", "visual", "textual")}}
LISTS = ("relevant", "negatives", *JUDGED)
OPTIONAL = (*LISTS, "negative", "wordings", "group", "split", "id")
PATHS = "paths"  # no column: a table of image paths by id


@dataclass(frozen=True)
class TripletRow:
    """One triplet, checked. `where` names it in errors, `number` as in `FileRow`, run on over several files."""

    where: str
    number: int
    reference: str
    text: str
    target: str
    relevant: tuple[str, ...]
    group: str | None
    split: str | None  # None in a row that is still to be divided into train and val
    id: str | None
    captions: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    wrong: tuple[tuple[str, str], ...] = ()  # judged negatives with their kinds
    wordings: tuple[str, ...] = ()

    def images(self, column: str) -> list[str]:
        """Return the images in a column."""
        if column in JUDGED:
            return [image for kind, image in self.wrong if kind == JUDGED[column]]
        if column == "target":
            return [self.reference, self.target]
        return list(getattr(self, column))


@dataclass(frozen=True)
class TripletTable:
    """Contents of triplet files: rows, columns (all, and those not read), and a hash of the rows without judgements.

    `spelled` is how the files name an image, where its id is another: with backslashes, in full, by an id of `paths`.
    """

    rows: list[TripletRow]
    columns: tuple[str, ...]
    unread: tuple[str, ...]
    content: str
    spelled: Mapping[str, str]

    @property
    def divided(self) -> bool:
        """Whether neither a column nor a file's name says which rows are val."""
        return any(row.split is None for row in self.rows)

    @property
    def splits(self) -> list[str]:
        """Splits that have rows."""
        names = list(dict.fromkeys(row.split for row in self.rows if row.split is not None))
        return ["train", "val", *names] if self.divided else names


def read_triplets(files: Sequence[Path], columns: str = "", folders: Sequence[Path] = ()) -> TripletTable:
    """Read every row of some files.

    Args:
        files: as `read_rows` reads them; columns reference, text, target, and optionally relevant (a list; in a cell
            of CSV names separated by ';'), negatives (likewise; or negative, one), group, split and id. Image names
            may be whole numbers, have backslashes, or be full paths. Texts in a list are joined as FashionIQ's; of
            targets in a list the first is the target, and all are relevant. A file without column `split` is the split
            that its name says.
        columns: the file's own names for these, or paths in a row, as reference=ref,text=captions[0]; places, from 0,
            in a table without a header. paths=FILE:ID:PATH names a table of image paths by id.
        folders: of images, which full paths lead into.

    Raises:
        OptionError: another extension, or columns that cannot be read.
        DataError: no such file, not in its format, a column missing, a value of the wrong type; names row and column.
    """
    files = [file.absolute() for file in files]
    file_columns = _names_of_columns(columns)
    table, *keys = file_columns.pop(PATHS, "").rsplit(":", 2)
    paths = {}
    if table:
        paths = _read_paths(Path(os.path.normpath(files[0].parent / table)), *keys)
    root = Path(os.path.commonpath([file.parent for file in files]))
    rows: list[TripletRow] = []
    present: dict[str, None] = {}  # columns of any file
    form = _Form(file_columns, paths)
    for file in files:
        file_rows = read_rows(file, header=not form.by_index)
        if not file_rows:
            raise DataError(f"{file}: it contains no triplet")
        form.check(file, file_rows)
        for row in file_rows:
            present |= dict.fromkeys(row.values)
        file_form = replace(form, folders=(*folders, file.parent))
        word = split_word(file.relative_to(root) if len(files) > 1 else Path(file.name))
        before = rows[-1].number if rows else 0
        rows += [file_form.triplet(row, before + row.number, word) for row in file_rows]
    _check_separators(rows)
    rows = _with_splits(rows, by_name="split" not in file_columns and "split" not in present)
    names = Counter((row.split, row.id) for row in rows)
    lacks_id = any(row.id is None for row in rows)
    if "id" not in file_columns and (len(names) < len(rows) or lacks_id):  # the column names something else
        rows = [row if row.id is None else replace(row, id=None) for row in rows]
        form = replace(form, columns={**file_columns, "id": ""})
    used = set()
    for column in REQUIRED + OPTIONAL:
        path = form.path(column)
        used.add(path if path in present else re.split(r"[.\[]", path)[0])
    unread = tuple(name for name in present if name not in used)
    return TripletTable(rows, tuple(present), unread, _content(rows), form.spelled)


def has_columns(file: Path, columns: str = "") -> bool:
    """Whether a table has the columns of triplets, whatever its rows hold; arguments as for `read_triplets`."""
    try:
        file_columns = _names_of_columns(columns)
        file_columns.pop(PATHS, "")
        form = _Form(file_columns, {})
        form.check(file, read_rows(file, header=not form.by_index))
    except NegbenchError:
        return False
    return True


def _read_paths(file: Path, id_column: str, path_column: str) -> dict[str, str]:
    """Read a table of image paths: id -> path. Raises DataError for a missing column, or an id with two paths."""
    rows = read_rows(file)
    for column in (id_column, path_column):
        if all(at(row.values, column) is None for row in rows):
            raise DataError(f"{file}: no column {short_repr(column)} for {PATHS} ({_has(rows)})")
    paths: dict[str, str] = {}
    for row in rows:
        name = _string(at(row.values, id_column), row.where_of(id_column))
        path = _string(at(row.values, path_column), row.where_of(path_column))
        if paths.setdefault(name, path) != path:
            raise DataError(
                f"{row.where}: {short_repr(name)} is {short_repr(paths[name])} in another row: leave one out"
            )
    return paths


def _content(rows: Sequence[TripletRow]) -> str:
    """Hash what can change a model or a rank: neither judgements nor wordings do."""
    plain = [replace(row, where="", wrong=(), wordings=()) for row in rows]
    return hashlib.sha256("\n".join(map(repr, plain)).encode()).hexdigest()


def read_names(path: Path) -> tuple[list[str], str]:
    """Read a gallery file (one name per line, or embeddings with ids); return its images and the hash of its content.

    Raises DataError that names a bad line.
    """
    reader = Reader(path.parent)
    folders = (path.absolute().parent,)
    if path.suffix in (".npz", ".npy", ".parquet"):
        note(path)
        row_names, _ = read_vectors(path, "ids", once="image")
        ids = [_image(name, f"{path}: ids", folders) for name in row_names]
        return list(dict.fromkeys(ids)), hashlib.sha256("\n".join(ids).encode()).hexdigest()
    names = dict.fromkeys(_image(line.strip(), where, folders) for where, line in reader.lines(path))
    return list(names), reader.content


def split_word(path: Path) -> str | None:
    """Return the one split that a file's name says, or else its folders; None if they name none, or several."""
    for part in reversed(path.with_suffix("").parts):
        words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", part)} & SPLITS.keys()
        if words:
            return SPLITS[words.pop()] if len(words) == 1 else None
    return None


# --- columns -----------------------------------------------------------------------------------------------------


def _names_of_columns(columns: str) -> dict[str, str]:
    """Return our column -> the file's own name of it, or path in a row."""
    names: dict[str, str] = {}
    rule = f"OURS=THEIRS with commas between, OURS of {', '.join(REQUIRED + OPTIONAL)}, or {PATHS}=FILE:ID:PATH"
    check_option("columns", columns, not columns or bool(columns.replace(",", "").strip()), rule)
    for part in columns.split(","):
        if not part.strip():
            continue
        before, _, after = part.partition("=")
        ours = before.strip()
        theirs = after.strip()
        is_column = ours in REQUIRED + OPTIONAL or (ours == PATHS and theirs.count(":") == 2)
        check_option("columns", columns, is_column and bool(theirs) and ours not in names, f"{rule}, each once")
        names[ours] = theirs
    return names


@dataclass(frozen=True)
class _Form:
    """How the rows of a file are read.

    Attributes:
        columns: our column -> the file's own name of it, or path in a row.
        paths: id -> path of an image.
        folders: of images; the last is the file's own.
        spelled: image -> how the files name it first, if otherwise.
    """

    columns: Mapping[str, str]
    paths: Mapping[str, str]
    folders: tuple[Path, ...] = ()
    spelled: dict[str, str] = field(default_factory=dict)

    @property
    def by_index(self) -> bool:
        """Whether columns are named by their indices only."""
        return bool(self.columns) and all(re.fullmatch(r"\[?\d+\]?", path) for path in self.columns.values())

    def path(self, column: str) -> str:
        """Return where a column stands in a row."""
        return self.columns.get(column, column)

    def check(self, file: Path, rows: Sequence[FileRow]) -> None:
        """Name all columns that no row has at once, and a first line that is a row: one more try is then enough."""
        names: set[str] = set()
        for row in rows:
            names.update(row.values)
        lacking = []
        for column in dict.fromkeys((*REQUIRED, *self.columns)):
            path = self.path(column)
            if path not in names and all(at(row.values, path) is None for row in rows):
                lacking.append(column)
        likely = []  # names of columns that look like an image's
        for column in ("reference", "target"):
            name = self.columns.get(column)
            if name is not None and (is_picture(name) or any(at(row.values, name) == name for row in rows)):
                likely.append(name)
        advice = "name the columns by place, as reference=0,target=1,text=2"
        cells = rows[0].cells and not self.by_index
        if cells and likely:
            raise DataError(f"{file}: line 1 is a row, as it holds {short_repr(likely[0])}, and no header: {advice}")
        if lacking:
            descriptions = []
            unnamed = []
            for column in lacking:
                name = self.columns.get(column)
                if name:
                    descriptions.append(f"{short_repr(name)} for {column}")
                else:
                    descriptions.append(column)
                    unnamed.append(f"{column}=NAME")
            mend = ""
            if unnamed:
                setting = ",".join(unnamed)
                mend = f": name them with --columns {setting} (init, embed) or --set dataset.columns={setting}"
            if cells and {*lacking} <= {*REQUIRED}:
                mend += f"; if its first line is a row, {advice}"
            raise DataError(f"{file}: no column {', '.join(descriptions)} ({_has(rows)}){mend}")

    # --- rows ----------------------------------------------------------------------------------------------------

    def triplet(self, row: FileRow, number: int, word: str | None) -> TripletRow:
        """Return a row, checked."""
        texts = self._texts(row)
        reference, *others = self._images(row, "reference")
        target, *more = self._images(row, "target")
        if others:
            path = self.path("reference")
            raise DataError(
                f"{row.where_of('reference')} lists {1 + len(others)} images: "
                f"take one, as --columns reference={path}[0]"
            )
        relevant = self._images(row, "relevant")
        split = self._optional(row, "split")
        return TripletRow(
            where=row.where,
            number=number,
            reference=reference,
            text=join_captions(*texts) if len(texts) > 1 else texts[0],
            target=target,
            relevant=(target, *more, *relevant) if more or relevant else (),
            group=self._optional(row, "group"),
            split=word if split is None else SPLITS.get(split.lower(), split),
            id=self._optional(row, "id"),
            captions=texts,
            negatives=self._images(row, "negatives") or self._images(row, "negative"),
            wrong=self._wrong(row, {target, *more, *relevant}),
            wordings=self._texts(row, "wordings"),
        )

    def _wrong(self, row: FileRow, right: Set[str]) -> tuple[tuple[str, str], ...]:
        """Return judged negatives, each with one kind: that of the column which names one."""
        kinds: dict[str, str] = {}
        for column, kind in JUDGED.items():
            for image in self._images(row, column):
                before = "relevant" if image in right else kinds.get(image, "unspecified")
                if before not in ("unspecified", kind):
                    where = row.where_of(column)
                    raise DataError(f"{where}: {short_repr(image)} is {before}, too: leave it out of one")
                kinds[image] = kind
        return tuple((kind, image) for image, kind in kinds.items())

    def _value(self, row: FileRow, column: str) -> Any:
        """Return what a row holds in one of our columns; raise DataError if it is required and missing."""
        value = at(row.values, self.path(column))
        if value != value:  # pandas's NaN
            value = None
        required = column in REQUIRED or (column == "id" and "id" in self.columns)
        if required and unwritten(value) in (None, []):
            filled = [name for name, content in row.values.items() if content]
            raise DataError(f"{row.where_of(column)} is missing (it has {short_repr(filled)})")
        return value

    def _optional(self, row: FileRow, column: str) -> str | None:
        """Return the text of a column; None if it has none."""
        value = self._value(row, column)
        return None if value is None else _string(value, row.where_of(column))

    def _texts(self, row: FileRow, column: str = "text") -> tuple[str, ...]:
        """Return the texts in a column: one, or those of a list."""
        value = self._value(row, column)
        where = row.where_of(column)
        if value in (None, "", []):
            return ()
        parts = unwritten(value)
        if isinstance(parts, list) and (parts is value or any(isinstance(part, str | list) for part in parts)):
            return tuple(_string(part, where) for part in parts)
        return (_string(value, where),)

    def _images(self, row: FileRow, column: str) -> tuple[str, ...]:
        """Return the images in a column: one, or those of a list."""
        value = unwritten(self._value(row, column))
        if value is None:
            return ()
        several = column in LISTS or isinstance(value, list) or (row.cells and SEPARATOR in value)
        if several or re.fullmatch(r"\s*\[.*\]\s*", str(value)):
            return tuple(self._image(entry, row, column) for entry in row.entries(column, value))
        return (self._image(value, row, column),)

    def _image(self, value: Any, row: FileRow, column: str) -> str:
        where = row.where_of(column)
        if isinstance(value, bytes) or (isinstance(value, dict) and value.get("bytes")):
            raise DataError(
                f"{where} holds a picture, not its name: write files, as `for n, row in enumerate(rows): "
                "open(f'{n}.jpg', 'wb').write(row['reference']['bytes']); row['reference'] = f'{n}.jpg'`"
            )
        if isinstance(value, dict) and "path" in value:
            value = value["path"]
        name = _string(value, where)
        if row.cells:
            name = re.sub(r"^(\d+)\.0$", r"\1", name)  # as pandas writes whole numbers with a gap
        image = _image(_string(self.paths.get(name, name), where), where, self.folders)
        if image != name:
            self.spelled.setdefault(image, name)
        return image


def _has(rows: Sequence[FileRow]) -> str:
    """Say which columns a table has."""
    names = names_of(rows[0].values) if rows else []
    return f"it has {', '.join(printable(name) for name in names)}"


def _string(value: Any, where: str) -> str:
    """Return non-empty, stripped text that can be written to a file; a whole number becomes its digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str):
        advice = "; take one by its place, as NAME[0]" if isinstance(value, list) else ""
        raise DataError(f"{where}: expected a string, got {short_repr(value)}{advice}")
    if not value.strip():
        raise DataError(f"{where}: is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: {short_repr(value)} is not valid text") from error
    return value.strip()


def _image(value: str, where: str, folders: Sequence[Path]) -> str:
    """Return the id of the image that a text names."""
    if re.search(r"[\t\n]", value):
        check_one(value, where, bool)
    if "://" in value:
        raise DataError(
            f"{where}: {short_repr(value)} is an address: fetch the pictures, and write the names of their files"
        )
    return path_below(value.replace("\\", "/"), where, folders).as_posix()


# --- over all rows -----------------------------------------------------------------------------------------------


def _check_separators(rows: Sequence[TripletRow]) -> None:
    """Raise DataError for an entry that is several known images with a separator between, ';' but in lists of cells."""
    names: set[str] = set()
    for row in rows:
        names.update(name for name in row.images("target") if not re.search(r"[|,;\t]", name))

    def is_name(part: str) -> bool:
        return part in names or is_picture(part)

    for row, column in product(rows, ("target", *LISTS)):
        for entry in row.images(column):
            if entry not in names:
                check_one(entry, f"{row.where}, column '{column}'", is_name)


def _with_splits(rows: Sequence[TripletRow], *, by_name: bool) -> list[TripletRow]:
    """Call the validation split val, by whatever name; leave rows without a split if there are no others of val."""
    first = {row.split: row for row in reversed(rows)}
    if len(first) > 1 and None in first:
        raise DataError(f"{first[None].where}, column 'split' is missing: other rows have one")
    names = [name for name in VAL if name in first] or ["dev"]
    if len(names) > 1:
        descriptions = [f"{name!r} ({first[name].where})" for name in names[:2]]
        raise DataError(f"{' and '.join(descriptions)} both name the split val: rename one, or leave it out")
    (val_name,) = names
    new_names: dict[str | None, str | None] = {val_name: "val"}
    if by_name and val_name not in first:
        new_names["train"] = None
    return [replace(row, split=new_names[row.split]) if row.split in new_names else row for row in rows]
