"""Files of a data set, written and damaged: shared by the tests of the loaders through the fixture `flaws`."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from negbench.errors import DataError

Files = dict[str, Any]  # relative path -> JSON value, or bytes as they are

JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["../x", "Dval0", 10**30]),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=4), part, max_size=3),
    max_leaves=4,
)


def write(root: Path, files: Files) -> Path:
    """Write every file below `root`."""
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return root


def check(
    flaws: Mapping[str, tuple[Callable[[Files], Any], str]],
    files: Callable[[], Files],
    folder: Path,
    load: Callable[[Path], Any],
) -> None:
    """Every flaw (what it does to the files, the message) is one line that says so."""
    for number, (flaw, (alter, message)) in enumerate(flaws.items()):
        damaged_files = files()
        alter(damaged_files)
        with pytest.raises(DataError, match=message) as caught:
            load(write(folder / str(number), damaged_files))
        assert "\n" not in str(caught.value), flaw


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


def damaged(data: st.DataObject, files: Files, names: list[str]) -> Files:
    """A copy of `files` with one of `names` damaged: a value replaced, dropped or doubled, bytes cut or put in."""
    files = dict(files)
    name = data.draw(st.sampled_from(names))
    value = copy.deepcopy(files[name])
    place = data.draw(st.sampled_from(places(value)))
    action = data.draw(st.sampled_from(["replace", "drop", "double", "cut", "bytes"]))
    if action in ("cut", "bytes"):
        raw = json.dumps(value).encode()
        at = data.draw(st.integers(0, len(raw)))
        more = b"" if action == "cut" else data.draw(st.binary(min_size=1, max_size=3)) + raw[at:]
        return files | {name: raw[:at] + more}
    if not place:
        return files | {name: data.draw(JUNK)}
    parent = value
    for key in place[:-1]:
        parent = parent[key]
    if action == "replace":
        parent[place[-1]] = data.draw(JUNK)
    elif action == "drop":
        del parent[place[-1]]
    elif isinstance(parent, list):
        parent.append(parent[place[-1]])
    return files | {name: value}
