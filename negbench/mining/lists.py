"""Read negatives that somebody else chose for the queries of a data set, as `negbench mine` writes them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from negbench.datasets.dataset import Dataset
from negbench.errors import DataError, short_repr
from negbench.files.image_files import Spellings
from negbench.files.row_files import check_one, names_of, read_rows

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
    has = names_of(rows[0].values if rows else {})
    column = next((name for name in ("negatives", "negative") if name in has), None)
    keys = next((keys for keys in _KEYS if {*keys} <= {*has}), None)
    if column is None or keys is None:
        lacks = "no column 'query', nor reference, text and target" if column else "no column 'negatives' or 'negative'"
        raise DataError(f"{path}: {lacks} (it has {', '.join(map(short_repr, has))})")
    ids = {written: image for image, written in dataset.spelled.items()}
    spellings = Spellings(dataset.all_images)

    def read(value: Any) -> str:
        name = str(value).strip()
        return ids.get(name) or spellings.find(name) or name

    places: dict[tuple[str | None, ...], list[int]] = {}
    for place, query in enumerate(dataset.queries):
        key = (query.id,) if keys == ("query",) else tuple(getattr(query, name) for name in keys)
        places.setdefault(key, []).append(place)
    lists: list[list[int]] = [[] for _ in dataset.queries]
    known = 0
    for row in rows:
        values = row.values
        key_of_row = tuple(read(values[name]) if name in _IMAGES else str(values[name]).strip() for name in keys)
        found = places.get(key_of_row, ())
        known += len(found)
        if not found:
            continue
        target = values.get("target")
        for place in found:
            wanted = dataset.queries[place].target
            if target is not None and read(target) != wanted:
                where = f"{row.where}: target {short_repr(target)}"
                raise DataError(f"{where}, but the data's is {short_repr(wanted)}: mine again")
        if str(values.get("fallback")).lower() not in _KEPT:
            continue
        if column == "negative" and isinstance(values[column], str):
            names = [values[column]]
        else:
            names = row.listed(column, values[column])
        columns = []
        for name in names:
            image = read(name)
            if image not in dataset.column_of:
                check_one(str(name), row.place(column), lambda part: read(part) in dataset.column_of)
                raise DataError(f"{row.place(column)}: {dataset.identity} has no image {short_repr(name)}")
            columns.append(dataset.column_of[image])
        for place in found:
            lists[place] += columns
    if not known:
        row = rows[0]
        own = [getattr(dataset.queries[0], "id" if name == "query" else name) for name in keys]
        theirs = [row.values[name] for name in keys]
        raise DataError(
            f"{path} lists negatives of no query of {dataset.identity}: {' and '.join(keys)} are {short_repr(theirs)} "
            f"there, {short_repr(own)} in the data: is it for other data or a split?"
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
