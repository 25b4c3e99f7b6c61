"""The published form of a result card: card.schema.json is the JSON Schema of `ResultCard`, for other programs.

A card says what was computed, from what, and with which result, so that others can repeat it and compare. Rates lie in
[0, 1]; differences are in points.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from negbench.schemas import Form, Known

MOVES_SCORES = False  # describes what was computed

CARD_FILE = Path(__file__).with_name("card.schema.json")


class SourcePackage(Form):
    """Where the data are from."""

    version: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="of the file that the registry serves")


class SplitCounts(Form):
    """What a split holds, before a recipe takes fewer queries."""

    queries: int = Field(ge=1)
    images: int = Field(ge=1)
    clusters: int = Field(ge=1, description="what a bootstrap draws again")


class CardDifference(Form):
    """To the table's baseline, in points of the main metric; seeds are averaged, clusters drawn again."""

    mean: float
    low: float
    high: float


class CardRow(Form):
    """One strategy or system."""

    metrics: dict[str, list[float]] = Field(description="a number for each seed")
    difference: CardDifference | None = Field(description="null: the baseline itself")
    seconds: float = Field(ge=0, description="of a run, mean over seeds")
    regime: Known = Field(description="where the model stood at the end, mean over seeds")


class CardTable(Form):
    """Rows that share data, settings and seeds."""

    dataset: str = Field(description="identity: name, protocol, hash of the content")
    seeds: list[int] = Field(min_length=1)
    baseline: str
    settings: dict[str, Any] = Field(description="of all rows, as config.json has them; what differs is left out")
    rows: dict[str, CardRow] = Field(min_length=1)


class ResultCard(Form):
    """docs/cards/NAME.json."""

    negbench: str = Field(description="version")
    versions: dict[str, str] = Field(description="of the distributions that numbers depend on")
    packages: dict[str, SourcePackage] = Field(description="of the data, by name")
    counts: dict[str, SplitCounts] = Field(description="by split")
    main_metric: str
    tables: dict[str, CardTable] = Field(min_length=1)
