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
    Run,
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

    folder: Path = option(..., "Folder with images or embeddings, and a table of triplets.", argument=True)
    columns: str = option(
        "",
        "Names of the file's columns, as reference=ref,text=caption; paths in a row, as reference=pair[1] or "
        "group=img_set.id; places, from 0, without a header; paths=FILE:ID:PATH, a table of image paths by id.",
        metavar="OURS=THEIRS,...",
    )
    allow_missing: bool = option(False, "Continue without missing images; marks results partial.")


class Embed(Options):
    """Options of `negbench embed`, which embeds every image and text that the triplets of a folder name.

    An encoder of your own has `encode_image(images)`, a list of n RGB PIL images -> [n, C] (or [n, L, C], L vectors per
    image), and `encode_text(texts)`, a list of n strings -> [n, C_t]; tensors or arrays of floats.
    """

    folder: Path = option(..., "Folder with images and a table of triplets.", argument=True)
    encoder: str = option(
        ...,
        "open_clip:MODEL[:PRETRAINED] or transformers:NAME (a dual encoder); NAME is a folder or a Hugging Face name; "
        "or FILE.py:NAME, an object of your own (or a function or class that makes one) with encode_image(list of RGB "
        "PIL images) and encode_text(list of strings), both returning [n, C].",
        metavar="SPEC",
    )
    batch_size: int = option(32, "Images or texts per batch.", ge=1)
    device: str | None = option(None, "Device, e.g. cpu or cuda [default: cuda if available].")
    gallery: Path | None = option(None, "File of further images to encode, one per line.", metavar="FILE")
    columns: str = option("", "Column names, as for negbench init.", metavar="OURS=THEIRS,...")
    allow_missing: bool = option(False, "Embed what is there; marks results partial.")
    as_shown: bool = option(False, "Turn pictures as their EXIF says, and put transparent ones on white.")
    overwrite: bool = option(False, "Replace existing files.")


class VerifyData(PluginOptions, DataOptions):
    """Options of `negbench data verify`."""

    dataset: str = option(..., "Data set, or a file of triplets.", argument=True)
    split: tuple[str, ...] = option((), "Split to check; repeat for more [default: train and val].", metavar="SPLIT")
    sets: tuple[str, ...] = option((), "Set an option of the data set.", flags=("--set",), metavar="KEY=VALUE")
    annotations: bool = option(False, "Check counts and targets only, no images.")
    workers: int = option(4, "Threads that decode images.", ge=1)


class FetchData(Options):
    """Options of `negbench data fetch`."""

    dataset: Literal["emoji"] = option(..., "Data set: emoji.", argument=True)
    out: Path | None = option(None, "Folder for its packages [default: emoji in NEGBENCH_DATA, else data/emoji].")


class EncodeData(ModelOptions):
    """Options of `negbench data encode`."""


class Doctor(Run):
    """Options of `negbench doctor`: those of `negbench run` name a run, whose needs are told."""

    @property
    def names_run(self) -> bool:
        """Whether an option names a run."""
        elsewhere = TrackedOptions.model_fields.keys() | PluginOptions.model_fields.keys()
        for name, field in Run.model_fields.items():
            if name not in elsewhere and getattr(self, name) != field.get_default(call_default_factory=True):
                return True
        return False


# --- claims --------------------------------------------------------------------------------------------------------


class Claims(UntilOptions, ModelOptions, WorkerOptions, TrackedOptions):
    """Options of `negbench claims`."""

    only: str | None = option(None, "Comma-separated claim numbers, or papers (qure, ...) [default: all].")
    long: int | None = option(
        None, "Also judge every claim after this many epochs, trained out, each length at half of the level.", ge=2
    )
    seeds: Seeds = option(3, "A count (3) or a list (0,1,2); with --until, seeds at the first look.", cli=str)
    name: FolderName | None = option(None, "Folder and MLflow experiment [default: named after the options].")


# --- negatives -----------------------------------------------------------------------------------------------------


class ScoredSplitOptions(ModelOptions, RunsOptions):
    """A split scored by a model: an untrained backbone, or a finished run."""

    run: str | None = option(None, "Use a finished run's data set and trained weights.", metavar="RUN")
    split: str = option("train", "Split of the queries and of the corpus.")
    refresh: int = option(0, "Refresh number, from 0, for strategies whose pools change with it.", ge=0, le=10**9)
    seed: int = option(0, "Seed of draws, samples and untrained weights.", ge=0)


class Audit(ScoredSplitOptions):
    """Options of `negbench audit`: what corpus strategies would draw, without training."""

    strategies: PluginSpecs | None = option(
        None,
        "Comma-separated corpus strategies, options as top-k:k=50 [default: all that need no guide, or the run's].",
        flags=("--strategy",),
        cli=str,
    )
    queries: int = option(1000, "Queries to sample; 0: all.", ge=0)
    draws: int = option(10, "Negatives drawn for each query.", ge=2, le=100_000)


