"""Read named embeddings: .npz, .npy with the names beside it in .txt or .json, and .parquet.

Everything that reads embeddings, the backbone `precomputed` and `negbench mine` among them, reads them here.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from negbench.errors import DataError, NegbenchError, short_repr
from negbench.machine.file_kinds import file_kind
from negbench.machine.received import npy_array, npz_arrays, read_json_text, read_parquet, read_text

ENDINGS = (".npz", ".npy", ".parquet")
NAMES = {"ids": ("ids", "id"), "texts": ("texts", "text")}
UNNAMED_INDEX = "__index_level_0__"  # how parquet calls the index of a table of pandas that has no name
_ANY = (*NAMES["ids"], *NAMES["texts"])
_BESIDE = (".txt", ".json")  # endings of the file of names beside a .npy
_SAVE = "np.savez('{1}.npz', {2}=names, features="
# files that are not read, and the lines that convert them: {0} is the file, {1} its stem, {2} what its names are called
_LINES = {
    ".pt": _SAVE + "torch.load('{0}').numpy()); of a dict of names and vectors, {2}=[*d], "
    "features=torch.stack([*d.values()]).numpy()",
    ".safetensors": "d = safetensors.numpy.load_file('{0}'); np.savez('{1}.npz', {2}=[*d], "
    "features=np.stack([*d.values()])), or of one array " + _SAVE + "d['features'])",
    ".h5": "f = h5py.File('{0}'); np.savez('{1}.npz', {2}=f['{2}'].asstr()[:], features=f['features'][:])",
    ".faiss": "i = faiss.read_index('{0}'); " + _SAVE + "i.reconstruct_n(0, i.ntotal))",
    ".mat": "d = scipy.io.loadmat('{0}'); " + _SAVE + "d['features'])",
    ".pkl": "d = pandas.read_pickle('{0}'); np.savez('{1}.npz', {2}=[*d], features=np.stack([*d.values()]))",
    ".csv": "t = pandas.read_csv('{0}', index_col=0); np.savez('{1}.npz', {2}=np.array(t.index, dtype=str), "
    "features=t.to_numpy())",
}
_LIKE = {".pth": ".pt", ".bin": ".pt", ".hdf5": ".h5", ".index": ".faiss", ".pickle": ".pkl", ".tsv": ".csv"}


# --- which files -------------------------------------------------------------------------------------------------


def names_beside(path: Path) -> Path:
    """Return the file that names the rows of a .npy: of the same name, in .txt or .json; the former if none exists."""
    candidates = [path.with_suffix(ending) for ending in _BESIDE]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    return candidates[0]


def files_of(path: Path) -> list[Path]:
    """Return a file of embeddings, and the one that names its rows."""
    return [path, names_beside(path)] if path.suffix == ".npy" else [path]


def conversion(path: Path, names: str = "") -> str | None:
    """Return the lines that convert a file of arrays to .npz; None for one that is read, or that holds none.

    Args:
        path: its ending decides.
        names: "ids" or "texts"; "": what its own name says.
    """
    ending = path.suffix.lower()
    lines = _LINES.get(_LIKE.get(ending, ending))
    if lines is None:
        return None
    if not names:
        names = "texts" if "text" in path.stem.lower() else "ids"
    return lines.format(path.name, path.stem, names)


# --- reading -----------------------------------------------------------------------------------------------------


def read_vectors(path: Path, names: str, once: str = "") -> tuple[list[str], np.ndarray[Any, Any]]:
    """Read names and embeddings; integers become float32, and any byte order and layout that of this machine.

    Args:
        path: .npz with an array of names and one of vectors (`features`, or the only other one); .npy with the names
            in a .txt or .json of the same name; .parquet with a column of names, which may be the index, and one of
            lists or a column for each number.
        names: "ids" or "texts", as the names are called; "": either, or none ([] is returned).
        once: what a name is called, "image" or "text", if each may stand there once only.

    Raises:
        DataError: a file that is absent, damaged or of another format, that lacks names or vectors, whose vectors are
            no numbers, or that has another number of names than vectors, or one twice.
    """
    if path.suffix not in ENDINGS:
        lines = conversion(path, names)
        how = f"; convert it: {lines}" if lines else ""
        raise DataError(f"{path}: expected a {', '.join(ENDINGS)} file{how}")
    try:
        row_names, array = _read_arrays(path, names)
    except NegbenchError:
        raise
    except Exception as error:  # zipfile's, numpy's, pyarrow's
        kind = file_kind(path)
        why = f"it is {kind}" if kind else error
        raise DataError(f"{path} cannot be read as {path.suffix[1:]}: {why}") from error
    vectors = as_floats(array, str(path))
    if (row_names or names) and vectors.ndim and len(row_names) != len(vectors):
        source = names_beside(path) if path.suffix == ".npy" else path
        raise DataError(f"{source} has {len(row_names):,} names for the {len(vectors):,} vectors of {path.name}")
    if once:
        _check_once(row_names, path, once)
    return row_names, vectors


def as_floats(array: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    """Return an array as torch takes it: of floats in this machine's byte order, C order, writable.

    Half, single and double precision stay as they are; whole numbers and truth values become float32.

    Raises:
        DataError: an array of anything else.
    """
    kind = array.dtype.kind
    if kind not in "fiub":
        raise DataError(
            f"{where}: its vectors must be numbers, got {array.dtype}: save them with features.astype('float32')"
        )
    dtype = np.dtype("float32") if kind in "iub" else array.dtype.newbyteorder("=")
    if dtype.itemsize > np.dtype("float64").itemsize:
        dtype = np.dtype("float64")
    return np.require(array.astype(dtype, copy=False), requirements=["C", "W", "A"])


def _check_once(names: Sequence[str], path: Path, what: str) -> None:
    first: dict[str, int] = {}
    for row, name in enumerate(names, start=1):
        if first.setdefault(name, row) != row:
            raise DataError(f"{path}: {what} {short_repr(name)} occurs twice (rows {first[name]} and {row}): keep one")


def _read_arrays(path: Path, names: str) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Read the names and the vectors of a file as they are in it."""
    if path.suffix == ".npy":
        beside = names_beside(path)
        row_names = read_list(beside) if names or beside.is_file() else []
        return row_names, npy_array(path)
    if path.suffix == ".parquet":
        return _read_table(path, names)
    with npz_arrays(path) as file:
        return _choose_arrays(file, file.files, path, names)


