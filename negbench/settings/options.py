"""Options of commands: one frozen model each, from which flags, recipe keys, the Python call and the checks derive.

`negbench compare --seeds 5`, `[compare] seeds = 5` in a recipe and `negbench.compare(seeds=5)` are the same field of
`Compare`. A model imports neither torch nor the code of its command.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from negbench.errors import NegbenchError, OptionError, UnknownNameError, quoted
from negbench.machine.files import checked_name

MOVES_SCORES = False

_HELP = tomllib.loads(Path(__file__).with_name("help.toml").read_text(encoding="utf-8"))  # class -> field -> sentence

PluginSpec = str | Mapping[str, Any]  # a plug-in: NAME, NAME:option=value, or a table {"name": ..., option: ...}
PluginSpecs = PluginSpec | Sequence[PluginSpec]  # several, as 'a,b' or as a list


def option(
    default: Any = None,
    *,
    flags: tuple[str, ...] = (),
    metavar: str | None = None,
    cli: Any = None,
    argument: bool = False,
    **checks: Any,
) -> Any:
    """Declare a field of an `Options` model; `help.toml` describes it.

    Args:
        default: `...` if it is required.
        flags: names on the command line; default: the field's name, with dashes.
        metavar: placeholder of the value in the help.
        cli: type of the flag, if it differs from the field's (text that a validator parses); False: no flag.
        argument: whether it is positional on the command line.
        checks: pydantic's, such as `ge=1`.
    """
    extra = {"flags": flags, "metavar": metavar, "cli": cli, "argument": argument}
    return Field(default, json_schema_extra=extra, **checks)


class Options(BaseModel):
    """Base of the options of a command: frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
    in_recipe: ClassVar[bool] = False  # whether a recipe's table may set the fields that this very class declares
    section: ClassVar[str] = "Options"  # of the help that lists the fields that this very class declares

    def __init__(self, **given: Any) -> None:
        """Check the options; raise OptionError or UnknownNameError for the first that does not fit."""
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise _mistake(error, type(self), lambda name: name) from error

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Describe the fields that the class declares."""
        for name in set(cls.__annotations__) & set(cls.model_fields):
            cls.model_fields[name].description = _HELP[cls.__name__][name]

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # `model_validate` does not call it

    def replace(self, **given: Any) -> Self:
        """Return these options with other values for the fields that are named.

        Raises:
            OptionError, UnknownNameError: a value or a name that the command does not accept.
        """
        return type(self)(**{name: getattr(self, name) for name in self.model_fields_set} | given)

    @classmethod
    def parsed(cls, given: Mapping[str, Any]) -> Self:
        """Create options from flags: field -> value.

        Raises:
            OptionError, UnknownNameError: a value or a key that the command does not accept.
        """
        return cls._of(given, lambda name: _flag(cls, name))

    def over(self, recipe: Any, table: str) -> Self:
        """Return these options merged over a recipe's table, which overrides the defaults.

        Args:
            recipe: field -> value, as it was read; None: no table.
            table: its name, for messages.

        Raises:
            OptionError, UnknownNameError: a value or a key that the command does not accept.
        """
        if recipe is not None and not isinstance(recipe, Mapping):
            raise OptionError(f"recipe's {table} = {quoted(recipe)}: expected a table, [{table}]")
        bases = [each for each in type(self).__mro__ if vars(each).get("in_recipe")]
        allowed = [name for each in bases for name in each.__annotations__ if name in type(self).model_fields]
        for name in recipe or {}:
            if name not in allowed:
                raise UnknownNameError("key", f"{table}.{name}", [f"{table}.{key}" for key in allowed])
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return self._of({**(recipe or {}), **given}, lambda name: f"{table}.{name}")

    @classmethod
    def _of(cls, given: Mapping[str, Any], shown: Callable[[str], str]) -> Self:
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            raise _mistake(error, cls, shown) from error


def _flag(model: type[Options], name: str) -> str:
    """Return a field's name on the command line."""
    if name not in model.model_fields:
        return name
    extra = extra_of(model.model_fields[name])
    return name.upper() if extra["argument"] else next(iter(extra["flags"]), f"--{name.replace('_', '-')}")


def _mistake(error: ValidationError, model: type[Options], shown: Callable[[str], str]) -> NegbenchError:
    """Return the first mistake as a one-line error."""
    first = error.errors()[0]
    problem = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # of several fields together
        return OptionError(problem)
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return UnknownNameError("option", name, model.model_fields)
    return OptionError(f"{shown(name)} {quoted(first['input'])}: {problem[0].lower()}{problem[1:]}")


def extra_of(field: Any) -> dict[str, Any]:
    """Return the arguments of `option` that are not pydantic's."""
    return dict(field.json_schema_extra or option().json_schema_extra)


# --- values ----------------------------------------------------------------------------------------------------------

MANY_SEEDS = 1_000  # more than anybody computes: every cell is planned before the first is computed


