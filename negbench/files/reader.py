"""Read annotation files: every flaw becomes a one-line error that names the file, where in it, and the fix."""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

from negbench.contracts import Query, check_option
from negbench.contracts.card import DatasetCard
from negbench.errors import DataError, short_repr
from negbench.machine.contents import stamp
from negbench.machine.received import check_text, read_bytes

T = TypeVar("T")

_TYPE_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "an object",
    bool: "true/false",
}
DATA_VARIABLE = "NEGBENCH_DATA"
_ENCODINGS = (  # letters that make up more than a share of the characters beyond ASCII
    ("CP1251", "[\u0410-\u044f]", 0.9),
    ("SHIFT_JIS", "[\u3040-\u30ff]", 0.3),
    ("EUC-KR", "[\uac00-\ud7a3]", 0.9),
    ("GB18030", "[\u4e00-\u9fff]", 0.7),
)
_BINARY = {b"PK\3\4": ".xlsx or .zip", b"\x1f\x8b": ".gz", b"PAR1": ".parquet"}  # how files of other endings begin


_NOTED: ContextVar[dict[Path, tuple[int, ...]]] = ContextVar("noted")


@contextmanager
def note_files() -> Iterator[dict[Path, tuple[int, ...]]]:
    """Collect the path and the stamp of every annotation file that is read in this context."""
    files: dict[Path, tuple[int, ...]] = {}
    token = _NOTED.set(files)
    try:
        yield files
    finally:
        _NOTED.reset(token)


def note(path: Path) -> None:
    """Say that an annotation file is about to be read."""
    _NOTED.get({})[path] = stamp(path)


def list_files(root: Path) -> list[Path]:
    """List every file below a folder, sorted; links to folders are followed, each folder is entered once.

    Raises:
        DataError: a folder that cannot be read.
    """
    paths: list[str] = []
    entered: set[tuple[int, int]] = set()

    def fail(error: OSError) -> NoReturn:
        raise DataError(f"folder {error.filename} cannot be read: {error.strerror or error}") from error

    for folder, below, files in os.walk(root, onerror=fail, followlinks=True):
        status = os.stat(folder)  # noqa: PTH116 - strings are twice as fast as Path for 80,000 files
        if (status.st_dev, status.st_ino) in entered:
            below.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        for name in files:
            path = os.path.join(folder, name)  # noqa: PTH118
            if os.path.isfile(path):  # noqa: PTH113
                paths.append(path)
    return [Path(path) for path in sorted(paths)]


@dataclass
class Reader:
    """Reads annotation files and keeps the hash of each, so that a result can name what it was computed from."""

    root: Path
    hashes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls, root: Path | None, card: DatasetCard, *, marker: str, tree: str) -> Self:
        """Find a benchmark's folder: `root` (NEGBENCH_DATA if None), or one below it.

        Args:
            root: folder given by the user.
            card: card of the benchmark; a sub-folder with its name is searched too.
            marker: relative path that must exist in the right folder.
            tree: the expected files, in a few words, for the error.

        Raises:
            DataError: no folder given, or none that holds `marker`.
        """
        folder = os.environ.get(DATA_VARIABLE) if root is None else str(root)
        expected = f"the data come from {card.source}; expected below the folder: {tree}"
        if not folder:
            raise DataError(f"{card.name}: no folder given: --data-root DIR, or set {DATA_VARIABLE}; {expected}")
        for name in ("", card.name, card.name.replace("-", "_")):
            if (Path(folder) / name / marker).exists():
                return cls(Path(folder) / name)
        several = f"; of several data sets name each folder, as {card.name}:root=DIR,OTHER:root=DIR"
        fetch = expected.replace("fetch emoji", f"fetch emoji --out {folder!r}")
        raise DataError(f"{card.name}: {folder} has no {marker}; {fetch}{several}")

    @cached_property
    def files(self) -> list[Path]:
        """Every file below the root, walked once."""
        return list_files(self.root)

    def files_beside(self, *names: str) -> list[Path]:
        """Return `files` and those in folders with these names beside the root, where images may be."""
        files = list(self.files)
        for name in names:
            folder = self.root.parent / name
            if name != self.root.name and folder.is_dir():
                files += list_files(folder)
        return files

    def first(self, *names: str) -> Path | None:
        """Find the first of these file names below the root; of several such files, the first in sorted order."""
        by_name = {path.name: path for path in reversed(self.files)}
        return next((by_name[name] for name in names if name in by_name), None)

    @property
    def content(self) -> str:
        """Hash over the names (relative to the root) and contents of all files read so far."""
        return hashlib.sha256(json.dumps(sorted(self.hashes.items())).encode()).hexdigest()

    def raw(self, path: Path) -> bytes:
        """Read a file. Raises DataError if it is missing or unreadable."""
        note(path)
        try:
            raw = read_bytes(path)
        except FileNotFoundError as error:
            raise DataError(f"{path} is missing: put the file there, or correct its name") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
        self.hashes[path.relative_to(self.root).as_posix()] = hashlib.sha256(raw).hexdigest()
        return raw

    def text(self, path: Path, *, rows: bool = False) -> str:
        """Read the UTF-8 text of a file (a byte-order mark is dropped), of which each line may be a row.

        Raises:
            DataError: missing, unreadable, too large or not UTF-8; names the encoding, or the ending, that it seems to
                have.
        """
        raw = self.raw(path)
        check_text(path, raw, rows=rows)
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            for start, ending in _BINARY.items():
                if raw.startswith(start):
                    text = f"{path} is no text, but begins as {ending} files do: give it that ending"
                    raise DataError(text) from error
            code = _encoding(raw)
            file = shlex.quote(str(path))
            line = f"iconv -f {code} -t UTF-8 {file} > new && mv new {file}"
            raise DataError(
                f"{path} is not UTF-8 (byte {error.start}) but seems to be {code}: {line}, or fetch it again"
            ) from error

    def json(self, path: Path) -> Any:
        """Parse a JSON file. Raises DataError if it is missing, not UTF-8 or not JSON, with line and column."""
        return parse_json(self.text(path), str(path))

    def entries(self, path: Path) -> list[tuple[str, dict[str, Any]]]:
        """Read a JSON list of objects as (where, object) pairs."""
        pairs = []
        for number, entry in enumerate(check_type(self.json(path), list, str(path))):
            where = f"{path}: entry {number}"
            pairs.append((where, check_type(entry, dict, where)))
        return pairs

    def queries(self, path: Path, key: str, make: Callable[[str, dict[str, Any]], Query]) -> list[Query]:
        """Make a query from `where` and object of every entry of a JSON list; `key` names their ids, for errors.

        Raises DataError if two have the same id.
        """
        queries = [make(where, entry) for where, entry in self.entries(path)]
        once([query.id for query in queries], key, path)
        return queries

    def lines(self, path: Path) -> list[tuple[str, str]]:
        """Read the non-blank lines of a text file as (where, line) pairs."""
        lines = enumerate(self.text(path).split("\n"), start=1)
        return [(f"{path}: line {number}", line.rstrip("\r")) for number, line in lines if line.strip()]

    def image_ids(self, path: Path) -> list[str]:
        """Read a JSON list of distinct image ids."""
        data = check_type(self.json(path), list, str(path))
        return once([image_id(value, f"{path}: entry {index}") for index, value in enumerate(data)], "image", path)


