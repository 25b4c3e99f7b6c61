"""Options of commands: one frozen model each, from which flags, recipe keys, the Python call and the checks derive.

`negbench compare --seeds 5`, `[compare] seeds = 5` in a recipe and `negbench.compare(negbench.Compare(seeds=5))` are
the same field of `Compare`. A model imports neither torch nor the code of its command.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from negbench.errors import OptionError, UnknownNameError, quoted

MOVES_SCORES = False

PluginKind = Literal["strategies", "losses", "backbones", "datasets", "systems", "recipes"]


def option(
    default: Any = None,
    help: str = "",
    *,
    flags: tuple[str, ...] = (),
    metavar: str | None = None,
    cli: Any = None,
    argument: bool = False,
    recipe: bool = True,
    **checks: Any,
) -> Any:
    """Field of an `Options` model.

    Args:
        default: `...` where it must be given.
        help: one sentence, for `--help` and the Python documentation.
        flags: names on the command line; default: the field's name, with dashes.
        metavar: what stands for the value in the help.
        cli: type of the flag, where it differs from the field's (text that a validator parses); False: no flag.
        argument: positional on the command line.
        recipe: whether a recipe may set it.
        checks: pydantic's, such as `ge=1`.
    """
    extra = {"flags": flags, "metavar": metavar, "cli": cli, "argument": argument, "recipe": recipe}
    return Field(default, description=help, json_schema_extra=extra, **checks)


def _folder_name(text: str) -> str:
    from negbench.files import checked_name

    return checked_name(text, "--name")


FolderName = Annotated[str, AfterValidator(_folder_name)]  # that a folder of the runs folder can have


class Options(BaseModel):
    """Base of the options of a command: frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)

    @classmethod
    def parsed(cls, given: Mapping[str, Any], *, recipe: Mapping[str, Any] | None = None, table: str = "") -> Self:
        """Options from flags over a recipe's table over the defaults.

        Args:
            given: field -> value; None counts as not given.
            recipe: the table of a recipe, field -> value.
            table: its name, for messages.

        Raises:
            OptionError, UnknownNameError: a value or a key that the command does not take.
        """
        flags = {name: value for name, value in given.items() if value is not None}
        allowed = [name for name, field in cls.model_fields.items() if extra_of(field)["recipe"]]
        for name in recipe or {}:
            if name not in allowed:
                raise UnknownNameError("key", name, allowed, where=f"recipe's [{table}]")
        try:
            return cls(**{**(recipe or {}), **flags})
        except ValidationError as error:
            raise OptionError(cls._told(error, flags, table)) from error

    @classmethod
    def _told(cls, error: ValidationError, flags: Mapping[str, Any], table: str) -> str:
        """The first problem in one line: the flag or the key of the recipe, its value, what is wrong."""
        first = error.errors()[0]
        problem = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:  # of several fields together
            return problem
        name = str(first["loc"][0])
        shown = f"{table}.{name}"
        if name in flags and name in cls.model_fields:
            extra = extra_of(cls.model_fields[name])
            shown = name.upper() if extra["argument"] else next(iter(extra["flags"]), f"--{name.replace('_', '-')}")
        return f"{shown} {quoted(first['input'])}: {problem[0].lower()}{problem[1:]}"


def extra_of(field: Any) -> dict[str, Any]:
    """What `option` was told beside pydantic's own settings."""
    found: dict[str, Any] = field.json_schema_extra or option().json_schema_extra
    return found


# --- shared by several commands ------------------------------------------------------------------------------------


class RunsOptions(Options):
    """Where runs lie."""

    runs_dir: Path | None = option(
        None, "Folder of the runs and the MLflow store [default: NEGBENCH_RUNS, else ./runs].", recipe=False
    )


class TrackedOptions(RunsOptions):
    """Where runs and their MLflow copies lie."""

    tracking_uri: str | None = option(
        None, "MLflow store; `none` keeps no copy [default: RUNS_DIR/mlflow.db].", recipe=False
    )


class PluginOptions(Options):
    """Files of classes of one's own."""

    plugin: tuple[Path, ...] = option((), "Python file with your own strategy, loss, ...", metavar="FILE.py")

    def register(self) -> dict[str, Any]:
        """Register the files' classes, and return them as a layer of a configuration."""
        from negbench.registry import registry

        for file in self.plugin:
            registry.add_file(file)
        return {"plugins": [str(file.resolve()) for file in self.plugin]} if self.plugin else {}


