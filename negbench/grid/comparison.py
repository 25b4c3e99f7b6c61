"""A comparison on disk: the folder that names its cells."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from negbench.display import log
from negbench.errors import DataError, NegbenchError, OptionError, printable_json
from negbench.grid.axis import AXES, OWN_STRATEGY, Value
from negbench.machine import files
from negbench.store.parents import Parent
from negbench.store.tracking import Tracker

if TYPE_CHECKING:
    from negbench.grid.cells import Cell, Outcome

SCHEMA = 2  # of comparison.json
_CLOSED = ConfigDict(extra="forbid", strict=True)

_COMMANDS = {"comparison": "compare", "claims": "claims", "final": "study"}  # kind -> the command that makes it
_KINDS = {"comparison": "a comparison", "claims": "claims", "study": "a study", "final": "the final runs of a study"}


def read_document(path: Path) -> dict[str, Any]:
    """Read a comparison.json without control characters: a terminal would obey those of a received one.

    Raises:
        DataError: it is no object with a list of cells.
    """
    document = printable_json(files.read_json(path))
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise DataError(f"{path} is damaged: expected an object with a list of cells: rerun the command that wrote it")
    return {"kind": "comparison", **document}


def rerun_line(folder: Path, kind: str) -> str:
    """Return what makes a folder's files anew: 'rerun its command, negbench compare ... --name demo'."""
    command = _COMMANDS.get(kind, "compare")
    name = folder.name
    if kind == "final":  # its study has the name
        name = name.removesuffix("-final")
    return f"rerun its command, negbench {command} ... --name {name}"


def check_name(folder: Path, kind: str) -> None:
    """Refuse a name that something of another kind has in the runs folder.

    Args:
        folder: the named folder.
        kind: comparison, claims, final or study.

    Raises:
        OptionError: the name is taken; says by what, and what to do.
    """
    present = kind_of(folder)
    if present not in (None, kind):
        noun = _KINDS.get(str(present), present)
        raise OptionError(f"--name {folder.name}: {folder} is already {noun}: give another --name")


def kind_of(folder: Path) -> str | None:
    """Return what a folder is: comparison, claims, study, final, 'a run' or 'a file'; None for a free name."""
    if folder.exists() and not folder.is_dir():
        return "a file"
    if (folder / "config.json").exists():
        return "a run"
    if (folder / "study.json").exists():
        return "study"
    path = folder / "comparison.json"
    return read_document(path)["kind"] if path.exists() else None


