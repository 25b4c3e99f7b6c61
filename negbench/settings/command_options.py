"""Options of the smaller commands: data, doctor, claims, audit, mine, evaluate, ui, list; see `options.py`."""

from pathlib import Path
from typing import Literal, Self

from pydantic import field_validator, model_validator

from negbench.settings import options as base

MOVES_SCORES = False

MinedFormat = Literal["parquet", "jsonl", "triplets", "sentence-transformers", "flagembedding"]
PluginKind = Literal["strategies", "losses", "backbones", "datasets", "systems", "recipes"]


# --- start ---------------------------------------------------------------------------------------------------------


class Init(base.Options):
    """Options of `negbench init`."""

    folder: Path = base.option(..., argument=True)
    columns: str = base.option("", metavar="OURS=THEIRS,...")
    allow_missing: bool = base.option(False)


class Embed(base.Options):
    """Options of `negbench embed`, which embeds every image and text that the triplets of a folder name.

    An encoder of your own has `encode_image(images)`, a list of n RGB PIL images -> [n, C] (or [n, L, C], L vectors per
    image), and `encode_text(texts)`, a list of n strings -> [n, C_t]; tensors or arrays of floats.
    """

    folder: Path = base.option(..., argument=True)
    encoder: str = base.option(..., metavar="SPEC")
    batch_size: int = base.option(32, ge=1)
    device: str | None = base.option(None)
    gallery: Path | None = base.option(None, metavar="FILE")
    columns: str = base.option("", metavar="OURS=THEIRS,...")
    allow_missing: bool = base.option(False)
    overwrite: bool = base.option(False)


class VerifyData(base.PluginOptions, base.DataOptions):
    """Options of `negbench data verify`."""

    dataset: str = base.option(..., argument=True)
    split: tuple[str, ...] = base.option((), metavar="SPLIT")
    sets: tuple[str, ...] = base.option((), flags=("--set",), metavar="KEY=VALUE")
    annotations: bool = base.option(False)
    workers: int = base.option(4, ge=1)


class FetchData(base.Options):
    """Options of `negbench data fetch`."""

    dataset: Literal["emoji"] = base.option(..., argument=True)
    out: Path | None = base.option(None)


class EncodeData(base.ModelOptions):
    """Options of `negbench data encode`."""


class Doctor(base.TrackedOptions):
    """Options of `negbench doctor`."""


# --- claims --------------------------------------------------------------------------------------------------------


class Claims(base.UntilOptions, base.ModelOptions, base.WorkerOptions, base.TrackedOptions):
    """Options of `negbench claims`."""

    only: str | None = base.option(None)
    long: int | None = base.option(None, ge=2)
    seeds: base.Seeds = base.option(3, cli=str)
    name: base.FolderName | None = base.option(None)


# --- negatives -----------------------------------------------------------------------------------------------------


class SubjectOptions(base.ModelOptions, base.RunsOptions):
    """A split scored by a model: an untrained backbone, or a finished run."""

    run: str | None = base.option(None, metavar="RUN")
    split: str = base.option("train")
    refresh: int = base.option(0, ge=0, le=10**9)
    seed: int = base.option(0, ge=0)


class Audit(SubjectOptions):
    """Options of `negbench audit`: what corpus strategies would draw, without training."""

    strategies: base.PluginSpecs | None = base.option(None, flags=("--strategy",), cli=str)
    queries: int = base.option(1000, ge=0)
    draws: int = base.option(10, ge=2, le=100_000)


class Mine(SubjectOptions):
    """Options of `negbench mine`: negatives for your own trainer, from embeddings in files or for a data set."""

    strategy: str | None = base.option(None)
    out: Path = base.option(..., metavar="FILE")
    format: MinedFormat | None = base.option(None)
    queries: Path | None = base.option(None, metavar="FILE")
    images: Path | None = base.option(None, metavar="FILE")
    targets: Path | None = base.option(None, metavar="FILE")
    draws: int = base.option(1, ge=1, le=100_000)
    dot: bool = base.option(False)
    device: str = base.option("cpu")

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


class Evaluate(base.DatasetOptions, base.RunsOptions):
    """Options of `negbench evaluate`: a run on any data set, or ready-made rankings without a model."""

    run: str | None = base.option(None, argument=True)
    ranks: Path | None = base.option(None, metavar="FILE")
    scorer: str | None = base.option(None, metavar="RUN")
    metric: Literal["cirqrs"] | None = base.option(None)
    split: str = base.option("val")
    out: Path | None = base.option(None, metavar="FILE")
    submission: Path | None = base.option(None, metavar="DIR")

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


class Ui(base.TrackedOptions):
    """Options of `negbench ui`."""

    name: str | None = base.option(None, argument=True)
    port: int = base.option(5000, ge=1, le=65535)


class List(base.PluginOptions):
    """Options of `negbench list`."""

    kind: PluginKind | None = base.option(None, argument=True)
    name: str | None = base.option(None, argument=True)
