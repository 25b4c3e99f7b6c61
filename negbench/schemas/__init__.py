"""The published form of what a run leaves: result.schema.json is the JSON Schema of `RunRecord`, for other programs.

Numbers that are not known are null. A rate or a recall lies in [0, 1]; ranks count from 1, epochs of refreshes from 0.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MOVES_SCORES = False  # describes what was computed

FILE = Path(__file__).with_name("result.schema.json")
Known = dict[str, float | None]


class Form(BaseModel):
    """A closed object: another key is refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Draws(Form):
    """How negatives are taken from the pools."""

    per_query: int | None = Field(description="negatives of a query and epoch; null: all of the batch's pool")
    replacement: bool | None = Field(description="whether each epoch draws anew; null for batch strategies")


class RunRecord(Form):
    """result.json in a run's folder: one finished cell. What it was computed from stands in config.json beside it."""

    metrics: dict[str, float] = Field(description="of the reported split at the reported epoch; GROUP/NAME for a part")
    main_metric: str = Field(description="the one of `metrics` to look at")
    baselines: dict[str, dict[str, float]] = Field(
        description="the metrics of what needs no training, or one side of the query alone, by name"
    )
    reported_epoch: int = Field(ge=0, description="epochs trained when the metrics were taken")
    selected_on: Literal["last", "dev", "val"] = Field(description="what the epoch was chosen by")
    behaviour: Known = Field(description="what the strategy did: means over refreshes (batch strategies: epochs)")
    behaviour_by_refresh: list[Known] = Field(description="the same, one by one, with the epoch")
    regime: Known = Field(description="where the model stood at the end, and what random negatives are")
    regime_by_refresh: list[Known] = Field(description="the same before each refresh")
    refresh_epochs: list[int] = Field(description="epochs before which pools were defined anew")
    temperatures: dict[str, float] = Field(description="learned temperatures at the end")
    draws: Draws
    steps: int = Field(ge=0, description="optimiser steps")
    negatives_seen: int = Field(ge=0, description="query-negative pairs that the loss read")
    seconds: dict[str, float] = Field(description="of each stage")
    images_encoded: int = Field(ge=0, description="images whose features were not stored before")
    peak_memory_mib: dict[str, float] = Field(description="of the process, and of the GPU where there is one")
    remarks: list[str] = Field(description="what a reader must know")


def check_types(result: Any) -> None:
    """Raise ValueError where a field of a result has another type; a run of an earlier version may lack some.

    Args:
        result: as JSON holds it.
    """
    try:
        RunRecord.model_validate(result)
    except ValidationError as error:
        wrong = [each for each in error.errors() if each["type"] not in ("missing", "extra_forbidden")]
        if wrong:
            raise ValueError(f"{'.'.join(map(str, wrong[0]['loc']))}: {wrong[0]['msg']}") from error


def schema_of(form: type[Form]) -> dict[str, Any]:
    """JSON Schema (2020-12) of a file: result.json's is that of `RunRecord`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **form.model_json_schema()}


def text_of(schema: dict[str, Any]) -> str:
    """As the published file holds it."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
