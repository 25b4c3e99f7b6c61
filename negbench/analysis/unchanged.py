"""Check by a hash of all their inputs whether a comparison's looks, tables and page are up to date.

A stored result is trusted only where this machine made it: a digest of the result and its inputs lies in the user's own
cache. A folder from somebody else can hold any answer, with hashes that fit; its results are computed again.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from negbench.analysis.stored_trials import trial_runs
from negbench.errors import NegbenchError
from negbench.grid.comparison import ComparisonFolder
from negbench.machine import files

FILE = "inputs.json"
_LOOKS = "looks.json"
_COPIES = {"mlflow.json", "checkpoint.pt", "error.txt"}  # files of a run's folder that no table or page shows


def inputs_of(runs: Path, document: Mapping[str, Any], *settings: object) -> list[str]:
    """Return a hash of a comparison's cells, its runs' and trials' files and the code that judges; then `settings`.

    Deleting, truncating or rewriting a run's file changes the hash; no large file is read.

    Args:
        runs: runs folder.
        document: comparison.json, whole or as it was at a look.
        settings: what else the results depend on.
    """
    digest = hashlib.sha256(_code().encode() + json.dumps(document).encode())
    cells = dict.fromkeys(row["run"] for row in document["cells"] if row["run"])
    for run in [*cells, *trial_runs(document)]:
        digest.update(json.dumps([run, *_files_of(runs / run)]).encode())
    return [digest.hexdigest(), *(repr(setting) for setting in settings)]


def look(folder: Path, cells: int, inputs: list[str]) -> Any:
    """Return what `keep_look` stored for a look at so many cells; None if its inputs were others, or it is damaged."""
    entry = _looks(folder).get(str(cells))
    if not isinstance(entry, dict) or entry.get("inputs") != inputs or "result" not in entry:
        return None
    return entry["result"] if _is_vouched_for([cells, inputs, entry["result"]]) else None


def keep_look(folder: Path, cells: int, inputs: list[str], result: Any) -> None:
    """Store the result of a look instead of an earlier one at as many cells, unless the folder cannot be written."""
    with suppress(NegbenchError):
        files.write_json(folder / _LOOKS, _looks(folder) | {str(cells): {"inputs": inputs, "result": result}})
        _vouch([cells, inputs, result])


def _looks(folder: Path) -> dict[str, Any]:
    """Return the stored looks by their number of cells; {} if there are none or the file is damaged."""
    with suppress(OSError, NegbenchError, TypeError, ValueError):
        return dict(files.read_json(folder / _LOOKS))
    return {}


def unchanged_files(folder: Path, inputs: list[str]) -> list[str]:
    """Return the files that `keep` named if it stored these first inputs and no file is missing or damaged, or none.

    None, too, where another machine made them.
    """
    try:
        document = files.read_json(folder / FILE)
        names = [str(name) for name in document["made"]]
        if document["inputs"][: len(inputs)] != inputs:
            return []
        if any(files.flaw(folder / name) for name in {*names, *files.names_in(folder)}):
            return []
        return names if _is_vouched_for([document["inputs"], *_digests(folder, names)]) else []
    except (OSError, NegbenchError, TypeError, KeyError):
        return []


def files_made_here(runs: Path, name: str) -> list[str]:
    """Return the files of a comparison that this machine made from its runs as they are; none if another one did."""
    folder = ComparisonFolder(runs / name)
    return unchanged_files(folder.path, inputs_of(runs, folder.read()))


def keep(folder: Path, inputs: list[str], paths: Iterable[Path], rules: Mapping[str, Any]) -> None:
    """Store the inputs from which these files of the folder were made, and the rules by which they were judged."""
    names = sorted(path.relative_to(folder).as_posix() for path in paths if path.is_relative_to(folder))
    files.write_json(folder / FILE, {"inputs": inputs, "made": names, "rules": rules})
    with suppress(NegbenchError):  # a cache that cannot be written: results are computed again
        _vouch([inputs, *_digests(folder, names)])


def forget(folder: Path) -> None:
    """Forget what `keep` stored of files; the rules stay."""
    rules = stored_rules(folder)
    if rules is None:
        files.delete(folder / FILE)
    else:
        files.write_json(folder / FILE, {"inputs": [], "made": [], "rules": rules})


def stored_rules(folder: Path) -> Any:
    """Return the rules that `keep` stored, as JSON; None if there are none or the file is damaged."""
    with suppress(OSError, NegbenchError, TypeError, AttributeError):
        return files.read_json(folder / FILE).get("rules")
    return None


def _digests(folder: Path, names: Iterable[str]) -> list[list[str]]:
    return [[name, files.sha256_of(folder / name)] for name in sorted(names)]


def _vouch(result: Any) -> None:
    """Note in the user's cache that this machine made a result."""
    files.write_text(_note_of(result), "")


def _is_vouched_for(result: Any) -> bool:
    return _note_of(result).is_file()


def _note_of(result: Any) -> Path:
    digest = hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()
    return files.cache_dir() / "made-here" / digest[:2] / digest


def _files_of(run: Path) -> Iterator[list[object]]:
    """Yield name, hash and size of the files that a run's folder lists."""
    for name, digest in sorted(files.sums_in(run).items()):
        if name not in _COPIES:
            file = run / name
            yield [name, digest, file.stat().st_size if file.exists() else None]


@cache
def _code() -> str:
    """Hash the files of the rooms that judge and draw."""
    package = Path(__file__).parents[1]
    contents = []
    for room in ("analysis", "report", "scoring", "metrics"):
        contents += [path.read_bytes() for path in sorted((package / room).iterdir()) if path.is_file()]
    return hashlib.sha256(b"".join(contents)).hexdigest()
