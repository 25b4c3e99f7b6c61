"""Options of commands: one frozen model each, from which flags, recipe keys, the Python call and the checks derive.

`negbench compare --seeds 5`, `[compare] seeds = 5` in a recipe and `negbench.compare(seeds=5)` are the same field of
`Compare`. A model imports neither torch nor the code of its command.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from negbench.errors import NegbenchError, OptionError, UnknownNameError, short_repr
from negbench.machine.files import check_name

MOVES_SCORES = False

PluginSpec = str | Mapping[str, Any]  # a plug-in: NAME, NAME:option=value, or a table {"name": ..., option: ...}
PluginSpecs = PluginSpec | Sequence[PluginSpec]  # several, as 'a,b' or as a list


def option(
    default: Any = None,
    help: str = "",
    *,
    flags: tuple[str, ...] = (),
    metavar: str | None = None,
    cli: Any = None,
    argument: bool = False,
    **checks: Any,
) -> Any:
    """Declare a field of an `Options` model.

    Args:
        default: `...` if it is required.
        help: one sentence, for `--help` and the Python documentation.
        flags: names on the command line; default: the field's name, with dashes.
        metavar: placeholder of the value in the help.
        cli: type of the flag, if it differs from the field's (text that a validator parses); False: no flag.
        argument: whether it is positional on the command line.
        checks: pydantic's, such as `ge=1`.
    """
    extra = {"flags": flags, "metavar": metavar, "cli": cli, "argument": argument}
    return Field(default, description=help, json_schema_extra=extra, **checks)


class Options(BaseModel, defer_build=True):
    """Base of the options of a command: frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
    in_recipe: ClassVar[bool] = False  # whether a recipe's table may set the fields that this very class declares
    section: ClassVar[str] = "Options"  # of the help that lists the fields that this very class declares

    def __init__(self, **values: Any) -> None:
        """Check the options; raise OptionError or UnknownNameError for the first that does not fit."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _mistake(error, type(self), str) from error

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # `model_validate` does not call it

    def replace(self, **values: Any) -> Self:
        """Return these options with other values for the fields that are named.

        Raises:
            OptionError, UnknownNameError: a value or a name that the command does not accept.
        """
        return type(self)(**{**self._values(), **values})

    @classmethod
    def from_flags(cls, values: Mapping[str, Any]) -> Self:
        """Create options from flags: field -> value.

        Raises:
            OptionError, UnknownNameError: a value or a key that the command does not accept.
        """
        return cls._of(values, partial(_flag, cls))

    def over(self, recipe: Any, table: str) -> Self:
        """Return these options merged over a recipe's table, which overrides the defaults.

        Args:
            recipe: field -> value, as it was read; None: no table.
            table: its name, for messages.

        Raises:
            OptionError, UnknownNameError: a value or a key that the command does not accept.
        """
        if recipe is not None and not isinstance(recipe, Mapping):
            raise OptionError(f"recipe's {table} = {short_repr(recipe)}: expected a table, [{table}]")
        bases = [base for base in type(self).__mro__ if vars(base).get("in_recipe")]
        allowed = []
        for base in bases:
            allowed += [name for name in base.__annotations__ if name in type(self).model_fields]
        for name in recipe or {}:
            if name not in allowed:
                raise UnknownNameError("key", f"{table}.{name}", [f"{table}.{key}" for key in allowed])
        return self._of({**(recipe or {}), **self._values()}, lambda name: f"{table}.{name}")

    def _values(self) -> dict[str, Any]:
        """Return the options that were given, not left at their defaults."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    @classmethod
    def _of(cls, values: Mapping[str, Any], name_in_message: Callable[[str], str]) -> Self:
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise _mistake(error, cls, name_in_message) from error


def _flag(model: type[Options], name: str) -> str:
    """Return a field's name on the command line."""
    if name not in model.model_fields:
        return name
    extra = extra_of(model.model_fields[name])
    if extra["argument"]:
        return name.upper()
    if extra["flags"]:
        return str(extra["flags"][0])
    return f"--{name.replace('_', '-')}"


