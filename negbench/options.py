"""Options of commands: one frozen model each, from which flags, recipe keys, the Python call and the checks derive.

`negbench compare --seeds 5`, `[compare] seeds = 5` in a recipe and `negbench.compare(negbench.Compare(seeds=5))` are
the same field of `Compare`. A model imports neither torch nor the code of its command.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from negbench.errors import OptionError, UnknownNameError, quoted

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
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else ""
            shown = f"--{name.replace('_', '-')}" if name in flags else f"{table}.{name}"
            problem = first["msg"].removeprefix("Value error, ")
            raise OptionError(f"{shown} {quoted(first['input'])}: {problem[0].lower()}{problem[1:]}") from error


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


# --- data sets -----------------------------------------------------------------------------------------------------


class FetchData(Options):
    """Options of `negbench data fetch`."""

    dataset: Literal["emoji"] = option(..., "Data set: emoji.", argument=True, recipe=False)
    out: Path | None = option(
        None, "Folder for its packages [default: NEGBENCH_DATA, else ./data, and in it emoji].", recipe=False
    )


# --- inspect -------------------------------------------------------------------------------------------------------


class Report(RunsOptions):
    """Options of `negbench report`."""

    name: str = option(..., "A comparison, a study, or a run by its id or a part of it.", argument=True)
    galleries: int = option(2, "Queries shown of each kind (best, worst, random); 0 writes no images.", ge=0, le=20)