def _encoding(raw: bytes) -> str:
    """Guess the encoding of a text that is not UTF-8, by its marks and by how its bytes above 127 lie together."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        return "UTF-32" if b"\0\0" in raw[:4] else "UTF-16"
    if b"\0" in raw[:1000]:
        return "UTF-16LE" if raw[1:2] == b"\0" else "UTF-16BE"
    runs = [len(run) for run in re.findall(rb"[\x80-\xff]+", raw)]
    if sum(runs) <= 2 * len(runs):  # accents, which stand alone
        return "CP1252"
    for name, letters, share in _ENCODINGS:
        text = raw.decode(name, "replace")
        if len(re.findall(letters, text)) > share * sum(character > "\x7f" for character in text):
            return name
    return "CP1252"


def parse_json(text: str, where: str) -> Any:
    """Parse a JSON text. Raises DataError that says where in it."""
    try:
        return json.loads(text, object_pairs_hook=_refuse_repeated_keys)
    except (RecursionError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise DataError(f"{where} is not valid JSON ({why}): correct or fetch it again") from error


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; a key that occurs twice would silently lose a value."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {short_repr(max(names, key=names.count))} occurs twice")
    return entries


def once(names: Sequence[str], what: str, path: Path) -> list[str]:
    """Return the names of a file's entries, in order. Raises DataError if one occurs twice."""
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if first.setdefault(name, index) != index:
            raise DataError(f"{path}: {what} '{name}' occurs twice (entries {first[name]} and {index}); remove one")
    return list(names)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise OptionError quoting `value` unless it is one of `choices`."""
    check_option(name, value, value in choices, f"one of {', '.join(choices)}")


def check_type(value: Any, expected: type[T], where: str) -> T:
    """Return `value` if it has the expected JSON type. Raises DataError that quotes it otherwise."""
    if not isinstance(value, expected) or (expected is not bool and isinstance(value, bool)):
        raise DataError(f"{where}: expected {_TYPE_NAMES[expected]}, got {short_repr(value)}")
    return value


def get(entry: Mapping[str, Any], key: str, expected: type[T], where: str) -> T:
    """Return `entry[key]`, checked. Raises DataError that names `where` and the key."""
    if key not in entry:
        raise DataError(f"{where}: key '{key}' is missing (it has {short_repr(sorted(map(str, entry)))})")
    return check_type(entry[key], expected, f"{where}: key '{key}'")


def strings(value: Any, where: str) -> tuple[str, ...]:
    """Return a JSON list of strings, checked."""
    items = check_type(value, list, where)
    return tuple(check_type(item, str, f"{where}[{index}]") for index, item in enumerate(items))


def image_id(value: Any, where: str) -> str:
    """Return an image id that can be a file name. Raises DataError for an empty one or one with a path."""
    name = check_type(value, str, where)
    if not name or name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise DataError(f"{where}: {short_repr(name)} is not an image id: expected a plain file name without a path")
    return name
