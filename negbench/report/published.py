"""Published numbers: every printed row that a run, or a comparison of negatives, may stand beside.

`published.json` holds them table by table, as printed; what does not add up in print is there with a note.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from negbench.errors import NegbenchError

PATH = Path(__file__).with_name("published.json")


@dataclass(frozen=True)
class PublishedRow:
    """One printed row.

    Attributes:
        paper, table, row: where it stands.
        citation: of the paper.
        dataset, split, protocol: as negbench names them (`fashioniq`, `val`, `original`).
        metrics: negbench's name -> value in negbench's unit: a share where percent are printed, else as printed.
        backbone: "" where it is not printed.
        negatives: the strategy, as `--strategies` takes it, where the row shows what the negatives do; else "".
        note: what does not add up; "" where there is nothing to say.
        about: what is known of the whole table: its gallery, its queries, what it varies.
        secondary: quoted from a listing, not from a paper.
        requires: option of the data set -> the values under which a run was scored alike.
    """

    paper: str
    table: str
    row: str
    citation: str
    dataset: str
    split: str
    protocol: str
    metrics: Mapping[str, float]
    backbone: str
    negatives: str
    note: str
    about: str
    secondary: bool
    requires: Mapping[str, list[Any]]

    @property
    def source(self) -> str:
        """'QuRe table 2'."""
        return f"{self.paper} {self.table}"


def rows_for(
    dataset: str, split: str, protocol: str, metrics: Collection[str], options: Mapping[str, object]
) -> list[PublishedRow]:
    """The rows that a run may stand beside: data set, split and protocol are its own, and all their metrics are.

    Args:
        dataset: key of the data set.
        split: that the run was scored on.
        protocol: of the data set's card.
        metrics: names of the run's metrics; a row of which one is missing (one category of three, say) does not fit.
        options: the run's of the data set, for what a row `requires`.
    """
    return [
        row
        for row in published_rows()
        if (row.dataset, row.split, row.protocol) == (dataset, split, protocol)
        and set(row.metrics) <= set(metrics)
        and all(options.get(key) in values for key, values in row.requires.items())
    ]


def rows_beside(manifest: Mapping[str, Any], metrics: Collection[str]) -> list[PublishedRow]:
    """`rows_for` a run, from its manifest (config.json) and the names of its metrics; none where images are missing."""
    known = manifest["dataset"]
    name, _, protocol = known["val"].rpartition("-")[0].partition("@")
    split = known.get("split", "val")  # runs of before wrote none, and were scored on val
    return [] if known["partial"] else rows_for(name, split, protocol, metrics, manifest["config"]["dataset"])


def published_rows() -> tuple[PublishedRow, ...]:
    """All rows, table by table."""
    return read_published(PATH)


@cache
def read_published(path: Path) -> tuple[PublishedRow, ...]:
    """Rows of a file in the format of `published.json`.

    Raises:
        NegbenchError: a file that is not of the format, one line with the place.
    """
    try:
        book = _Book.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise NegbenchError(f"{path}: {place}: {first['msg']}".replace("\n", " ")) from error
    except OSError as error:
        raise NegbenchError(f"cannot read {path}: {error.strerror or error}") from error
    return tuple(row for table in book.tables for row in table.flat(book.papers[table.paper]))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Text = Annotated[str, Field(min_length=1)]


class _Row(_Strict):
    row: _Text
    values: list[float | None]  # of the table's columns, None where nothing is printed
    backbone: str = ""
    negatives: str = ""
    note: str = ""


class _Table(_Strict):
    paper: _Text
    table: _Text
    dataset: _Text
    split: _Text
    protocol: _Text
    unit: Literal["percent", "plain"]
    columns: list[_Text]
    rows: Annotated[list[_Row], Field(min_length=1)]
    note: str = ""
    requires: dict[str, list[Any]] = {}
    secondary: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.columns)) != len(self.columns):
            raise ValueError("a column is there twice")
        for row in self.rows:
            if len(row.values) != len(self.columns):
                raise ValueError(f"row {row.row}: {len(row.values)} values for {len(self.columns)} columns")
            if self.unit == "percent" and any(value is not None and not 0 <= value <= 100 for value in row.values):
                raise ValueError(f"row {row.row}: a value is no percentage")
        return self

    def flat(self, citation: str) -> list[PublishedRow]:
        scale = 100 if self.unit == "percent" else 1
        return [
            PublishedRow(
                paper=self.paper,
                table=self.table,
                row=row.row,
                citation=citation,
                dataset=self.dataset,
                split=self.split,
                protocol=self.protocol,
                metrics={
                    name: value / scale
                    for name, value in zip(self.columns, row.values, strict=True)
                    if value is not None
                },
                backbone=row.backbone,
                negatives=row.negatives,
                note=row.note,
                about=self.note,
                secondary=self.secondary,
                requires=self.requires,
            )
            for row in self.rows
        ]


class _Book(_Strict):
    papers: dict[str, str]
    tables: list[_Table]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for table in self.tables:
            if table.paper not in self.papers:
                raise ValueError(f"no paper '{table.paper}'")
        return self
