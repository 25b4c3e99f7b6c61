"""Rows of a Hugging Face data set: `hf:FOLDER` as `save_to_disk` leaves it, or `hf:ORG/NAME[@REVISION]` of a hub."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from negbench.errors import DataError

PREFIX = "hf:"
_HUB_ID = re.compile(r"([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+))?")
_SPLITS = {"validation": "val", "valid": "val", "dev": "val"}  # the field's names for val


def is_hugging_face(path: Path) -> bool:
    """Whether it names a data set of Hugging Face `datasets` rather than a file."""
    return str(path).startswith(PREFIX)


def folder_of(path: Path) -> Path:
    """The folder beside which images may lie: that of `hf:FOLDER`; of a hub's, the working folder."""
    saved = Path(str(path).removeprefix(PREFIX)).expanduser()
    return saved.parent if saved.is_dir() else Path()


def rows_of(path: Path, known: tuple[str, ...]) -> tuple[list[str], Iterator[tuple[int, Mapping[str, Any]]], str]:
    """(all columns, numbered rows of the known ones with their split, hash of these rows).

    The rows are numbered from 1 through all splits. A data set of several splits says the split of its rows that have
    none; `validation`, `valid` and `dev` are val.

    Raises:
        DataError: `datasets` is not installed, no such data set, a hub that cannot be reached, or images in place of
            names.
    """
    parts = _parts(path)
    digest, rows, columns = hashlib.sha256(), list[Mapping[str, Any]](), dict[str, None]()
    for split, part in parts.items():
        columns |= dict.fromkeys(part.column_names)
        chosen = [name for name in part.column_names if name in known]
        for name in chosen:
            if type(part.features[name]).__name__ == "Image":
                raise DataError(f"{path}, column '{name}': want names of image files below --data-root, not images")
        named = {"split": _SPLITS.get(split, split)} if split else {}
        for row in part.select_columns(chosen).to_list():
            rows.append({**named, **{name: value for name, value in row.items() if value is not None}})
            digest.update(json.dumps(rows[-1], sort_keys=True, default=str).encode() + b"\n")
    return list(columns), enumerate(rows, start=1), digest.hexdigest()


def _parts(path: Path) -> dict[str, Any]:
    """Split -> `datasets.Dataset`; '' names the split of one that has none."""
    try:
        from datasets import Dataset, load_from_disk
    except ModuleNotFoundError as error:
        raise DataError(f"{path}: this needs datasets: pip install 'negbench[datasets]'") from error
    name = str(path).removeprefix(PREFIX)
    folder = Path(name).expanduser()
    if folder.is_dir():
        try:
            found = load_from_disk(str(folder))
        except Exception as error:  # arrow's, json's, its own: they share no base class
            raise DataError(f"{folder} is no data set that `save_to_disk` wrote: {_line(error)}") from error
    else:
        found = _fetched(name)
    return {"": found} if isinstance(found, Dataset) else dict(found)


def _fetched(name: str) -> Any:
    """A hub's data set, from where `datasets` keeps its copies if HF_HUB_OFFLINE is set."""
    from datasets import load_dataset
    from huggingface_hub import HfApi, constants

    asked = _HUB_ID.fullmatch(name)
    if asked is None:
        raise DataError(f"{PREFIX}{name}: there is no such folder, and a hub's id is ORG/NAME or ORG/NAME@REVISION")
    mend = "where there is a network, `load_dataset(...).save_to_disk(FOLDER)`, and give hf:FOLDER"
    if constants.HF_HUB_OFFLINE and asked[2]:  # a copy does not say its revision
        raise DataError(f"{PREFIX}{name}: HF_HUB_OFFLINE is set, and no revision is told without the hub: {mend}")
    try:
        if not constants.HF_HUB_OFFLINE:  # one plain request first: the library goes on retrying
            HfApi().dataset_info(asked[1], revision=asked[2], timeout=10)
        return load_dataset(asked[1], revision=asked[2])
    except Exception as error:  # hub errors share no base class
        why = "HF_HUB_OFFLINE is set; " * constants.HF_HUB_OFFLINE + _line(error)
        raise DataError(f"{PREFIX}{name} is not to be had ({why}): {mend}") from error


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
