"""Read named embeddings: .npz, .npy with the names beside it in .txt, and .parquet."""

from pathlib import Path
from typing import Any

import numpy as np

from negbench.errors import DataError, NegbenchError
from negbench.machine.received import npy_array, npz_arrays, read_parquet, read_text

NAMES = {"ids": ("ids", "id"), "texts": ("texts", "text")}
_ANY = (*NAMES["ids"], *NAMES["texts"])


def files_of(path: Path) -> list[Path]:
    """Return a file of embeddings, and the one that names its rows."""
    return [path, path.with_suffix(".txt")] if path.suffix == ".npy" else [path]


def read_vectors(path: Path, names: str) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Read names and embeddings.

    Args:
        path: .npz with an array of names and one of vectors (`features`, or the only other one); .npy with a .txt of
            the same name, a name per line; .parquet with a column of names and one of lists.
        names: "ids" or "texts", as the names are called; "": either, or none ([] is returned).

    Raises:
        DataError: a file that is absent or damaged, that lacks names or vectors, or whose names are Python objects.
    """
    try:
        if path.suffix == ".npy":
            beside = path.with_suffix(".txt")
            named = read_text(beside).rstrip("\n").split("\n") if names or beside.is_file() else []
            return named, npy_array(path)
        if path.suffix == ".parquet":
            return _of_table(path, names)
        with npz_arrays(path) as file:
            return _named(file, file.files, path, names)
    except NegbenchError:
        raise
    except Exception as error:  # zipfile's, numpy's, pyarrow's
        raise DataError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error


def _of_table(path: Path, names: str) -> tuple[list[str], np.ndarray[Any, Any]]:
    table = read_parquet(path)
    index = (table.schema.pandas_metadata or {}).get("index_columns", ())
    table = table.drop_columns([name for name in index if name in table.column_names])
    arrays = dict[str, Any]()
    known = list[str]()
    for name in table.column_names:
        column = table[name]
        lists = hasattr(column.type, "value_type")
        arrays[name] = _stacked(column.chunks) if lists else column.to_numpy()
        if lists or names or name in _ANY:
            known.append(name)
    return _named(arrays, known, path, names)


def _stacked(chunks: list[Any]) -> np.ndarray[Any, Any]:
    """Return a column of lists, all of one length, as an array [rows, length]; of lists of lists, [rows, n, length]."""
    import pyarrow.compute as pc

    parts = []
    for chunk in chunks:
        values = chunk.flatten()
        inner = _stacked([values]) if hasattr(values.type, "value_type") else values.to_numpy(zero_copy_only=False)
        lengths = {*pc.value_counts(pc.list_value_length(chunk)).field("values").to_pylist()}
        if len(lengths) > 1 or None in lengths:
            raise ValueError("all lists of a column must have the same length")
        if lengths:
            parts.append(inner.reshape(len(chunk), *lengths, *inner.shape[1:]))
    return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)


def _named(arrays: Any, keys: list[str], path: Path, names: str) -> tuple[list[str], np.ndarray[Any, Any]]:
    wanted = next((name for name in NAMES.get(names, _ANY) if name in keys), names)
    others = [name for name in keys if name != wanted]
    key = others[0] if len(others) == 1 else "features"
    for name in (wanted, key) if wanted else (key,):
        if name not in keys:
            raise DataError(f"{path} has no '{name}', only {', '.join(map(repr, keys[:10])) or 'nothing'}")
    try:
        named, vectors = arrays[wanted].tolist() if wanted else [], arrays[key]
    except ValueError as error:
        raise DataError(f"{path} holds Python objects: save ids with np.array(ids, dtype=str) ({error})") from error
    return [name.decode() if isinstance(name, bytes) else str(name) for name in named], vectors