class Mine(ScoredSplitOptions):
    """Options of `negbench mine`: negatives for your own trainer, from embeddings in files or for a data set."""

    strategy: str | None = option(None, "Corpus strategy; options as qure:variant=release [default: the run's].")
    out: Path = option(..., "File to write: .parquet or .jsonl.", metavar="FILE")
    format: MinedFormat | None = option(
        None,
        "parquet, jsonl: one row per query, with negatives, scores and statistics; triplets: one row per negative; "
        "sentence-transformers: anchor, positive, negative_1, ..., score; flagembedding: query, pos, neg and their "
        "scores [default: by the ending of --out].",
    )
    with_reference: bool = option(
        False,
        "With --format sentence-transformers: an anchor holds text and reference image, {'text': ..., 'image': ...}, "
        "the library's form of multimodal inputs.",
    )
    queries: Path | None = option(None, "Query embeddings: [Q, D] floats; files as for --images.", metavar="FILE")
    images: Path | None = option(
        None,
        "Image embeddings, [N, D] floats or [N, T, D] tokens: .npy, .npz (`ids` and `features`, as `embed` writes), or "
        ".parquet (a column of lists, and `id` or `ids`).",
        metavar="FILE",
    )
    targets: Path | None = option(
        None,
        "Each query's target, as a row of --images or as an id: a [Q] .npy, a .txt with one a line, or column "
        "`target` of a .parquet, which may also hold `excluded` and `relevant` (lists of the same).",
        metavar="FILE",
    )
    draws: int = option(1, "Negatives per query.", ge=1, le=100_000)
    dot: bool = option(False, "Score embeddings by dot product, not cosine.")
    device: str = option("cpu", "Device that scores the embeddings: cpu, cuda, ...")

    @field_validator("out")
    @classmethod
    def _check_ending(cls, value: Path) -> Path:
        if value.suffix not in (".parquet", ".jsonl"):
            raise ValueError("must end in .parquet or .jsonl")
        return value

    @model_validator(mode="after")
    def _one_format(self) -> Self:
        ending = {"parquet": ".parquet", "jsonl": ".jsonl", "flagembedding": ".jsonl"}.get(self.format or "")
        if ending not in (None, self.out.suffix):
            raise ValueError(f"--format {self.format} needs an --out that ends in {ending}")
        if self.with_reference and self.format != "sentence-transformers":
            raise ValueError("--with-reference needs --format sentence-transformers: others have a column reference")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        files = {f"--{name}": getattr(self, name) for name in ("queries", "images", "targets")}
        present = [flag for flag, file in files.items() if file is not None]
        missing = [flag for flag, file in files.items() if file is None]
        settings = (self.run, self.backbone, self.dataset, self.data_root, self.recipe)
        names_data_set = any(option is not None for option in settings)
        if present:
            if names_data_set:
                raise ValueError(f"{present[0]} gives embeddings: leave out --run, --backbone, --dataset and --recipe")
            if self.allow_missing or "split" in self.model_fields_set:
                raise ValueError(f"{present[0]} gives embeddings: leave out --split and --allow-missing")
            if missing:
                raise ValueError(f"{present[0]} needs {', '.join(missing)}, too")
        else:
            if self.dot or "device" in self.model_fields_set:
                raise ValueError(
                    "--dot and --device are for embeddings in files; a data set takes --set compute.device=..."
                )
            if not names_data_set:
                raise ValueError("give --queries, --images and --targets, or a data set: --run, --dataset or --recipe")
        if self.strategy is None and self.run is None:
            raise ValueError("give --strategy")
        return self


# --- inspect -------------------------------------------------------------------------------------------------------


class Evaluate(DatasetOptions, RunsOptions):
    """Options of `negbench evaluate`: a run on any data set, or ready-made rankings without a model."""

    run: str | None = option(None, "A run: its id, a unique part of its id, or its folder.", argument=True)
    ranks: Path | None = option(
        None,
        "Rankings to score instead of a run: .json of {query: [image ids, best first]} or {query: {image id: score}}, "
        "or a TREC run file.",
        metavar="FILE",
    )
    scorer: str | None = option(
        None,
        "Judge people's choices (hp-fashioniq) by 'recall-at-5' of the sets, or by a run; with --metric cirqrs, the "
        "run whose scores rate the rankings.",
        metavar="RUN",
    )
    metric: Literal["cirqrs"] | None = option(
        None, "Rate the images of --ranks by the --scorer's own scores (CIRQRS@10 and @50), without any label."
    )
    split: str = option("val", "Split of the data set.")
    out: Path | None = option(None, "Write the values of each query as parquet.", metavar="FILE")
    submission: Path | None = option(None, "Write the files that the benchmark's test server accepts.", metavar="DIR")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.submission is not None and self.run is None:
            raise ValueError("--submission needs a run's own scores, not --ranks")
        if self.metric is not None and (self.ranks is None or self.scorer is None):
            raise ValueError("--metric cirqrs needs --ranks FILE and --scorer RUN")
        sources = (self.run, self.ranks, None if self.metric else self.scorer)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("give either a run to score or --ranks FILE, or --scorer for people's choices")
        return self


class Ui(TrackedOptions):
    """Options of `negbench ui`."""

    name: str | None = option(None, "Comparison, study, ... to open [default: the latest].", argument=True)
    port: int = option(5000, "Port on 127.0.0.1.", ge=1, le=65535)


class List(PluginOptions):
    """Options of `negbench list`."""

    kind: str | None = option(
        None,
        "strategies, losses, backbones, datasets, systems or recipes [default: all]; or the name of one of them.",
        argument=True,
    )
    name: str | None = option(None, "Explain this one: its options, or the file of a system or recipe.", argument=True)
