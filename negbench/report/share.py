"""Copy a comparison and its runs for others, without the folders of this machine."""

import shutil
from pathlib import Path
from typing import Any

from negbench.analysis.stored_trials import trial_runs
from negbench.errors import OptionError
from negbench.grid.comparison import ComparisonFolder
from negbench.machine import files
from negbench.machine.received import open_regular, read_text

_COMPARISON = ("comparison.json", "statistics.json", "answer.md", "inputs.json")  # the last one: the rules
_LEFT_OUT = {"mlflow.json", "mlflow-summary.json", "checkpoint.pt", "error.txt"}  # of this machine, or of no use


def share(runs: Path, name: str, to: Path) -> list[Path]:
    """Copy a comparison's result, runs and trials of the learning rate into `to`, with paths cut to names of files.

    Tables and pages are left out: `negbench report NAME --runs-dir TO` computes them again from the ranks.

    Args:
        runs: runs folder.
        name: of the comparison.
        to: a runs folder, which may exist, without a comparison of this name.

    Returns:
        The copied folders, the comparison's first.

    Raises:
        OptionError: the comparison is there already.
    """
    if (to / name).exists():
        raise OptionError(f"--share {to}: {to / name} exists: name another folder")
    copied = [_copy(runs / name, to / name, list(_COMPARISON))]
    comparison = ComparisonFolder(runs / name)
    cells = dict.fromkeys(cell["run"] for cell in comparison.cells() if cell["run"])
    for run in dict.fromkeys([*cells, *trial_runs(comparison.read())]):
        names = [file for file in files.names_in(runs / run) if file not in _LEFT_OUT]
        if not (to / run).exists() and (runs / run).exists():  # trials may be deleted
            copied.append(_copy(runs / run, to / run, names))
    return copied


def _copy(source: Path, target: Path, names: list[str]) -> Path:
    """Copy files into a new folder, without this machine's paths in JSON and Markdown; returns the folder."""
    target.mkdir(parents=True)
    files.seal(target)
    for name in names:
        if not (source / name).exists():
            continue
        if name.endswith(".json"):
            files.write_json(target / name, _clean(files.read_json(source / name)))
            continue
        with files.intact(source / name) as path, files.atomic_write(target / name, "wb") as file:
            if name.endswith(".md"):
                lines = read_text(path).splitlines(keepends=True)
                file.write("".join(files.without_folders(line, prose=True) for line in lines).encode())
            else:
                with open_regular(path) as content:
                    shutil.copyfileobj(content, file)
    return target


def _clean(value: Any) -> Any:
    """Cut the paths in all texts and keys of a JSON value."""
    if isinstance(value, dict):
        return {files.without_folders(str(key)): _clean(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_clean(part) for part in value]
    return files.without_folders(value) if isinstance(value, str) else value
