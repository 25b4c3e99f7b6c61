"""Read negatives that somebody else chose for the queries of a data set, as `negbench mine` writes them."""

from pathlib import Path
from typing import Any

from negbench.datasets._read import Reader
from negbench.datasets._row_files import CELLS, listed, names_of, read_rows
from negbench.datasets.dataset import Dataset
from negbench.errors import DataError, quoted

_COLUMNS = ("negatives", "negative")
_TRIPLET = ("reference", "text", "target")
_IMAGES = ("reference", "target")


def read_lists(path: Path, dataset: Dataset) -> list[list[int]]:
    """Return the listed images of each query, as columns; [] for a query without a list.

    Args:
        path: .jsonl, .json, .csv, .tsv or .parquet; columns `negatives` (lists; names with ';' between in a CSV) or
            `negative` (one a row), and `query` (ids of the data set) or reference, text and target. Rows of a query
            add up, those of other queries do nothing, and those with a `fallback` count as no list.
        dataset: the queries and images.

    Raises:
        OptionError: another extension.
        DataError: a file that cannot be read, lacks a column, or is for other data; names the row.
    """
    rows = read_rows(Reader(path.absolute().parent), path.absolute())
    has = names_of(rows[0].values if rows else {})
    column = next((name for name in _COLUMNS if name in has), None)
    keys = next((keys for keys in (("query",), _TRIPLET) if {*keys} <= {*has}), None)
    if column is None or keys is None:
        lacks = "no column 'query', nor reference, text and target" if column else "no column 'negatives' or 'negative'"
        raise DataError(f"{path}: {lacks} (it has {', '.join(map(quoted, has))})")
    ids = {written: image for image, written in dataset.spelled.items()}

    def read(value: Any) -> str:
        name = str(value).strip()
        return ids.get(name, name.replace("\\", "/"))

    places: dict[tuple[str, ...], list[int]] = {}
    for place, query in enumerate(dataset.queries):
        key = (query.id,) if keys == ("query",) else (query.reference, query.text, str(query.target))
        places.setdefault(key, []).append(place)
    lists: list[list[int]] = [[] for _ in dataset.queries]
    known = 0
    for row in rows:
        values = row.values
        parts = (read(values[name]) if name in _IMAGES else str(values[name]).strip() for name in keys)
        found = places.get(tuple(parts), ())
        known += len(found)
        for place in found:
            target, own = dataset.queries[place].target, values.get("target")
            if own is not None and read(own) != target:
                raise DataError(f"{row.where}: target {quoted(own)}, but the data's is {quoted(target)}: mine again")
            if values.get("fallback") in (None, 0, "0"):
                value, where = values[column], f"{row.where}, column '{column}'"
                one = column == "negative" and isinstance(value, str)
                names = [value] if one else listed(value, where, cells=path.suffix.lower() in CELLS)
                lacking = [each for each in names if read(each) not in dataset.column_of]
                if lacking:
                    raise DataError(f"{where}: {dataset.identity} has no image {quoted(lacking[0])}")
                lists[place] += [dataset.column_of[read(each)] for each in names]
    if not known:
        raise DataError(f"{path} lists negatives of no query of {dataset.identity}: is it for other data or a split?")
    return lists
