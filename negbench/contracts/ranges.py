"""How a field of a plug-in declares its values: allowed ones by its type, those of `negbench study` by `tunable`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from negbench.errors import OptionError, check_option, quoted


@dataclass(frozen=True)
class Range:
    """Where `negbench study` may move a field: [low, high] (both included), or one of `choices`.

    `below` names the field that this one must stay below: the two are a band, searched as its start and its width.
    """

    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()
    below: str = ""


def tunable(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
    choices: Sequence[Any] = (),
    below: str = "",
) -> Any:
    """Dataclass field with a default and, beside it, the range that `negbench study` searches.

    Example: ``k: int = tunable(100, low=10, high=1000, log=True)``.
    """
    if (low is None) != (high is None) or (low is None) == (not choices):
        raise ValueError("tunable() takes either low and high, or choices")
    found = Range(low=low, high=high, log=log, choices=tuple(choices), below=below)
    return field(default=default, metadata={"range": found})


def tunable_ranges(cls: type) -> dict[str, Range]:
    """Name -> range of every tunable field of a dataclass, in the order of declaration."""
    return {f.name: f.metadata["range"] for f in dataclasses.fields(cls) if "range" in f.metadata}


def check_fields(plugin: Any) -> None:
    """Raise OptionError where a field of a dataclass is not of its type, or not below the one that its range names.

    Types may be pydantic's, which hold bounds: `PositiveInt`, `Annotated[float, Field(ge=0, le=1)]`, `Literal[...]`.
    Numbers must be finite.
    """
    for name, adapter in _adapters(type(plugin)).items():  # type: ignore[arg-type]  # a class can be hashed
        try:
            adapter.validate_python(getattr(plugin, name))
        except ValidationError as error:
            want = error.errors()[0]["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
            raise OptionError(f"{name} must be {want}, got {quoted(getattr(plugin, name))}") from error
    for name, span in tunable_ranges(type(plugin)).items():
        if span.below:
            low, high = getattr(plugin, name), getattr(plugin, span.below)
            check_option(name, low, low < high, f"below {span.below} ({high})")


@cache
def _adapters(cls: type) -> dict[str, TypeAdapter[Any]]:
    """Name -> what checks a field."""
    config = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError:  # a type that only a function or a type checker knows
        return {}
    return {field.name: TypeAdapter(hints[field.name], config=config) for field in dataclasses.fields(cls)}
