"""Read named embeddings: .npz, .npy with the names beside it in .txt, and .parquet."""

from pathlib import Path
from typing import Any

import numpy as np

from negbench.errors import DataError, NegbenchError
from negbench.machine.room import check_unpacked

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
            named = beside.read_text("utf-8").rstrip("\n").split("\n") if names or beside.is_file() else []
            return named, np.load(path, allow_pickle=False)
        if path.suffix == ".parquet":
            return _of_table(path, names)
        check_unpacked(path)
        with np.load(path, allow_pickle=False) as file:
            return _named(file, file.files, path, names)
    except NegbenchError:
        raise
    except Exception as error:  # zipfile's, numpy's, pyarrow's
        raise DataError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error


def _of_table(path: Path, names: str) -> tuple[list[str], np.ndarray[Any, Any]]:
    import pandas as pd

    table = pd.read_parquet(path)
    lists = [column for column in table if len(table) and isinstance(table[column].iloc[0], np.ndarray)]
    arrays: Any = {column: table[column].to_numpy() for column in table if column not in lists}
    arrays |= {column: np.stack([np.stack(cell) for cell in table[column]]) for column in lists}
    known = [str(column) for column in table if names or column in (*lists, *_ANY)]
    return _named(arrays, known, path, names)


def _named(arrays: Any, keys: list[str], path: Path, names: str) -> tuple[list[str], np.ndarray[Any, Any]]:
    wanted = next((name for name in NAMES.get(names, _ANY) if name in keys), names)
    others = [name for name in keys if name != wanted]
    key = others[0] if len(others) == 1 else "features"
    for name in (*[wanted] * bool(wanted), key):
        if name not in keys:
            raise DataError(f"{path} has no '{name}', only {', '.join(map(repr, keys[:10])) or 'nothing'}")
    try:
        named, vectors = arrays[wanted].tolist() if wanted else [], arrays[key]
    except ValueError as error:
        raise DataError(f"{path} holds Python objects: save ids with np.array(ids, dtype=str) ({error})") from error
    return [name.decode() if isinstance(name, bytes) else str(name) for name in named], vectors
