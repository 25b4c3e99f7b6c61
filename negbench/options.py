"""Options of commands: one frozen model each, from which flags, recipe keys, the Python call and the checks derive.

`negbench compare --seeds 5`, `[compare] seeds = 5` in a recipe and `negbench.compare(negbench.Compare(seeds=5))` are
the same field of `Compare`. A model imports neither torch nor the code of its command.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from negbench.errors import OptionError, UnknownNameError, quoted
from negbench.files import checked_name

MOVES_SCORES = False


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


class Options(BaseModel):
    """Base of the options of a command: frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)

    @classmethod
    def parsed(cls, given: Mapping[str, Any], *, recipe: Any = None, table: str = "") -> Self:
        """Options from flags over a recipe's table over the defaults.

        Args:
            given: field -> value; None counts as not given.
            recipe: the table of a recipe, field -> value, as it was read.
            table: its name, for messages.

        Raises:
            OptionError, UnknownNameError: a value or a key that the command does not take.
        """
        flags = {name: value for name, value in given.items() if value is not None}
        if recipe is not None and not isinstance(recipe, Mapping):
            raise OptionError(f"recipe's {table} = {quoted(recipe)}: want a table, [{table}]")
        allowed = [name for name, field in cls.model_fields.items() if extra_of(field)["recipe"]]
        for name in recipe or {}:
            if name not in allowed:
                raise UnknownNameError("key", f"{table}.{name}", [f"{table}.{key}" for key in allowed])
        try:
            return cls(**{**(recipe or {}), **flags})
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else ""
            shown = f"--{name.replace('_', '-')}" if name in flags else f"{table}.{name}"
            problem = first["msg"].removeprefix("Value error, ")
            raise OptionError(f"{shown} {quoted(first['input'])}: {problem[0].lower()}{problem[1:]}") from error

    def over(self, recipe: Any, table: str) -> Self:
        """These options over a recipe's table; errors as `parsed`."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return self.parsed(given, recipe=recipe, table=table)


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


# --- inspect -------------------------------------------------------------------------------------------------------


class Report(RunsOptions):
    """Options of `negbench report`."""

    name: str = option(..., "A comparison, a study, or a run by its id or a part of it.", argument=True)
    galleries: int = option(2, "Queries shown of each kind (best, worst, random); 0 writes no images.", ge=0, le=20)


def _folder_name(given: str) -> str:
    return checked_name(given, "--name")


FolderName = Annotated[str, AfterValidator(_folder_name)]

# --- study ---------------------------------------------------------------------------------------------------------

Sampler = Literal["tpe", "gp", "random", "cmaes", "grid"]
Pruner = Literal["median", "hyperband", "none"]
Minimise = Literal["mining-seconds", "false-negative-rate"]


class RunSettings(Options):
    """What a run is made of; a plug-in is named as on the command line, by a table, or given as an object."""

    strategy: Any = option(
        None, "Strategy (see `list strategies`); options as qure:variant=release.", cli=str, recipe=False
    )
    backbone: Any = option(None, "Model family [default: tiny].", cli=str, recipe=False)
    dataset: Any = option(
        None, "Data set, or triplets: a file, or hf:NAME [default: synthetic].", cli=str, recipe=False
    )
    loss: Any = option(None, "Loss [default: bradley-terry].", cli=str, recipe=False)
    seed: int | None = option(None, "Fixes initial weights, batches and draws [default: 0].", recipe=False)
    data_root: Path | None = option(None, "Folder of the data set [default: the variable NEGBENCH_DATA].", recipe=False)
    allow_missing: bool = option(False, "Go on without missing images; marks the result partial.", recipe=False)
    recipe: Path | None = option(
        None, "TOML file of settings, or a name (see `list recipes`); flags override it.", recipe=False
    )
    sets: tuple[str, ...] = option(
        (), "Set any key, e.g. train.epochs=12.", flags=("--set",), metavar="SECTION.KEY=VALUE", recipe=False
    )
    plugin: tuple[Path, ...] = option(
        (), "Python file with your own strategy, loss, ...", metavar="FILE.py", recipe=False
    )


class WorkerOptions(Options):
    """Where tasks are computed, and how many at a time."""

    workers: int | None = option(
        None, "Computed at a time [default: 1; with ray as many as there is room for].", ge=1, recipe=False
    )
    executor: Any = option(
        "pool",
        "Where: pool, processes of this machine; ray, tasks of a Ray cluster, each with one CPU and, where nodes have "
        "GPUs, one GPU, or as ray:cpus=4:gpus=0.5 says.",
        cli=str,
        recipe=False,
    )
    address: str | None = option(
        None,
        "With ray: HOST:PORT of the cluster's head [default: RAY_ADDRESS, else this machine alone].",
        recipe=False,
    )


class Study(RunSettings, WorkerOptions, TrackedOptions):
    """Options of `negbench study`."""

    trials: int | None = option(None, "Trials in all; a higher number continues the study [default: 40].", ge=1)
    seeds: int = option(1, "Runs per trial, whose mean counts.", ge=1)
    search: tuple[str, ...] = option(
        (), "Set or add a range; append :log for a log scale, or list choices as KEY=a|b|c.", metavar="KEY=LOW:HIGH"
    )
    fix: tuple[str, ...] = option(
        (), "Do not search this key: keep its value, or set it to VALUE.", metavar="KEY[=VALUE]"
    )
    points: tuple[dict[str, Any], ...] = option(
        (), "Points that are computed instead of a search, each key -> value; the default is added.", cli=False
    )
    force: bool = option(False, "Search more than five knobs.")
    minimise: Minimise | None = option(
        None, "Second objective: mining-seconds or false-negative-rate (nothing is pruned)."
    )
    sampler: Sampler = option("tpe", "tpe, gp, random, cmaes, or grid over listed values.")
    pruner: Pruner = option("median", "median, hyperband or none.")
    storage: str | None = option(
        None,
        "postgresql://USER@HOST/DATABASE [default: a journal file in RUNS/NAME].",
        recipe=False,
    )
    final_seeds: int | None = option(
        None, "Fresh seeds on which the best runs beside the default; 0 for none [default: 3].", ge=0
    )
    name: FolderName | None = option(None, "Folder and MLflow experiment [default: from the settings].", recipe=False)