def read_list(path: Path) -> list[str]:
    """Read names, one a line (.txt), or a JSON list of them; a byte-order mark and blank lines at the end are dropped.

    Raises:
        DataError: a file that is absent, not UTF-8 or no list.
    """
    try:
        text = read_json_text(path) if path.suffix == ".json" else read_text(path, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}: it names the rows of the .npy") from error
    if path.suffix != ".json":
        lines = text.rstrip().split("\n") if text.strip() else []
        return [line.strip() for line in lines]
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON: {error}") from error
    if isinstance(content, dict):
        content = next((content[key] for key in _ANY if isinstance(content.get(key), list)), content)
    if not isinstance(content, list) or not all(isinstance(name, str | int) for name in content):
        raise DataError(f'{path}: expected a list of names, ["a.jpg", "b.jpg"], got {short_repr(content)}')
    return [str(name) for name in content]


def _read_table(path: Path, names: str) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Read the names and the vectors of a .parquet."""
    table = read_parquet(path)
    columns = [str(name) for name in table.column_names]
    if UNNAMED_INDEX in columns:
        if {*_ANY} & {*columns}:
            table = table.drop_columns([UNNAMED_INDEX])
        else:
            index = NAMES[names or "ids"][0]
            table = table.rename_columns([index if name == UNNAMED_INDEX else name for name in columns])
    arrays: dict[str, Any] = {}
    keys: list[str] = []  # of columns that may be names or vectors
    for name in table.column_names:
        column = table[name]
        lists = hasattr(column.type, "value_type")
        arrays[name] = _stack(column.chunks) if lists else column.to_numpy()
        if lists or names or name in _ANY:
            keys.append(name)
    numbered = numbered_columns({name: values.dtype for name, values in arrays.items() if values.ndim == 1})
    if numbered and all(values.ndim == 1 for values in arrays.values()):
        arrays["features"] = np.stack([arrays.pop(column) for column in numbered], axis=1)
        keys = [name for name in keys if name not in numbered] + ["features"]
    return _choose_arrays(arrays, keys, path, names)


def _stack(chunks: list[Any]) -> np.ndarray[Any, Any]:
    """Return a column of lists, all of one length, as an array [rows, length]; of lists of lists, [rows, n, length]."""
    import pyarrow.compute as pc

    parts = []
    for chunk in chunks:
        values = chunk.flatten()
        inner = _stack([values]) if hasattr(values.type, "value_type") else values.to_numpy(zero_copy_only=False)
        lengths = {*pc.value_counts(pc.list_value_length(chunk)).field("values").to_pylist()}
        if len(lengths) > 1 or None in lengths:
            raise ValueError("all lists of a column must have the same length")
        if lengths:
            parts.append(inner.reshape(len(chunk), *lengths, *inner.shape[1:]))
    if len(parts) == 1:
        return parts[0]  # as large as the file's contents: no copy
    return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)


def numbered_columns(dtypes: Mapping[str, Any]) -> list[str]:
    """Return the columns that are one vector together, a column for each number: f0, f1, ... or 0, 1, ..., in order.

    Args:
        dtypes: of the columns, by name.

    Returns:
        None of them unless the numbers run from 0 or 1 without a gap, and all are numeric.
    """
    stems: dict[str, dict[int, str]] = {}
    for name, dtype in dtypes.items():
        match = re.fullmatch(r"(?P<stem>.*?)(?P<number>\d+)", str(name))
        if match is not None and np.dtype(dtype).kind in "fiub":
            stems.setdefault(match["stem"], {})[int(match["number"])] = name
    for columns in stems.values():
        first = min(columns)
        if len(columns) > 1 and first in (0, 1) and set(columns) == set(range(first, first + len(columns))):
            return [columns[number] for number in sorted(columns)]
    return []


def _choose_arrays(arrays: Any, keys: list[str], path: Path, names: str) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Return the array of names, [] if none is wanted and there is none, and the one of vectors."""
    names_key = next((name for name in NAMES.get(names, _ANY) if name in keys), names)
    others = [name for name in keys if name != names_key]
    vectors_key = others[0] if len(others) == 1 else "features"
    for key in (names_key, vectors_key):
        if key and key not in keys:
            raise DataError(f"{path} has no '{key}', only {', '.join(map(repr, keys[:10])) or 'nothing'}")
    try:
        row_names = arrays[names_key].tolist() if names_key else []
        vectors = arrays[vectors_key]
    except ValueError as error:
        raise DataError(f"{path} holds Python objects: save ids with np.array(ids, dtype=str) ({error})") from error
    return [name.decode() if isinstance(name, bytes) else str(name) for name in row_names], vectors