def parse_seeds(given: Any) -> tuple[int, ...]:
    """Parse seeds: 3 or '3' -> 0, 1, 2; '0,5,7' or [0, 5, 7] -> as listed."""
    count = isinstance(given, int) or (isinstance(given, str) and "," not in given)
    want = "a count (3) or a list of different seeds (0,1,2)"
    numbers = _whole_numbers("--seeds", [given] if isinstance(given, int) else given, 0, want)
    if count and numbers:
        numbers = tuple(range(min(numbers[0], MANY_SEEDS + 1)))
    if len(numbers) > MANY_SEEDS:
        raise OptionError(f"--seeds {given!r}: at most {MANY_SEEDS:,} are allowed")
    if not numbers:
        raise OptionError(f"--seeds {given!r}: expected {want}")
    return numbers


def parse_budget(given: Any) -> float:
    """Parse '90s', '30m' or '2h' as seconds."""
    if isinstance(given, float):
        return given
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", str(given))
    if match is None:
        raise OptionError(f"--budget {given!r}: expected a number and its unit: 90s, 30m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def parse_negatives(given: Any) -> tuple[int, ...]:
    """Parse '1,5,63' (a flag) or [1, 5, 63] (a recipe) as (1, 5, 63)."""
    return _whole_numbers("--negatives", given, 1, "different numbers of at least 1, e.g. 1,5,63")


def parse_epochs(given: Any) -> tuple[int, ...]:
    """Parse '20,120' (a flag) or [20, 120] (a recipe) as (20, 120)."""
    return _whole_numbers("--epochs", given, 1, "different numbers of epochs, e.g. 20,60,180")


def _whole_numbers(flag: str, given: Any, least: int, want: str) -> tuple[int, ...]:
    """Parse '1,5' or [1, 5] as (1, 5): different whole numbers of at least `least`."""
    parts = given.split(",") if isinstance(given, str) else given
    try:
        numbers = tuple(int(part) for part in parts if str(part).strip())
    except (TypeError, ValueError) as error:
        raise OptionError(f"{flag} {given!r}: expected {want}") from error
    if any(number < least for number in numbers) or len(set(numbers)) != len(numbers):
        raise OptionError(f"{flag} {given!r}: expected {want}")
    return numbers


def _checked_rate(given: Any) -> Any:
    if given in ("grid", "fixed"):
        return given
    try:
        rate = float(given)
    except (TypeError, ValueError):
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise OptionError(f"--lr {given!r}: expected grid, fixed, or a number above 0, e.g. 1e-3")
    return rate


Seeds = Annotated[int | str | Sequence[int], BeforeValidator(parse_seeds)]
Negatives = Annotated[str | Sequence[int], BeforeValidator(parse_negatives)]
Epochs = Annotated[str | Sequence[int], BeforeValidator(parse_epochs)]
PairsToDecide = Literal["baseline", "all", "best"]
LearningRate = Annotated[float | Literal["grid", "fixed"], BeforeValidator(_checked_rate)]
Budget = Annotated[str | float, BeforeValidator(parse_budget)]  # seconds
FolderName = Annotated[str, AfterValidator(partial(checked_name, what="--name"))]


# --- shared by several commands ------------------------------------------------------------------------------------


class RunsOptions(Options):
    """Folder of the runs."""

    section: ClassVar[str] = "Computing"
    runs_dir: Path | None = option(None)


class TrackedOptions(RunsOptions):
    """Folder of the runs, and store of their MLflow copies."""

    section: ClassVar[str] = "Computing"
    tracking_uri: str | None = option(None)


class PluginOptions(Options):
    """Files with your own plug-ins."""

    section: ClassVar[str] = "Settings"
    plugin: tuple[Path, ...] = option((), metavar="FILE.py")


class SetOptions(PluginOptions):
    """Single settings."""

    section: ClassVar[str] = "Settings"
    sets: tuple[str, ...] = option((), flags=("--set",), metavar="SECTION.KEY=VALUE")


class SettingsOptions(SetOptions):
    """Settings of runs."""

    section: ClassVar[str] = "Settings"
    recipe: Path | None = option(None)


class DataOptions(Options):
    """Folder of a benchmark's files."""

    section: ClassVar[str] = "Data"
    data_root: Path | None = option(None)
    allow_missing: bool = option(False)


class DatasetOptions(SetOptions, DataOptions):
    """A data set: a name, NAME:option=value, or a table {"name": ..., option: ...}."""

    dataset: PluginSpec | None = option(None, cli=str)


class ModelOptions(DatasetOptions, SettingsOptions):
    """A backbone, given in the same ways, and a data set."""

    backbone: PluginSpec | None = option(None, cli=str)


class RunSettings(ModelOptions):
    """All plug-ins of one run."""

    strategy: PluginSpec | None = option(None, cli=str)
    loss: PluginSpec | None = option(None, cli=str)
    seed: int | None = option(None)


class WorkerOptions(Options):
    """Workers that compute tasks."""

    section: ClassVar[str] = "Computing"
    workers: int | None = option(None, ge=1)
    executor: Any = option("pool", cli=str)
    address: str | None = option(None)


class DryRunOptions(Options):
    """What every command that computes can do instead."""

    section: ClassVar[str] = "Output"
    dry_run: bool = option(False)


class UntilOptions(Options):
    """Number of seeds."""

    in_recipe: ClassVar[bool] = True
    until: Literal["decided"] | None = option(None)
    max_seeds: int = option(60, ge=2, le=MANY_SEEDS)
    budget: Budget | None = option(None, metavar="TIME")


# --- compare -------------------------------------------------------------------------------------------------------


class Run(RunSettings, TrackedOptions):
    """Options of `negbench run`."""

    system: str | None = option(None)


class Compare(UntilOptions, SettingsOptions, DataOptions, WorkerOptions, TrackedOptions):
    """Options of `negbench compare`: the axes, whose every combination is a cell, and how strategies are compared.

    A plug-in is a name, NAME:option=value, or a table {"name": ..., option: ...}; several are a list.
    """

    in_recipe: ClassVar[bool] = True
    strategies: PluginSpecs = option("cir", flags=("--strategies", "--strategy"), cli=str)
    losses: PluginSpecs | None = option(None, flags=("--losses", "--loss"), cli=str)
    backbones: PluginSpecs | None = option(None, flags=("--backbones", "--backbone"), cli=str)
    datasets: PluginSpecs | None = option(None, flags=("--datasets", "--dataset"), cli=str)
    seeds: Seeds = option(3, cli=str)
    pairs: PairsToDecide | None = option(None)
    negatives: Negatives = option((), cli=str)
    epochs: Epochs = option((), cli=str)
    dials: tuple[str, ...] = option((), flags=("--dial",), metavar="KEY=VALUE,VALUE")
    systems: PluginSpecs | None = option(None, cli=str)
    tuned: int | None = option(None, ge=1)
    lr: LearningRate | None = option(None, metavar="grid|fixed|VALUE", cli=str)
    name: FolderName | None = option(None)
    baseline: str | None = option(None)
    metric: str | None = option(None)
    margin: float = option(1.0, ge=0, lt=100)
    alpha: float = option(0.05, ge=0.001, lt=1)
    report: bool = option(True)

    @model_validator(mode="after")
    def _each_key_once(self) -> Self:
        """Refuse a dial that changes no result, and a key that two flags set."""
        taken = {"seed": "--seeds"}
        taken |= {"train.epochs": "--epochs"} if self.epochs else {}
        taken |= {"train.num_negatives": "--negatives"} if self.negatives else {}
        taken |= {"train.lr": f"--lr {self.lr:g}"} if isinstance(self.lr, float) else {}
        for text in (*(f"--dial {dial}" for dial in self.dials), *(f"--set {text}" for text in self.sets)):
            flag, key = (part.strip() for part in text.partition("=")[0].split(" ", 1))
            if flag == "--dial" and key.startswith("compute."):
                raise OptionError(f"{text}: {key} is where runs are computed, not part of them: use --set {key}=VALUE")
            if key in taken:
                raise OptionError(f"{text} and {taken[key]} set the same key: leave one of them out")
            taken |= {key: text} if flag == "--dial" else {}
        return self


# --- inspect -------------------------------------------------------------------------------------------------------


class Report(RunsOptions, PluginOptions):
    """Options of `negbench report`."""

    name: str = option(..., argument=True)
    galleries: int = option(2, ge=0, le=20)
    card: bool = option(False)
    figures: Literal["svg", "pdf", "png"] = option("svg")
    latex: bool = option(False)
    markdown: bool = option(False)
    columns: str = option("")
    epochs: Epochs = option((), cli=str)
    out: Path | None = option(None, metavar="FILE")

    @model_validator(mode="after")
    def _page_or_table(self) -> Self:
        """Refuse options of the page beside a printed table, and of a table that is not printed."""
        printing = self.latex or self.markdown
        need = "has no effect beside --latex and --markdown" if printing else "needs --latex or --markdown"
        for name in sorted(
            self.model_fields_set & ({"card", "figures", "galleries"} if printing else {"columns", "epochs"})
        ):
            raise OptionError(f"--{name} {need}")
        return self


Sampler = Literal["tpe", "gp", "random", "cmaes", "grid"]
Pruner = Literal["median", "hyperband", "none"]


class StorageOptions(Options):
    """Where trials are kept: never set by a recipe, which may be somebody else's."""

    storage: str | None = option(None)


class Study(UntilOptions, RunSettings, WorkerOptions, StorageOptions, TrackedOptions):
    """Options of `negbench study`."""

    in_recipe: ClassVar[bool] = True
    trials: int | None = option(None, ge=1, le=1_000_000)
    seeds: int = option(1, ge=1, le=MANY_SEEDS)
    search: tuple[str, ...] = option((), metavar="KEY=LOW:HIGH")
    fix: tuple[str, ...] = option((), metavar="KEY")
    sampler: Sampler = option("tpe")
    pruner: Pruner = option("median")
    final_seeds: int = option(3, ge=0, le=MANY_SEEDS)
    name: FolderName | None = option(None)
