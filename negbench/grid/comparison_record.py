"""The schema of comparison.json: what a file of this version, or of an older one brought into its form, may hold."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, model_validator

from negbench.grid.axis import Value

SCHEMA = 2  # of comparison.json
_CLOSED = ConfigDict(extra="forbid", strict=True)


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