class DatasetOptions(PluginOptions):
    """A data set, and changes to its configuration."""

    dataset: Any = option(None, "Data set, or triplets: a file, or hf:NAME [default: synthetic].", cli=str)
    data_root: Path | None = option(None, "Folder of the data set [default: the variable NEGBENCH_DATA].")
    allow_missing: bool = option(False, "Go on without missing images; marks the result partial.")
    sets: tuple[str, ...] = option(
        (), "Set any key, e.g. train.epochs=12.", flags=("--set",), metavar="SECTION.KEY=VALUE"
    )

    def layers(self) -> list[dict[str, Any]]:
        """Layers of a configuration, the lowest first; registers `plugin`."""
        from negbench.config import set_layer

        section = _section("dataset", self.dataset).get("dataset", {})
        section |= {} if self.data_root is None else {"root": str(self.data_root)}
        section |= {"allow_missing": True} if self.allow_missing else {}
        layers = [self.register(), {"dataset": section} if section else {}]
        return [layer for layer in layers if layer] + [set_layer(text) for text in self.sets]


class ModelOptions(DatasetOptions):
    """A backbone and a data set, and a recipe below them."""

    backbone: Any = option(None, "Model family [default: tiny].", cli=str)
    recipe: Path | None = option(None, "TOML file of settings, or a name (see `list recipes`); flags beat it.")

    def layers(self) -> list[dict[str, Any]]:
        """Layers of a configuration, the lowest first: the recipe, then the flags."""
        from negbench.config import recipe_settings

        above = super().layers()  # first: it registers what the backbone may name
        own = _section("backbone", self.backbone)
        sets = len(self.sets)
        return [recipe_settings(self.recipe), *above[: len(above) - sets], own, *above[len(above) - sets :]]


def _section(section: str, given: Any) -> dict[str, Any]:
    """A plug-in as text (NAME:option=value) or as a table, as a section of a configuration."""
    if given is None:
        return {}
    from negbench.config import plugin_section
    from negbench.registry import SECTIONS

    return {section: plugin_section(SECTIONS[section], given)}


class ExecutorOptions(Options):
    """Where tasks are computed."""

    executor: Any = option(
        "pool",
        "Where: pool, processes of this machine; ray, tasks of a Ray cluster, each with one CPU and, where nodes have "
        "GPUs, one GPU, or as ray:cpus=4:gpus=0.5 says.",
        cli=str,
    )
    address: str | None = option(
        None, "With ray: HOST:PORT of the cluster's head [default: RAY_ADDRESS, else this machine alone]."
    )


# --- start ---------------------------------------------------------------------------------------------------------


class Init(Options):
    """Options of `negbench init`."""

    folder: Path = option(..., "Folder with images or embeddings, and a .jsonl, .csv or .parquet.", argument=True)


class Embed(Options):
    """Options of `negbench embed`, which embeds every image and text that the triplets of a folder name.

    In Python, `encoder` may be an object with `encode_image(images)`, a list of n RGB PIL images -> [n, C] (or
    [n, L, C], L vectors an image), and `encode_text(texts)`, a list of n strings -> [n, C_t]; tensors or arrays of
    floats. A `torch.nn.Module` is in evaluation mode meanwhile; without `device`, an object is not moved.
    """

    folder: Path = option(..., "Folder with images and a .jsonl, .csv or .parquet of triplets.", argument=True)
    encoder: Any = option(
        ...,
        "open_clip:MODEL[:PRETRAINED]; transformers:NAME, a dual encoder; sentence-transformers:NAME; NAME is a hub's "
        "or a folder. Or your own, FILE.py:NAME: what has encode_image(list of RGB PIL images) and encode_text(list of "
        "strings), both to [n, C], or makes that without arguments.",
        cli=str,
        metavar="SPEC",
    )
    batch_size: int = option(32, "Images or texts at a time.", ge=1)
    device: str | None = option(None, "Where: cpu, cuda, ... [default: CUDA where there is a device].")
    gallery: Path | None = option(None, "Embed these, too: one image a line.", metavar="FILE")
    overwrite: bool = option(False, "Compute anew what is there.")


class SynthesizeData(Options):
    """Options of `negbench data synthesize`."""

    out: Path = option(..., "New folder, in FashionIQ's layout with relevance.json.")
    seed: int = option(0, "Fixes every pixel and word.", ge=0)
    twins: float = option(4.5, "Mean number of relevant images per query.")
    train_images: int = option(1000, "Per category.")
    train_queries: int = option(1000, "Per category.")
    val_images: int = option(600, "Per category.")
    val_queries: int = option(400, "Per category.")
    near_misses: float | None = option(
        None, "Mean number of images per query that miss one attribute [default: by chance]."
    )
    label_noise: float = option(0.0, "Share of train queries with a wrong target.")