def _mistake(error: ValidationError, model: type[Options], name_in_message: Callable[[str], str]) -> NegbenchError:
    """Return the first mistake as a one-line error; `name_in_message` returns how it names a field."""
    first = error.errors()[0]
    problem = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # of several fields together
        return OptionError(problem)
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return UnknownNameError("option", name, model.model_fields)
    problem = problem[0].lower() + problem[1:]
    return OptionError(f"{name_in_message(name)} {short_repr(first['input'])}: {problem}")


def extra_of(field: Any) -> dict[str, Any]:
    """Return the arguments of `option` that are not pydantic's."""
    return dict(field.json_schema_extra or option().json_schema_extra)


# --- values ----------------------------------------------------------------------------------------------------------

MANY_SEEDS = 1_000  # more than anybody computes: every cell is planned before the first is computed


def parse_seeds(value: Any) -> tuple[int, ...]:
    """Parse seeds: 3 or '3' -> 0, 1, 2; '0,5,7' or [0, 5, 7] -> as listed."""
    count = isinstance(value, int) or (isinstance(value, str) and "," not in value)
    want = "a count (3) or a list of different seeds (0,1,2)"
    numbers = _whole_numbers("--seeds", [value] if isinstance(value, int) else value, 0, want)
    if count and numbers:
        numbers = tuple(range(min(numbers[0], MANY_SEEDS + 1)))
    if len(numbers) > MANY_SEEDS:
        raise OptionError(f"--seeds {value!r}: at most {MANY_SEEDS:,} are allowed")
    if not numbers:
        raise OptionError(f"--seeds {value!r}: expected {want}")
    return numbers


