"""Read the cells of a comparison, and compare those of a received comparison.json with the runs that they name.

It imports no pandas, so that what is stored is shown without.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from negbench.errors import RunError, short_repr
from negbench.grid.axis import KEY
from negbench.grid.comparison import ComparisonFolder
from negbench.machine import files
from negbench.store.runfolder import RunFolder

_RERUN = "rerun the command that made the comparison"


def stored_cells(runs: Path, name: str) -> list[dict[str, Any]]:
    """Read the cells of a comparison, checked against their runs.

    Raises:
        RunError: no comparison of that name, one without any finished cell, or cells that are not their runs'.
    """
    folder = ComparisonFolder(runs / name)
    if not (folder.path / "comparison.json").exists():
        names = sorted(path.parent.name for path in runs.glob("*/comparison.json"))
        raise RunError(f"no comparison '{name}' in {runs}; known: {', '.join(names) or 'none'}")
    with files.intact(folder.path / "comparison.json"):
        cells = folder.cells()
        check_cells(runs, cells)
        if not any(is_finished(runs, cell) for cell in cells):
            raise RunError(f"comparison '{name}' has no finished cell yet")
    return cells


def is_finished(runs: Path, cell: Mapping[str, Any]) -> bool:
    """Whether a cell's run has a result."""
    return cell["run"] is not None and (runs / cell["run"] / "result.json").exists()


def check_run_name(runs: Path, run: str) -> None:
    """Raise RunError unless a comparison names a run plainly, so that its folder lies in the runs folder."""
    if not re.fullmatch(r"[^\W_][\w.+=@-]*", run):
        raise RunError(f"a cell names the run {short_repr(run)}: expected the plain name of a folder in {runs}")


def check_cells(runs: Path, cells: Iterable[Mapping[str, Any]]) -> None:
    """Raise RunError unless each cell names a run in the runs folder that is the cell's own.

    The run has the hash, the seed and the plug-ins that the cell's labels name, and no cell with other labels names
    it.
    """
    labels_of_runs = dict[str, list[object]]()
    for cell in cells:
        run = cell["run"]
        if run is None:
            continue
        check_run_name(runs, run)
        labels = [cell.get(axis) for axis in KEY]
        if labels_of_runs.setdefault(run, labels) != labels:
            raise RunError(f"cells with different labels name one run, {run}: {_RERUN}")
        folder = RunFolder(runs / run)
        if folder.path.is_symlink():
            files.check_links(folder.path)
        if folder.status == "finished":
            _check_cell(cell, folder)


def _check_cell(cell: Mapping[str, Any], folder: RunFolder) -> None:
    """Raise RunError unless a finished run has the hash, seed, strategy, loss and backbone of its cell."""
    manifest = folder.manifest
    config = folder.config
    where = f"the cell of {short_repr(str(cell.get('strategy')))} with seed {cell['seed']} names run {folder.run_id}"
    if cell["hash"] != manifest["hash"]:
        raise RunError(f"{where}, which has another hash: {_RERUN}")
    if cell["seed"] != config.seed:
        raise RunError(f"{where}, which has another seed: {_RERUN}")
    for kind in ("strategy", "loss", "backbone"):
        name = getattr(config, kind).name
        if kind in cell and re.split(r"[( ]", str(cell[kind]))[0] != name:
            raise RunError(f"{where}, whose {kind} is {short_repr(name)}: {_RERUN}")