class VerifyData(PluginOptions):
    """Options of `negbench data verify`."""

    dataset: str = option(..., "Data set, or triplets: FILE.jsonl, .csv, .parquet or hf:NAME.", argument=True)
    data_root: Path | None = option(None, "Folder of the data set [default: the variable NEGBENCH_DATA].")
    split: tuple[str, ...] = option((), "Split to check, repeatable [default: train and val].")
    sets: tuple[str, ...] = option((), "Option of the data set.", flags=("--set",), metavar="KEY=VALUE")
    annotations: bool = option(False, "Counts and targets alone, no images.")
    workers: int = option(0, "Processes that decode images; 0 decodes here.", ge=0)
    out: Path | None = option(None, "JSON file for everything found, with a manifest of hashes.")


class EncodeData(ModelOptions, ExecutorOptions):
    """Options of `negbench data encode`."""

    splits: str = option("train,val", "Splits of the data set, by comma.")
    verify: bool = option(False, "Read what is stored first; encode anew what is damaged.")


class Doctor(TrackedOptions):
    """Options of `negbench doctor`."""


# --- claims --------------------------------------------------------------------------------------------------------


class Claims(ModelOptions, ExecutorOptions, TrackedOptions):
    """Options of `negbench claims`."""

    only: str | None = option(None, "Numbers of claims, or papers (qure, ...), by comma [default: all].")
    listed: bool = option(False, "Print the claims and their tests; compute nothing.", flags=("--list",))
    compare: str | None = option(
        None, "Compute nothing: read the runs of this comparison that the claims need.", metavar="NAME"
    )
    seeds: str | None = option(None, "A count (3) or a list (0,1,2) [default: 3; with --compare, those it has].")
    name: FolderName | None = option(None, "Folder and MLflow experiment [default: from the runs].")
    workers: int | None = option(None, "Computed at a time [default: 1; with ray as many as there is room for].", ge=1)
    overwrite: Literal["failed", "never", "always"] = option(
        "failed", "failed: compute failed runs again; never: leave them; always: compute anew."
    )


# --- negatives -----------------------------------------------------------------------------------------------------


class SubjectOptions(ModelOptions, RunsOptions):
    """A split as a model scores it: an untrained backbone, or a finished run."""

    run: str | None = option(None, "A finished run: its data set and its trained weights.", metavar="RUN")
    split: str = option("train", "Whose queries and corpus.")
    refresh: int = option(0, "Refresh count that strategies with a schedule get, from 0.", ge=0)
    seed: int = option(0, "Of draws and samples, and of untrained weights.", ge=0)

    @model_validator(mode="after")
    def _one_backbone(self) -> Self:
        if self.run is not None and (self.backbone is not None or any(s.startswith("backbone") for s in self.sets)):
            raise ValueError("takes the run's own backbone: leave --backbone and --set backbone... out")
        return self


class Audit(SubjectOptions):
    """Options of `negbench audit`: what strategies would draw, without training."""

    strategies: Any = option(
        None,
        "'all' (that need no guide and go with any loss), or names by comma; options as top-k:k=50 "
        "[default: all, or the run's].",
        flags=("--strategy",),
        cli=str,
    )
    judge: str | None = option(
        None,
        "Calls images that look like the target false negatives; FILE: a TREC run file of its scores.",
        metavar="BACKBONE[:OPTION=VALUE]|FILE",
    )
    threshold: float = option(0.9, "Cosine to the target (or score) above which it does so.")
    queries: int = option(1000, "Queries sampled, at least 2; 0 takes all.", ge=0)
    draws: int = option(10, "Negatives drawn for each query.", ge=2)
    out: Path | None = option(None, "Write audit.csv and audit.json there.", metavar="DIR")

    @field_validator("queries")
    @classmethod
    def _several(cls, value: int) -> int:
        if value == 1:
            raise ValueError("must be 0 (all) or at least 2")
        return value


