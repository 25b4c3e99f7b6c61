"""Options of the smaller commands: data, doctor, claims, audit, mine, evaluate, ui, list; see `options.py`."""

from pathlib import Path
from typing import Literal, Self

from pydantic import field_validator, model_validator

from negbench.settings.options import (
    DataOptions,
    DatasetOptions,
    FolderName,
    ModelOptions,
    Options,
    PluginOptions,
    PluginSpecs,
    RunsOptions,
    Seeds,
    TrackedOptions,
    UntilOptions,
    WorkerOptions,
    option,
)

MOVES_SCORES = False

MinedFormat = Literal["parquet", "jsonl", "triplets", "sentence-transformers", "flagembedding"]
PluginKind = Literal["strategies", "losses", "backbones", "datasets", "systems", "recipes"]


# --- start ---------------------------------------------------------------------------------------------------------


class Init(Options):
    """Options of `negbench init`."""

    folder: Path = option(..., argument=True)
    columns: str = option("", metavar="OURS=THEIRS,...")
    allow_missing: bool = option(False)


class Embed(Options):
    """Options of `negbench embed`, which embeds every image and text that the triplets of a folder name.

    An encoder of your own has `encode_image(images)`, a list of n RGB PIL images -> [n, C] (or [n, L, C], L vectors per
    image), and `encode_text(texts)`, a list of n strings -> [n, C_t]; tensors or arrays of floats.
    """

    folder: Path = option(..., argument=True)
    encoder: str = option(..., metavar="SPEC")
    batch_size: int = option(32, ge=1)
    device: str | None = option(None)
    gallery: Path | None = option(None, metavar="FILE")
    columns: str = option("", metavar="OURS=THEIRS,...")
    allow_missing: bool = option(False)
    overwrite: bool = option(False)


class VerifyData(PluginOptions, DataOptions):
    """Options of `negbench data verify`."""

    dataset: str = option(..., argument=True)
    split: tuple[str, ...] = option((), metavar="SPLIT")
    sets: tuple[str, ...] = option((), flags=("--set",), metavar="KEY=VALUE")
    annotations: bool = option(False)
    workers: int = option(4, ge=1)


class FetchData(Options):
    """Options of `negbench data fetch`."""

    dataset: Literal["emoji"] = option(..., argument=True)
    out: Path | None = option(None)


class EncodeData(ModelOptions):
    """Options of `negbench data encode`."""


class Doctor(TrackedOptions):
    """Options of `negbench doctor`."""


# --- claims --------------------------------------------------------------------------------------------------------


class Claims(UntilOptions, ModelOptions, WorkerOptions, TrackedOptions):
    """Options of `negbench claims`."""

    only: str | None = option(None)
    long: int | None = option(None, ge=2)
    seeds: Seeds = option(3, cli=str)
    name: FolderName | None = option(None)


# --- negatives -----------------------------------------------------------------------------------------------------


class SubjectOptions(ModelOptions, RunsOptions):
    """A split scored by a model: an untrained backbone, or a finished run."""

    run: str | None = option(None, metavar="RUN")
    split: str = option("train")
    refresh: int = option(0, ge=0, le=10**9)
    seed: int = option(0, ge=0)


class Audit(SubjectOptions):
    """Options of `negbench audit`: what corpus strategies would draw, without training."""

    strategies: PluginSpecs | None = option(None, flags=("--strategy",), cli=str)
    queries: int = option(1000, ge=0)
    draws: int = option(10, ge=2, le=100_000)


class Mine(SubjectOptions):
    """Options of `negbench mine`: negatives for your own trainer, from embeddings in files or for a data set."""

    strategy: str | None = option(None)
    out: Path = option(..., metavar="FILE")
    format: MinedFormat | None = option(None)
    queries: Path | None = option(None, metavar="FILE")
    images: Path | None = option(None, metavar="FILE")
    targets: Path | None = option(None, metavar="FILE")
    draws: int = option(1, ge=1, le=100_000)
    dot: bool = option(False)
    device: str = option("cpu")

    @field_validator("out")
    @classmethod
    def _written(cls, value: Path) -> Path:
        if value.suffix not in (".parquet", ".jsonl"):
            raise ValueError("must end in .parquet or .jsonl")
        return value

    @model_validator(mode="after")
    def _one_format(self) -> Self:
        ending = {"parquet": ".parquet", "jsonl": ".jsonl", "flagembedding": ".jsonl"}.get(self.format or "")
        if ending not in (None, self.out.suffix):
            raise ValueError(f"--format {self.format} needs an --out that ends in {ending}")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        files = {f"--{name}": getattr(self, name) for name in ("queries", "images", "targets")}
        given = [flag for flag, file in files.items() if file is not None]
        lacking = [flag for flag, file in files.items() if file is None]
        other = any(each is not None for each in (self.run, self.backbone, self.dataset, self.data_root, self.recipe))
        if given and other:
            raise ValueError(f"{given[0]} gives embeddings: leave out --run, --backbone, --dataset and --recipe")
        if given and (self.allow_missing or "split" in self.model_fields_set):
            raise ValueError(f"{given[0]} gives embeddings: leave out --split and --allow-missing")
        if not given and (self.dot or "device" in self.model_fields_set):
            raise ValueError(
                "--dot and --device are for embeddings in files; a data set takes --set compute.device=..."
            )
        if not given and not other:
            raise ValueError("give --queries, --images and --targets, or a data set: --run, --dataset or --recipe")
        if given and lacking:
            raise ValueError(f"{given[0]} needs {', '.join(lacking)}, too")
        if self.strategy is None and self.run is None:
            raise ValueError("give --strategy")
        return self


# --- inspect -------------------------------------------------------------------------------------------------------


class Evaluate(DatasetOptions, RunsOptions):
    """Options of `negbench evaluate`: a run on any data set, or ready-made rankings without a model."""

    run: str | None = option(None, argument=True)
    ranks: Path | None = option(None, metavar="FILE")
    scorer: str | None = option(None, metavar="RUN")
    metric: Literal["cirqrs"] | None = option(None)
    split: str = option("val")
    out: Path | None = option(None, metavar="FILE")
    submission: Path | None = option(None, metavar="DIR")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.submission is not None and self.run is None:
            raise ValueError("--submission needs a run's own scores, not --ranks")
        if self.metric is not None and (self.ranks is None or self.scorer is None):
            raise ValueError("--metric cirqrs needs --ranks FILE and --scorer RUN")
        sources = (self.run, self.ranks, None if self.metric else self.scorer)
        if sum(each is not None for each in sources) != 1:
            raise ValueError("give either a run to score or --ranks FILE, or --scorer for people's choices")
        return self


class Ui(TrackedOptions):
    """Options of `negbench ui`."""

    name: str | None = option(None, argument=True)
    port: int = option(5000, ge=1, le=65535)


class List(PluginOptions):
    """Options of `negbench list`."""

    kind: PluginKind | None = option(None, argument=True)
    name: str | None = option(None, argument=True)
