"""A folder's note of its copy in an MLflow store, written before the copy; what a copy of several runs holds."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench import __version__
from negbench.errors import NegbenchError
from negbench.machine.files import read_json, write_json

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

MOVES_SCORES = False  # only about copies

NOTE = "mlflow.json"  # in a folder: where its copy is
ORIGIN = {"negbench.version": __version__, "mlflow.source.name": "negbench"}
PARENT = "mlflow.parentRunId"
POSITION = "negbench.place"  # tag of a summary: its position in the list, as four digits
SUMMARIES = "tags.`negbench.kind` = 'summary'"
TOKEN = "negbench.token"  # tag of an MLflow run, noted before the run is created


@dataclass(frozen=True)
class SummaryRun:
    """An MLflow run that summarises several: a strategy's mean over seeds, with its deviation."""

    name: str
    tags: Mapping[str, str]
    params: Mapping[str, Any]
    metrics: Mapping[str, float]


def announce(path: Path, uri: str, **more: Any) -> dict[str, Any]:
    """Write the note of an MLflow run that is about to be created, and return it.

    If a kill -9 comes between creating the run and noting its id, `run_of` finds the run by its token.
    """
    note = {"uri": uri, "run_id": "", "token": uuid.uuid4().hex, **more}
    write_json(path, note)
    return note


def read_note(path: Path, uri: str | None = None) -> dict[str, Any] | None:
    """Read a folder's note of its copy; None if there is none or it is damaged, so that a copy is made again.

    Args:
        path: of the note.
        uri: of the store in which the copy must be; None: in any.
    """
    try:
        note = read_json(path) if path.exists() else None
    except NegbenchError:
        return None
    if not isinstance(note, dict) or "uri" not in note or "run_id" not in note:
        return None
    if uri not in (None, note["uri"]):
        return None
    return note if note["run_id"] or "token" in note else None


def run_of(client: "MlflowClient", note: Mapping[str, Any]) -> str:
    """Return the id of a note's MLflow run; '' if none was created."""
    if note["run_id"] or not note["token"]:
        return str(note["run_id"])
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.`{TOKEN}` = '{note['token']}'")
    return str(runs[0].info.run_id) if runs else ""
