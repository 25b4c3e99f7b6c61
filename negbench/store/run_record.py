"""The schema of result.json, which stores a finished run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MOVES_SCORES = False  # only checks what is stored

_ALWAYS = {  # fields of a result that runs of every version have
    *("metrics", "main_metric", "reported_epoch", "selected_on", "behaviour", "behaviour_by_refresh"),
    *("steps", "negatives_seen", "seconds", "peak_memory_mib", "remarks"),
}

Known = dict[str, float | None]


class Closed(BaseModel):
    """A closed object: another key is refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Draws(Closed):
    """How negatives are taken from the pools."""

    per_query: int | None = Field(description="negatives per query and epoch; null: all of the batch's pool")
    replacement: bool | None = Field(description="whether each epoch draws anew; null for batch strategies")
    redraw: bool | None = Field(
        True,
        description="false: one draw serves every epoch until the pools are next defined; null for batch strategies",
    )


class Computed(Closed):
    """How steps were computed, from one epoch on: it changes the last bits of gradients, no more."""

    epoch: int = Field(ge=0, description="the first epoch computed so")
    micro_batch: int = Field(ge=0, description="queries or images that passed the trained part at a time; 0: all")
    recompute: bool = Field(description="whether activations were computed again in the backward pass")
    processes: int = Field(ge=1, description="processes that shared each step")


class FeatureMemory(Closed):
    """Stored image features of a run, and how many of them stayed in the memory of its device."""

    bytes: int = Field(ge=0, description="of all images")
    held_bytes: int = Field(ge=0, description="of those that were held; the others were read ahead of the steps")


class RunRecord(Closed):
    """result.json in a run's folder: one finished run. What it was computed from stands in config.json beside it.

    Its JSON Schema, for other programs, is result.schema.json. Numbers that are not known are null. A rate or a recall
    lies in [0, 1]; ranks count from 1, epochs of refreshes from 0.
    """

    metrics: dict[str, float] = Field(description="on the reported split at the reported epoch; GROUP/NAME for a part")
    mistakes: Known = Field(description="judged negatives near the top, likewise; empty where none are known")
    main_metric: str = Field(description="name of the main one of `metrics`")
    baselines: dict[str, dict[str, float]] = Field(
        description="metrics of rankings without training or by one side of the query alone, by name"
    )
    reported_epoch: int = Field(ge=0, description="epochs trained when the metrics were taken")
    selected_on: Literal["last", "dev", "val"] = Field(description="how the reported epoch was chosen")
    behaviour: Known = Field(description="what the strategy did: means over refreshes (batch strategies: epochs)")
    behaviour_by_refresh: list[Known] = Field(description="the same, one by one, with the epoch")
    regime: Known = Field(description="how well the model ranked at the end, and what random negatives were")
    regime_by_refresh: list[Known] = Field(description="the same before refreshes")
    refresh_epochs: list[int] = Field(description="epochs before which pools were defined anew")
    temperatures: dict[str, float] = Field(description="learned temperatures at the end")
    draws: Draws
    steps: int = Field(ge=0, description="optimiser steps")
    negatives_seen: int = Field(ge=0, description="query-negative pairs that the loss read")
    negatives_per_query: float = Field(ge=0, description="the same per query and step: the mean over the training")
    seconds: dict[str, float] = Field(description="time of each stage")
    images_encoded: int = Field(ge=0, description="images whose features were not stored before")
    features: FeatureMemory | None = Field(description="stored image features; null if the run stores none")
    peak_memory_mib: dict[str, float] = Field(description="of the process and, if there is one, of the GPU")
    computed: list[Computed] = Field(description="how steps were computed; more than one if a resumed run changed it")
    remarks: list[str] = Field(description="caveats for a reader")


def check_types(result: Any) -> None:
    """Raise ValueError if a field of a result has the wrong type; runs of earlier versions may lack some.

    Args:
        result: as parsed from JSON.
    """
    try:
        RunRecord.model_validate(result)
    except ValidationError as error:
        for problem in error.errors():
            of_another_version = problem["type"] == "extra_forbidden"
            if problem["type"] == "missing" and problem["loc"][0] not in _ALWAYS:
                of_another_version = True
            if not of_another_version:
                key = ".".join(str(part) for part in problem["loc"])
                raise ValueError(f"{key}: {problem['msg']}") from error
