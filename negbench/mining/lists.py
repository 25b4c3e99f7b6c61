"""Read negatives that somebody else chose for the queries of a data set, as `negbench mine` writes them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from negbench.contracts import Query
from negbench.datasets.dataset import Dataset
from negbench.errors import DataError, short_repr
from negbench.files.image_files import Spellings
from negbench.files.row_files import FileRow, check_one, names_of, read_rows

_KEYS = (("query",), ("reference", "text", "target"), ("text", "target"))
_IMAGES = ("reference", "target")
_KEPT = ("none", "nan", "0", "0.0", "false")  # values of `fallback`


def read_lists(path: Path, dataset: Dataset) -> list[list[int]]:
    """Return the listed images of each query, as columns; [] for a query without a list.

    Args:
        path: .jsonl, .json, .csv, .tsv or .parquet; columns `negatives` (lists; names with ';' between in a CSV) or
            `negative` (one a row), and `query` (ids of the data set) or reference, text and target; or as the trainers
            of FlagEmbedding and sentence-transformers read negatives, by text and target. Rows of a query add up,
            those of other queries do nothing, and those with a `fallback` count as no list.
        dataset: the queries and images.

    Raises:
        OptionError: another extension.
        DataError: a file that cannot be read, lacks a column, or is for other data; names the row.
    """
    rows = [replace(row, values=_rename_columns(row.values)) for row in read_rows(path)]
    column, keys = _find_columns(path, rows)
    spelling = _Spelling(dataset)
    queries_of_key: dict[tuple[str | None, ...], list[int]] = {}
    for index, query in enumerate(dataset.queries):
        queries_of_key.setdefault(_key_of_query(query, keys), []).append(index)
    lists: list[list[int]] = [[] for _ in dataset.queries]
    any_query = False
    for row in rows:
        indices = queries_of_key.get(_key_of_row(row, keys, spelling), [])
        if not indices:
            continue
        any_query = True
        for index in indices:
            _check_target(row, dataset.queries[index], spelling)
        if str(row.values.get("fallback")).lower() not in _KEPT:
            continue
        columns = _read_images(row, column, spelling)
        for index in indices:
            lists[index] += columns
    if not any_query:
        ours = list(_key_of_query(dataset.queries[0], keys))
        theirs = [rows[0].values[name] for name in keys]
        raise DataError(
            f"{path} lists negatives of no query of {dataset.identity}: {' and '.join(keys)} are {short_repr(theirs)} "
            f"there, {short_repr(ours)} in the data: is it for other data or a split?"
        )
    return lists


def _rename_columns(values: dict[str, Any]) -> dict[str, Any]:
    """Return a row of FlagEmbedding's or sentence-transformers' negatives under our names; any other as it is."""
    if "neg" in values and values.get("pos"):
        return {"text": values["query"], "target": values["pos"][0], "negatives": values["neg"]}
    if {"anchor", "positive", "negative_1"} <= values.keys():
        negatives = [value for name, value in values.items() if name.startswith("negative_") and value is not None]
        return {"text": values["anchor"], "target": values["positive"], "negatives": negatives}
    return values


def _find_columns(path: Path, rows: Sequence[FileRow]) -> tuple[str, tuple[str, ...]]:
    """Return the column that lists negatives, and those that tell the query.

    Raises:
        DataError: there are none.
    """
    columns = names_of(rows[0].values if rows else {})
    listing = [name for name in ("negatives", "negative") if name in columns]
    telling = [keys for keys in _KEYS if {*keys} <= {*columns}]
    if listing and telling:
        return listing[0], telling[0]
    lacks = "no column 'query', nor reference, text and target" if listing else "no column 'negatives' or 'negative'"
    names = ", ".join(short_repr(column) for column in columns)
    raise DataError(f"{path}: {lacks} (it has {names})")


class _Spelling:
    """The images of a data set by the names that a file may give them."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._ids = {written: image for image, written in dataset.spelled.items()}
        self._spellings = Spellings(dataset.all_images)

    def image(self, value: Any) -> str:
        """Return the id of the image that this cell names; the name as it is if there is none."""
        name = str(value).strip()
        return self._ids.get(name) or self._spellings.find(name) or name

    def is_image(self, value: Any) -> bool:
        """Whether this cell names an image of the corpus."""
        return self.image(value) in self.dataset.column_of


def _key_of_query(query: Query, keys: Sequence[str]) -> tuple[str | None, ...]:
    return tuple(query.id if name == "query" else getattr(query, name) for name in keys)


def _key_of_row(row: FileRow, keys: Sequence[str], spelling: _Spelling) -> tuple[str, ...]:
    key = []
    for name in keys:
        value = row.values[name]
        key.append(spelling.image(value) if name in _IMAGES else str(value).strip())
    return tuple(key)


def _check_target(row: FileRow, query: Query, spelling: _Spelling) -> None:
    """Raise DataError if the row has a target, and it is not the query's."""
    target = row.values.get("target")
    if target is not None and spelling.image(target) != query.target:
        where = f"{row.where}: target {short_repr(target)}"
        raise DataError(f"{where}, but the data's is {short_repr(query.target)}: mine again")


def _read_images(row: FileRow, column: str, spelling: _Spelling) -> list[int]:
    """Return the columns of the corpus that a row lists.

    Raises:
        DataError: an image that the data do not have.
    """
    value = row.values[column]
    if column == "negative" and isinstance(value, str):
        names: Sequence[Any] = [value]
    else:
        names = row.entries(column, value)
    dataset = spelling.dataset
    columns = []
    for name in names:
        if not spelling.is_image(name):
            check_one(str(name), row.where_of(column), spelling.is_image)
            raise DataError(f"{row.where_of(column)}: {dataset.identity} has no image {short_repr(name)}")
        columns.append(dataset.column_of[spelling.image(name)])
    return columns