class Mine(SubjectOptions):
    """Options of `negbench mine`: negatives for a trainer of one's own, from embeddings in files or for a data set."""

    strategy: str = option(..., "Corpus strategy; options as qure:variant=release.")
    out: Path = option(..., "One row a query: negatives, statistics; .parquet or .jsonl.", metavar="FILE")
    queries: Path | None = option(None, "[Q, D] floats.", metavar="FILE.npy")
    images: Path | None = option(None, "[N, D] floats, or [N, T, D] tokens.", metavar="FILE.npy")
    targets: Path | None = option(
        None,
        "Row of --images that answers each query: [Q] .npy, or column `target` of a .parquet or .csv, which may hold "
        "`excluded` and `relevant` too: lists of rows (in .csv parted by blanks).",
        metavar="FILE",
    )
    groups: Path | None = option(None, "[N] labels: queries draw from their target's group alone.", metavar="FILE.npy")
    draws: int = option(1, "Negatives of each query.", ge=1)
    dot: bool = option(False, "Score files by dot products, not by cosines.")
    device: str = option("cpu", "Where files are scored: cpu, cuda, ...")

    @field_validator("out")
    @classmethod
    def _written(cls, value: Path) -> Path:
        if value.suffix not in (".parquet", ".jsonl"):
            raise ValueError("want a name that ends in .parquet or .jsonl")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        files = {f"--{name}": getattr(self, name) for name in ("queries", "images", "targets")}
        given = [flag for flag, file in files.items() if file is not None]
        lacking = [flag for flag, file in files.items() if file is None]
        other = any(each is not None for each in (self.run, self.backbone, self.dataset, self.data_root, self.recipe))
        if given and other:
            raise ValueError(f"{given[0]} gives embeddings: leave out --run, --backbone, --dataset and --recipe")
        if not given and not other:
            raise ValueError("give --queries, --images and --targets, or a data set: --run, --dataset or --recipe")
        if given and lacking:
            raise ValueError(f"{', '.join(lacking)} must be given, too")
        return self


# --- inspect -------------------------------------------------------------------------------------------------------


class Report(RunsOptions):
    """Options of `negbench report`."""

    name: str = option(..., "A comparison, a study, or a run by its id or a part of it.", argument=True)
    galleries: int = option(2, "Queries shown of each kind (best, worst, random); 0 writes no images.", ge=0, le=20)


class Evaluate(DatasetOptions, RunsOptions):
    """Options of `negbench evaluate`: a run on any data set, or stored ranks and rankings without a model."""

    run: str | None = option(None, "Run, by id or a part of it that only one has, or its folder.", argument=True)
    ranks: Path | None = option(
        None,
        "Not a run: ranks (.parquet), {query: [ids]} or ranx' {query: {id: score}} (.json), TREC run.",
        metavar="FILE",
    )
    split: str = option("val", "Split of the data set.")
    metric: Literal["cirqrs", "relevant"] | None = option(
        None,
        "cirqrs: mean score, under the run that --scorer names, of each query's first k. relevant: how relevant images "
        "that are not the target rank.",
    )
    scorer: str | None = option(None, "Run that scores for cirqrs; or recall-at-5, to judge hp-fashioniq by targets.")
    k: tuple[int, ...] = option((10, 50), "With --metric: cutoffs, by comma [default: 10,50].", cli=str)
    out: Path | None = option(None, "Write the values of each query as parquet.", metavar="FILE")
    submission: Path | None = option(None, "Write the files of the benchmark's test server.", metavar="DIR")
    trec: Path | None = option(None, "Write the 1000 best images as a TREC run (.json: for ranx).", metavar="FILE")

    @field_validator("k", mode="before")
    @classmethod
    def _cutoffs(cls, value: Any) -> tuple[int, ...]:
        parts = str(value).split(",") if isinstance(value, str | int) else list(map(str, value))
        found = tuple(int(part) for part in parts if part.strip().isdecimal() and int(part) > 0)
        if not found or len(set(found)) != len(parts):
            raise ValueError("must be whole numbers >= 1 with commas between, each once")
        return found

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        lists = self.submission is not None or self.trec is not None
        if self.metric == "cirqrs" and self.scorer in (None, "recall-at-5"):
            raise ValueError("--metric cirqrs needs --scorer RUN: the run whose model scores what is ranked first")
        if lists and (self.run is None or self.metric is not None):
            raise ValueError("--submission and --trec need a run's own scores: no --ranks, --scorer or --metric cirqrs")
        if self.scorer == "recall-at-5":
            if any(each is not None for each in (self.run, self.ranks, self.metric)):
                raise ValueError("--scorer recall-at-5 stands alone: leave out the run, --ranks and --metric")
        elif self.scorer is not None and self.metric != "cirqrs":
            raise ValueError(f"--scorer {self.scorer}: a run scores with --metric cirqrs; alone only recall-at-5 does")
        elif (self.run is None) == (self.ranks is None):
            raise ValueError("name a run to score, or give --ranks FILE: one of the two")
        return self


class Ui(TrackedOptions):
    """Options of `negbench ui`."""

    name: str | None = option(None, "Comparison, study, ... to open [default: what was computed last].", argument=True)
    port: int = option(5000, "Port on 127.0.0.1.", ge=1, le=65535)
    workers: int = option(1, "Server processes; one is enough for one person.", ge=1)


class List(PluginOptions):
    """Options of `negbench list`."""

    kind: PluginKind | None = option(
        None, "strategies, losses, backbones, datasets, systems or recipes [default: all]", argument=True
    )
    name: str | None = option(None, "One of them, of which every option is explained.", argument=True)