class CellRecord(BaseModel):
    """A cell in comparison.json: its value on each axis, as tables print it, its run, and typed columns of its own."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, Value]

    strategy: str
    loss: str
    backbone: str
    dataset: str
    system: str = ""
    point: str = Field("", description="the values of all dials")
    settings: str = Field("", description="default or tuned; common or own")
    epochs: str = Field("", description="training budget")
    seed: int
    hash: str
    run: str | None = Field(description="the run's id; null if it is not finished")
    error: str | None = Field(description="why it failed")


class DialRecord(BaseModel):
    """A setting that a comparison varies."""

    model_config = _CLOSED

    key: str
    values: list[Value]


def _with_strategy(labels: dict[str, str]) -> dict[str, str]:
    if "strategy" not in labels:
        raise ValueError("no strategy is named")
    return labels


GroupLabels = Annotated[dict[str, str], AfterValidator(_with_strategy)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ChosenTemperature = Literal["learned"] | Rate
# a rate, or a rate and a temperature, with the mean or with the runs of its trials; JSON has lists for tuples
TriedRate = (
    Annotated[tuple[Rate, float | None], Strict(False)]
    | Annotated[tuple[Rate, ChosenTemperature, float | None], Strict(False)]
)
TrialRuns = (
    Annotated[tuple[Rate, list[str]], Strict(False)]
    | Annotated[tuple[Rate, ChosenTemperature, list[str]], Strict(False)]
)


class ChosenSettingRecord(BaseModel):
    """A row of `rates`: what `grid.setting.ChosenSetting` holds, as any version of comparison.json stores it."""

    model_config = _CLOSED

    labels: GroupLabels
    seeds: list[int] = Field([], description="of the trials")
    seed: int | None = Field(None, description="of the trials, in older files, which had one")
    lr: Rate
    temperature: ChosenTemperature | None = Field(None, description="null if none was chosen")
    tried: list[TriedRate] = Field(
        min_length=1, description="rate, temperature if one was chosen, and mean over seeds; null if it is not finished"
    )
    runs: list[TrialRuns] = Field([], description="rate, temperature if one was chosen, and trials, one for each seed")
    queries: int = Field(0, description="size of the dev part")
    generated: bool = Field(False, description="whether the dev part was generated, instead of carved from train")
    metric: str = Field("", description="the one that chose; empty in older files: the main metric")
    common: bool = Field(False, description="whether all groups of its table have one setting")
    error: float | None = Field(None, description="standard error of the best mean, in older files")

    @model_validator(mode="after")
    def _has_seeds(self) -> Self:
        if not self.seeds and self.seed is None:
            raise ValueError("no seed of its trials is named")
        return self


class TuningRecord(BaseModel):
    """What the tuning of one strategy found."""

    model_config = _CLOSED

    labels: GroupLabels
    study: str = ""
    knobs: list[str] = []
    trials: int = 0
    failed: int = 0
    seconds: float = 0.0
    default: float | None = None
    best: float | None = None
    found: dict[str, Any] | None = None
    error: str = ""


class TuningSummaryRecord(BaseModel):
    """Equal tuning: trials for each strategy, and what they found."""

    model_config = _CLOSED

    trials: int
    tunings: list[TuningRecord]
    metric: str = Field("", description="by which trials were scored; empty: the main metric")


class ComparisonRecord(BaseModel):
    """comparison.json: the cells of a comparison, of claims, or of a study's final runs.

    Its JSON Schema, for other programs, is comparison.schema.json.
    """

    model_config = _CLOSED

    kind: Literal["comparison", "claims", "final"]
    schema_: Literal[2] = Field(alias="schema", description="version of this file")
    cells: list[CellRecord]
    dials: list[DialRecord] = Field([], description="settings whose combinations are the points")
    left_out: list[dict[str, str]] = Field([], description="places that could not be planned, with the reason")
    remarks: list[str] = Field([], description="what the backbone or data set does not support")
    rates: list[ChosenSettingRecord] = Field(
        [], description="the learning rate, or setting, of each group, and those tried"
    )
    tuned: TuningSummaryRecord | None = Field(None, description="trials per strategy, and what was found")

    @model_validator(mode="after")
    def _each_cell_has_each_dial(self) -> Self:
        for dial in self.dials:
            for number, cell in enumerate(self.cells):
                if dial.key not in cell.__pydantic_extra__:
                    raise ValueError(f"cells.{number} has no value of the dial {dial.key}")
        return self


@dataclass(frozen=True)
class ComparisonFolder:
    """A comparison's folder in the runs folder; its MLflow experiment has the same name.

    Args:
        path: the folder.
        about: contents of comparison.json besides the cells: dials, left_out, remarks, rates, tuned; and its kind, if
            that is not comparison.
    """

    path: Path
    about: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder, so that two commands of one name do not mix their cells; the second one waits.

        A folder that cannot be written is not locked, because it can only be read.
        """
        lock = self.path / ".lock"
        with ExitStack() as stack:
            if not self.path.exists() or os.access(self.path, os.W_OK):
                try:
                    stack.enter_context(files.lock_file(lock, wait=False))
                except BlockingIOError:
                    kind = self.about.get("kind", "comparison")
                    log.warning("%s %s is being computed by another process: waiting for it", kind, self.path.name)
                    stack.enter_context(files.lock_file(lock))
            yield

    def write(self, outcomes: Iterable[Outcome]) -> None:
        """Write comparison.json: the run of each cell, and `about`."""
        files.write_json(self.path / "comparison.json", self.document(outcomes))

    def settle(self, outcomes: Iterable[Outcome]) -> None:
        """Write comparison.json, unless it names these cells and no others."""
        if not self.lists(outcomes, exactly=True):
            self.write(outcomes)

    def lists(self, outcomes: Iterable[Outcome], *, exactly: bool = False) -> bool:
        """Whether comparison.json names these cells; unless `exactly`, it may name more, e.g. those of a later look."""
        path = self.path / "comparison.json"
        if not path.exists():
            return False
        stored = read_document(path)
        document = json.loads(json.dumps(self.document(outcomes)))  # turns tuples into lists, as in JSON
        if exactly:
            return bool(stored == document)
        stored_rows = {json.dumps(row) for row in stored.get("cells", ())}
        same_about = all(stored.get(key) == value for key, value in document.items() if key != "cells")
        return same_about and all(json.dumps(row) in stored_rows for row in document["cells"])

    def document(self, outcomes: Iterable[Outcome]) -> dict[str, Any]:
        """Return the contents of comparison.json for these cells."""
        rows: list[dict[str, Any]] = []
        for outcome in outcomes:
            cell = outcome.cell
            of_run = {"seed": cell.seed, "hash": cell.hash, "run": outcome.run_id, "error": outcome.error}
            rows.append({**cell.columns, **of_run})
        rows.sort(key=_row_sort_key)
        return {"kind": "comparison", "schema": SCHEMA, "cells": rows, **self.about}

    def read(self) -> dict[str, Any]:
        """Return comparison.json; one of schema 1 in the form of schema 2.

        Raises:
            NegbenchError: a file of another negbench version.
        """
        path = self.path / "comparison.json"
        document = read_document(path)
        try:
            _renew(document)
            ComparisonRecord.model_validate({"kind": "comparison", "schema": SCHEMA, **document})
        except ValidationError as error:
            first = error.errors()[0]
            flaw = first["msg"]
            if first["loc"]:
                key = ".".join(str(part) for part in first["loc"])
                flaw = f"{key}: {flaw}"
            problem = f"{path} is from another version of negbench, or was changed ({flaw})"
            raise NegbenchError(f"{problem}: {rerun_line(self.path, document['kind'])}") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise NegbenchError(f"{path} is damaged ({error}): {rerun_line(self.path, document['kind'])}") from error
        return document

    def cells(self) -> list[dict[str, Any]]:
        """Rows of comparison.json."""
        return list(self.read()["cells"])

    def parent(self, uri: str | None) -> Parent:
        """Return the parent of the cells' copies in an MLflow store."""
        return Parent(Tracker.open(self.path.parent, uri), self.path)


def _renew(document: dict[str, Any]) -> None:
    """Bring a comparison.json of schema 1 into the form of schema 2."""
    if document.get("schema") == 1:
        document["schema"] = SCHEMA
    if "undefined" in document:
        document["left_out"] = document.pop("undefined")
    systems = document.pop("systems", None)
    if systems:
        strategy_of_system = systems["own"]
        document["remarks"] = systems["remarks"]
        rows = [row for row in document["cells"] if row["system"] in systems["names"]]  # without their corners
        document["cells"] = [
            {**row, OWN_STRATEGY: row["strategy"] == strategy_of_system.get(row["system"])} for row in rows
        ]


def _row_sort_key(row: dict[str, Any]) -> list[str]:
    """Return what rows of comparison.json are sorted by: their labels, then their seed."""
    return [*(str(row.get(axis, "")) for axis in AXES), f"{row['seed']:09d}"]


def default_name(cells: Sequence[Cell]) -> str:
    """Return the default name of a comparison: the same grid gets the same name in every version of the code."""
    grid = sorted(json.dumps(cell.config.identity(), sort_keys=True) for cell in cells)
    return f"compare-{hashlib.sha256(''.join(grid).encode()).hexdigest()[:8]}"
