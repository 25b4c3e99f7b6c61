"""Whether a comparison's tables and page are still those of its runs: hash of all that they are made from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from negbench.errors import NegbenchError
from negbench.grid.comparison import ComparisonFolder
from negbench.machine import files

FILE = "inputs.json"
_COPIES = {"mlflow.json", "checkpoint.pt", "error.txt"}  # of a run's folder, nothing that tables or pages show


def inputs_of(folder: Path, *settings: object) -> str:
    """Hash of a comparison's cells, of what their folders list, of the code that judges and draws, and of `settings`.

    A file of a run that was deleted, cut off or written again changes it; no large file is read.
    """
    digest = hashlib.sha256(repr(settings).encode())
    digest.update(_code().encode())
    comparison = folder / "comparison.json"
    if comparison.exists():
        digest.update(comparison.read_bytes())
        for run in dict.fromkeys(row["run"] for row in ComparisonFolder(folder).cells() if row["run"]):
            digest.update(json.dumps([run, *_listed(folder.parent / run)]).encode())
    return digest.hexdigest()


def unchanged(folder: Path, inputs: str) -> bool:
    """Whether `keep` was told these inputs, and what was made from them is there, undamaged."""
    try:
        told = files.read_json(folder / FILE)
        return bool(told["inputs"] == inputs) and not any(files.flaw(folder / name) for name in told["made"])
    except (OSError, NegbenchError):
        return False


def keep(folder: Path, inputs: str, made: Iterable[Path]) -> None:
    """Remember from which inputs these files of the folder were made."""
    names = sorted(path.relative_to(folder).as_posix() for path in made if path.is_relative_to(folder))
    files.write_json(folder / FILE, {"inputs": inputs, "made": names})


def writable(folder: Path) -> bool:
    """Whether anything can be written there: not into a folder of somebody else's, nor on a read-only disk."""
    return os.access(folder, os.W_OK)


def _listed(run: Path) -> Iterator[list[object]]:
    """Name, size and hash of the files that a run's folder lists; the last line of a name counts."""
    sums = run / files.SUMS
    if not sums.exists():
        return
    lines = sums.read_text(encoding="utf-8", errors="replace").splitlines()
    for name, told in sorted({line[66:]: line[:64] for line in lines if len(line) > 66}.items()):
        if name not in _COPIES:
            file = run / name
            yield [name, told, file.stat().st_size if file.exists() else None]


@cache
def _code() -> str:
    """Hash of the files of `analysis` and `report`."""
    rooms = [Path(__file__).parents[1] / name for name in ("analysis", "report")]
    found = [path for room in rooms for path in sorted(room.iterdir()) if path.is_file()]
    return hashlib.sha256(b"".join(path.read_bytes() for path in found)).hexdigest()
