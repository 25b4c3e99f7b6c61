"""Values of plug-in fields: the type gives the allowed ones, `tunable` those that `negbench study` searches."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from negbench.errors import OptionError, check_option, short_repr


@dataclass(frozen=True)
class Range:
    """Search range of a field in `negbench study`: [low, high] (both included), or one of `choices`.

    `below` names the field that this one must stay below: the two form a band, searched as its start and width.
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
    """Declare a dataclass field with a default and the range that `negbench study` searches.

    Example: ``k: int = tunable(100, low=10, high=1000, log=True)``.
    """
    if (low is None) != (high is None) or (low is None) == (not choices):
        raise ValueError("tunable() takes either low and high, or choices")
    domain = Range(low=low, high=high, log=log, choices=tuple(choices), below=below)
    return field(default=default, metadata={"range": domain})


def tunable_ranges(cls: type) -> dict[str, Range]:
    """Return name -> range of every tunable field of a dataclass, in the order of declaration."""
    return {f.name: f.metadata["range"] for f in dataclasses.fields(cls) if "range" in f.metadata}


def check_fields(plugin: Any) -> None:
    """Raise OptionError if a dataclass field has the wrong type, or is not below the field that its range names.

    Types may be pydantic's, which hold bounds: `PositiveInt`, `Annotated[float, Field(ge=0, le=1)]`, `Literal[...]`.
    Numbers must be finite.
    """
    for name, adapter in _adapters(type(plugin)).items():  # type: ignore[arg-type]  # a class can be hashed
        try:
            adapter.validate_python(getattr(plugin, name))
        except ValidationError as error:
            want = error.errors()[0]["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
            raise OptionError(f"{name} must be {want}, got {short_repr(getattr(plugin, name))}") from error
    for name, span in tunable_ranges(type(plugin)).items():
        if span.below:
            low = getattr(plugin, name)
            high = getattr(plugin, span.below)
            if not isinstance(low, str) and not isinstance(high, str):  # shares of a gallery are compared in it
                check_option(name, low, low < high, f"below {span.below} ({high})")


@cache
def _adapters(cls: type) -> dict[str, TypeAdapter[Any]]:
    """Return field name -> validator."""
    config = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError:  # a type that only a function or a type checker knows
        return {}
    return {field.name: TypeAdapter(hints[field.name], config=config) for field in dataclasses.fields(cls)}