def parse_budget(value: Any) -> float:
    """Parse '90s', '30m' or '2h' as seconds."""
    if isinstance(value, float):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", str(value))
    if match is None:
        raise OptionError(f"--budget {value!r}: expected a number and its unit: 90s, 30m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def parse_negatives(value: Any) -> tuple[int, ...]:
    """Parse '1,5,63' (a flag) or [1, 5, 63] (a recipe) as (1, 5, 63)."""
    return _whole_numbers("--negatives", value, 1, "different numbers of at least 1, e.g. 1,5,63")


def parse_epochs(value: Any) -> tuple[int, ...]:
    """Parse '20,120' (a flag) or [20, 120] (a recipe) as (20, 120)."""
    return _whole_numbers("--epochs", value, 1, "different numbers of epochs, e.g. 20,60,180")


def _whole_numbers(flag: str, value: Any, least: int, want: str) -> tuple[int, ...]:
    """Parse '1,5' or [1, 5] as (1, 5): different whole numbers of at least `least`."""
    parts = value.split(",") if isinstance(value, str) else value
    try:
        numbers = tuple(int(part) for part in parts if str(part).strip())
    except (TypeError, ValueError) as error:
        raise OptionError(f"{flag} {value!r}: expected {want}") from error
    too_small = any(number < least for number in numbers)
    repeated = len(set(numbers)) != len(numbers)
    empty = isinstance(value, str) and not numbers  # an empty list is the default
    if too_small or repeated or empty:
        raise OptionError(f"{flag} {value!r}: expected {want}")
    return numbers


def _check_names(value: str) -> str:
    """Refuse a text that names nothing."""
    if not value.replace(",", "").strip():
        raise ValueError("names nothing: give one or several, with commas between")
    return value


def _parse_rate(value: Any) -> Any:
    if value in ("grid", "common", "fixed"):
        return value
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise OptionError(f"--lr {value!r}: expected grid, common, fixed, or a number above 0, e.g. 1e-3")
    return rate


Seeds = Annotated[int | str | Sequence[int], BeforeValidator(parse_seeds)]
Negatives = Annotated[str | Sequence[int], BeforeValidator(parse_negatives)]
Epochs = Annotated[str | Sequence[int], BeforeValidator(parse_epochs)]
PairsToDecide = Literal["baseline", "all", "best"]
LearningRate = Annotated[float | Literal["grid", "common", "fixed"], BeforeValidator(_parse_rate)]
Budget = Annotated[str | float, BeforeValidator(parse_budget)]  # seconds
Names = Annotated[str, AfterValidator(_check_names)]
FolderName = Annotated[str, AfterValidator(partial(check_name, what="--name"))]


# --- shared by several commands ------------------------------------------------------------------------------------


class RunsOptions(Options):
    """Folder of the runs."""

    section: ClassVar[str] = "Computing"
    runs_dir: Path | None = option(
        None, "Folder of the runs and the MLflow store [default: NEGBENCH_RUNS, else ./runs]."
    )


class TrackedOptions(RunsOptions):
    """Folder of the runs, and store of their MLflow copies."""

    section: ClassVar[str] = "Computing"
    tracking_uri: str | None = option(None, "MLflow store; `none` keeps no copy [default: RUNS_DIR/mlflow.db].")


class PluginOptions(Options):
    """Files with your own plug-ins."""

    section: ClassVar[str] = "Settings"
    plugin: tuple[Path, ...] = option((), "Python file with your own strategy, loss, ...", metavar="FILE.py")


class SetOptions(PluginOptions):
    """Single settings."""

    section: ClassVar[str] = "Settings"
    sets: tuple[str, ...] = option(
        (), "Set any key, e.g. train.epochs=12.", flags=("--set",), metavar="SECTION.KEY=VALUE"
    )


class SettingsOptions(SetOptions):
    """Settings of runs."""

    section: ClassVar[str] = "Settings"
    recipe: Path | None = option(None, "TOML file of settings, or a name (see `list recipes`); flags override it.")


class DataOptions(Options):
    """Folder of a benchmark's files."""

    section: ClassVar[str] = "Data"
    data_root: Path | None = option(None, "Folder of the data set [default: the variable NEGBENCH_DATA].")
    allow_missing: bool = option(False, "Continue without missing images; marks the result partial.")


class DatasetOptions(SetOptions, DataOptions):
    """A data set: a name, NAME:option=value, or a table {"name": ..., option: ...}."""

    dataset: PluginSpec | None = option(None, "Data set, or a file of triplets [default: synthetic].", cli=str)


class ModelOptions(DatasetOptions, SettingsOptions):
    """A backbone, given in the same ways, and a data set."""

    backbone: PluginSpec | None = option(None, "Model family [default: tiny].", cli=str)


class RunSettings(ModelOptions):
    """All plug-ins of one run."""

    strategy: PluginSpec | None = option(
        None, "Negative-sampling strategy (see `list strategies`); options as qure:variant=release.", cli=str
    )
    loss: PluginSpec | None = option(None, "Loss [default: bradley-terry].", cli=str)
    seed: int | None = option(None, "Seed of initial weights, batches and draws [default: 0].")


class WorkerOptions(Options):
    """Workers that compute tasks."""

    section: ClassVar[str] = "Computing"
    workers: int | None = option(None, "Tasks at a time [default: 1; with ray, as many as fit].", ge=1)
    executor: Any = option(
        "pool",
        "pool: processes on this machine; ray: tasks on a Ray cluster, e.g. ray:cpus=4:gpus=0.5 (otherwise one "
        "CPU each, and one GPU if there is any); jobs:FOLDER: a file of cells there for a batch system.",
        cli=str,
    )
    address: str | None = option(
        None, "With ray: HOST:PORT of the cluster's head [default: RAY_ADDRESS, else this machine alone]."
    )


class DryRunOptions(Options):
    """What every command that computes can do instead."""

    section: ClassVar[str] = "Output"
    dry_run: bool = option(
        False, "Print what it reads, what is finished, how long the rest takes and how much memory; then stop."
    )


class LimitOptions(Options):
    """How long a command computes at most."""

    section: ClassVar[str] = "Computing"
    max_hours: float | None = option(
        None, "End at a checkpoint after this many hours, also within an epoch; rerun to resume.", gt=0
    )


class UntilOptions(Options):
    """Number of seeds."""

    in_recipe: ClassVar[bool] = True
    until: Literal["decided"] | None = option(
        None, "decided: look after 3, 5, 8, 12, ... seeds, and add seeds to what is still undecided."
    )
    max_seeds: int = option(60, "With --until: seeds at the last look.", ge=2, le=MANY_SEEDS)
    budget: Budget | None = option(
        None, "With --until: start no more seeds after this time: 90s, 30m, 2h.", metavar="TIME"
    )


# --- compare -------------------------------------------------------------------------------------------------------


class Run(RunSettings, TrackedOptions):
    """Options of `negbench run`."""

    system: str | None = option(None, "Published system to train (see `list systems`); other flags override it.")
    epochs: int | None = option(
        None, "Passes over the train queries [default: 30, or the backbone's or recipe's].", ge=1
    )

    @model_validator(mode="after")
    def _epochs_once(self) -> Self:
        """Refuse epochs that two flags set."""
        for text in self.sets:
            if self.epochs is not None and text.partition("=")[0].strip() == "train.epochs":
                raise OptionError(f"--set {text} and --epochs set the same key: leave one of them out")
        return self


class Compare(UntilOptions, SettingsOptions, DataOptions, WorkerOptions, TrackedOptions):
    """Options of `negbench compare`: the axes, whose every combination is a cell, and how strategies are compared.

    A plug-in is a name, NAME:option=value, or a table {"name": ..., option: ...}; several are a list.
    """

    in_recipe: ClassVar[bool] = True
    strategies: PluginSpecs = option(
        "cir",
        "Comma-separated names, options as qure:variant=release; in-batch+qure: both; cir: the papers' "
        "strategies, baselines and oracles; all: those without guide or judge; own: the system's.",
        flags=("--strategies", "--strategy"),
        cli=str,
    )
    losses: PluginSpecs | None = option(
        None, "Comma-separated loss names [default: bradley-terry].", flags=("--losses", "--loss"), cli=str
    )
    backbones: PluginSpecs | None = option(
        None, "Comma-separated backbone names [default: tiny].", flags=("--backbones", "--backbone"), cli=str
    )
    datasets: PluginSpecs | None = option(
        None, "Comma-separated data set names [default: synthetic].", flags=("--datasets", "--dataset"), cli=str
    )
    seeds: Seeds = option(3, "A count (3) or a list (0,1,2); with --until, seeds at the first look.", cli=str)
    pairs: PairsToDecide | None = option(
        None,
        "With --until: decide which strategy is best, each against the baseline, or all pairs [default: best; baseline "
        "with --dial, --systems, --tuned or in-batch+X].",
    )
    negatives: Negatives = option(
        (), "Negatives per query and step: 1,5,63 [default: each strategy's own number].", cli=str
    )
    epochs: Epochs = option(
        (), "Training budgets in epochs, each with tables and learning rates of its own: 20,60,180.", cli=str
    )
    dials: tuple[str, ...] = option(
        (),
        "Setting to vary and its values, e.g. loss.tau=learned,0.07,0.15; repeat for more.",
        flags=("--dial",),
        metavar="KEY=VALUE,VALUE",
    )
    systems: PluginSpecs | None = option(
        None,
        "Comma-separated published systems, or all: train each with every strategy's negatives (see `list systems`).",
        cli=str,
    )
    tuned: int | None = option(None, "Also compare tuned strategies: this many trials for each, on a dev part.", ge=1)
    lr: LearningRate | None = option(
        None,
        "grid: choose each strategy's learning rate among 0.3, 1 and 3 times train.lr, by --metric, with the first "
        "three seeds, on queries that are not reported; common: one for each table, the best on average; fixed: "
        "train.lr; VALUE: this rate [default: grid; fixed with --tuned or --dial train.lr].",
        metavar="grid|common|fixed|VALUE",
        cli=str,
    )
    temperature: Literal["grid", "configured"] | None = option(
        None, "Choose temperatures, too, in pairs with rates; also show the best common pair.", metavar="grid"
    )
    name: FolderName | None = option(None, "Folder and MLflow experiment [default: named after the options].")
    baseline: str | None = option(
        None,
        "Also show each difference from this strategy [in-batch+X or --pairs baseline: in-batch, else all-corpus].",
    )
    metric: str | None = option(None, "Metric of the verdicts, e.g. R@1 [default: the data set's main metric].")
    margin: float = option(1.0, "Differences within this many points count as equal.", ge=0, lt=100)
    alpha: float = option(0.05, "Significance level of the tests; intervals have level 1 - alpha.", ge=0.001, lt=1)
    report: bool = option(True, "Write the HTML report.")

    @model_validator(mode="after")
    def _each_key_once(self) -> Self:
        """Refuse a dial that changes no result, and a key that two flags set."""
        flags = {"seed": "--seeds"}  # key -> the flag that sets it
        if self.epochs:
            flags["train.epochs"] = "--epochs"
        if self.negatives:
            flags["train.num_negatives"] = "--negatives"
        if isinstance(self.lr, float):
            flags["train.lr"] = f"--lr {self.lr:g}"
        for dial in self.dials:
            key = dial.partition("=")[0].strip()
            if key.startswith("compute."):
                raise OptionError(
                    f"--dial {dial}: {key} is where runs are computed, not part of them: use --set {key}=VALUE"
                )
            if key in flags:
                raise OptionError(f"--dial {dial} and {flags[key]} set the same key: leave one of them out")
            flags[key] = f"--dial {dial}"
        for text in self.sets:
            key = text.partition("=")[0].strip()
            if key in flags:
                raise OptionError(f"--set {text} and {flags[key]} set the same key: leave one of them out")
        return self


# --- inspect -------------------------------------------------------------------------------------------------------


class Report(RunsOptions, PluginOptions):
    """Options of `negbench report`."""

    name: str = option(..., "Name of a comparison or of claims.", argument=True)
    metric: str | None = option(
        None,
        "Only print tables and answer by this metric, from the stored ranks: one of the data set, R@K, MRR or nDCG@K.",
    )
    galleries: int = option(2, "Queries shown of each kind (best, worst, random); 0 writes no images.", ge=0, le=20)
    card: bool = option(False, "Also write card.json and card.md, with which others can repeat it and compare.")
    figures: Literal["svg", "pdf", "png"] = option("svg", "Also write the figures in this form, for a paper.")
    latex: bool = option(False, "Only print the leader table as LaTeX, the best of each block in bold.")
    markdown: bool = option(False, "Only print it as Markdown.")
    columns: Names = option("", "Its columns, such as R@1,R@10 [default: the tested metric, and behind the best].")
    epochs: Epochs = option((), "Its training budgets [default: all].", cli=str)
    out: Path | None = option(None, "Write the page, or the printed table, to this file, too.", metavar="FILE")
    share: Path | None = option(None, "Copy the result and its runs there, without names of folders.", metavar="FOLDER")

    @model_validator(mode="after")
    def _page_or_table(self) -> Self:
        """Refuse options of the page beside a printed table, and of a table that is not printed."""
        if self.latex or self.markdown:
            self._refuse("card", "figures", "galleries", because="has no effect beside --latex and --markdown")
        else:
            self._refuse("columns", "epochs", because="needs --latex or --markdown")
            if self.metric is not None:
                writes_no_page = "has no effect beside --metric, which writes no page"
                self._refuse("card", "figures", "galleries", "out", because=writes_no_page)
        return self

    def _refuse(self, *names: str, because: str) -> None:
        """Raise OptionError for the first of these options that is given."""
        for name in names:
            if name in self.model_fields_set:
                raise OptionError(f"--{name} {because}")


Sampler = Literal["tpe", "gp", "random", "cmaes", "grid"]
Pruner = Literal["median", "hyperband", "none"]


class StorageOptions(Options):
    """Where trials are kept: never set by a recipe, which may be somebody else's."""

    storage: str | None = option(
        None, "Database URL for Optuna [default: a journal file in RUNS/NAME]; workers share RUNS."
    )


class Study(UntilOptions, RunSettings, WorkerOptions, StorageOptions, TrackedOptions):
    """Options of `negbench study`."""

    in_recipe: ClassVar[bool] = True
    trials: int | None = option(None, "Total trials; rerun with more to continue [default: 40].", ge=1, le=1_000_000)
    seeds: int = option(1, "Runs per trial; its score is their mean.", ge=1, le=MANY_SEEDS)
    search: tuple[str, ...] = option(
        (), "Set or add a range; append :log for a log scale, or list choices as KEY=a|b|c.", metavar="KEY=LOW:HIGH"
    )
    fix: tuple[str, ...] = option((), "Do not search this key: keep its value.", metavar="KEY")
    sampler: Sampler = option("tpe", "tpe, gp, random, cmaes, or grid over listed values.")
    pruner: Pruner = option("median", "median, hyperband or none.")
    final_seeds: int = option(
        3,
        "Fresh seeds to compare the best trial with the default; 0: none; with --until, seeds at the first look.",
        ge=0,
        le=MANY_SEEDS,
    )
    metric: str | None = option(
        None,
        "Metric by which trials are scored and the best is compared with the default, e.g. R@1 [default: the data "
        "set's main metric].",
    )
    name: FolderName | None = option(None, "Folder and MLflow experiment [default: named after the options].")
