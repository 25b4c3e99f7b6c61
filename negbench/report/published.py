"""Published numbers: every printed row that a run, or a comparison of negatives, can be compared with.

`published.json` holds them table by table, as printed; inconsistencies in print have a note.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("published.json")


@dataclass(frozen=True)
class PublishedRow:
    """One printed row.

    Attributes:
        paper, table, row: where it is printed.
        citation: of the paper.
        dataset, split, protocol: as negbench names them (`fashioniq`, `val`, `original`).
        metrics: negbench's name -> value in negbench's unit: a share where percent are printed, else as printed.
        backbone: "" where it is not printed.
        negatives: the strategy, as `--strategies` takes it, where the row shows the effect of negatives; else "".
        note: an inconsistency in print; "" for none.
        about: note on the whole table: its gallery, its queries, what it varies.
        secondary: whether it is quoted from a listing, not from a paper.
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

    @property
    def source(self) -> str:
        """Paper and table: 'QuRe table 2'."""
        return f"{self.paper} {self.table}"


def rows_beside(manifest: Mapping[str, Any], metrics: Collection[str]) -> list[PublishedRow]:
    """Return the rows that a run can be compared with: its data set, split and protocol, and only metrics that it has.

    Args:
        manifest: config.json of the run.
        metrics: names of the run's metrics; a row with a metric missing here (one category of three, say) is left out.

    Returns:
        The rows; none if the run's data set lacks images.
    """
    dataset = manifest["dataset"]
    if dataset["partial"]:
        return []
    identity, _, _ = dataset["val"].rpartition("-")
    name, _, protocol = identity.partition("@")
    gallery = (name, dataset.get("split", "val"), protocol)  # older runs stored no split, and were scored on val
    rows = [row for row in published_rows() if (row.dataset, row.split, row.protocol) == gallery]
    return [row for row in rows if set(row.metrics) <= set(metrics)]


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """All rows, table by table."""
    book = json.loads(PATH.read_text(encoding="utf-8"))
    rows: list[PublishedRow] = []
    for table in book["tables"]:
        paper = book["papers"][table["paper"]]
        rows += [_row(table, row, paper) for row in table["rows"]]
    return tuple(rows)


def _row(table: Mapping[str, Any], row: Mapping[str, Any], citation: str) -> PublishedRow:
    """Return a row of `published.json`, with what its table says of all rows."""
    scale = 100 if table["unit"] == "percent" else 1
    metrics = {}
    for name, value in zip(table["columns"], row["values"], strict=True):
        if value is not None:
            metrics[name] = value / scale
    return PublishedRow(
        paper=table["paper"],
        table=table["table"],
        row=row["row"],
        citation=citation,
        dataset=table["dataset"],
        split=table["split"],
        protocol=table["protocol"],
        metrics=metrics,
        backbone=row.get("backbone", ""),
        negatives=row.get("negatives", ""),
        note=row.get("note", ""),
        about=table.get("note", ""),
        secondary=table.get("secondary", False),
    )
