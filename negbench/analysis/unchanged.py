"""Check by a hash of all their inputs whether a comparison's looks, tables and page are up to date."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from negbench.errors import NegbenchError
from negbench.machine import files

FILE = "inputs.json"
_LOOKS = "looks.json"
_COPIES = {"mlflow.json", "checkpoint.pt", "error.txt"}  # files of a run's folder that no table or page shows


def inputs_of(runs: Path, document: Mapping[str, Any], *settings: object) -> list[str]:
    """Return a hash of a comparison's cells, their folders' files and the code that judges and draws; then `settings`.

    Deleting, truncating or rewriting a run's file changes the hash; no large file is read.

    Args:
        runs: runs folder.
        document: comparison.json, whole or as it was at a look.
        settings: what else the results depend on.
    """
    digest = hashlib.sha256(_code().encode() + json.dumps(document).encode())
    for run in dict.fromkeys(row["run"] for row in document["cells"] if row["run"]):
        digest.update(json.dumps([run, *_listed(runs / run)]).encode())
    return [digest.hexdigest(), *map(repr, settings)]


def look(folder: Path, cells: int, inputs: list[str]) -> Any:
    """Return what `keep_look` stored for a look at so many cells; None if its inputs were others, or it is damaged."""
    kept = _looks(folder).get(str(cells), {})
    return kept["result"] if kept.get("inputs") == inputs else None


def keep_look(folder: Path, cells: int, inputs: list[str], result: Any) -> None:
    """Store the result of a look in place of an earlier one at as many cells, unless the folder cannot be written."""
    with suppress(NegbenchError):
        files.write_json(folder / _LOOKS, _looks(folder) | {str(cells): {"inputs": inputs, "result": result}})


def _looks(folder: Path) -> dict[str, Any]:
    with suppress(OSError, NegbenchError):
        return dict(files.read_json(folder / _LOOKS))
    return {}


def unchanged(folder: Path, inputs: list[str]) -> list[str]:
    """Return the files that `keep` named if it stored these first inputs and no file is missing or damaged, or none."""
    try:
        stored = files.read_json(folder / FILE)
        names = {*stored["made"], *files.names_in(folder)}
        same = stored["inputs"][: len(inputs)] == inputs and not any(files.flaw(folder / name) for name in names)
        return list(stored["made"]) if same else []
    except (OSError, NegbenchError):
        return []


def keep(folder: Path, inputs: list[str], made: Iterable[Path]) -> None:
    """Store the inputs from which these files of the folder were made."""
    names = sorted(path.relative_to(folder).as_posix() for path in made if path.is_relative_to(folder))
    files.write_json(folder / FILE, {"inputs": inputs, "made": names})


def _listed(run: Path) -> Iterator[list[object]]:
    """Yield name, hash and size of the files that a run's folder lists."""
    for name, digest in sorted(files.sums_in(run).items()):
        if name not in _COPIES:
            file = run / name
            yield [name, digest, file.stat().st_size if file.exists() else None]


@cache
def _code() -> str:
    """Hash the files of the rooms that judge and draw."""
    rooms = [Path(__file__).parents[1] / name for name in ("analysis", "report", "scoring", "metrics")]
    paths = [path for room in rooms for path in sorted(room.iterdir()) if path.is_file()]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
