"""Compare the cells of a received comparison.json with the runs that they name."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from negbench.errors import RunError, quoted
from negbench.grid.axis import KEY
from negbench.machine.files import check_links
from negbench.store.runfolder import RunFolder

_RERUN = "rerun the command that made the comparison"


def check_cells(runs: Path, cells: Iterable[Mapping[str, Any]]) -> None:
    """Raise RunError unless each cell names a run in the runs folder that is the cell's own.

    The run has the hash, the seed and the plug-ins that the cell's labels name, and stands in no other place with other
    labels.
    """
    named = dict[str, list[object]]()
    for cell in cells:
        run = cell["run"]
        if run is None:
            continue
        if not re.fullmatch(r"[^\W_][\w.+=@-]*", run):
            raise RunError(f"a cell names the run {quoted(run)}: expected the plain name of a folder in {runs}")
        labels = [cell.get(axis) for axis in KEY]
        if named.setdefault(run, labels) != labels:
            raise RunError(f"cells with different labels name one run, {run}: {_RERUN}")
        folder = RunFolder(runs / run)
        if folder.path.is_symlink():
            check_links(folder.path)
        if folder.status == "finished":
            _check_cell(cell, folder)


def _check_cell(cell: Mapping[str, Any], folder: RunFolder) -> None:
    manifest, config = folder.manifest, folder.config
    where = f"the cell of {quoted(str(cell.get('strategy')))} with seed {cell['seed']} names run {folder.run_id}"
    for what, of_cell, of_run in (("hash", cell["hash"], manifest["hash"]), ("seed", cell["seed"], config.seed)):
        if of_cell != of_run:
            raise RunError(f"{where}, which has another {what}: {_RERUN}")
    for kind in ("strategy", "loss", "backbone"):
        name = getattr(config, kind).name
        if kind in cell and re.split(r"[( ]", str(cell[kind]))[0] != name:
            raise RunError(f"{where}, whose {kind} is {quoted(name)}: {_RERUN}")
