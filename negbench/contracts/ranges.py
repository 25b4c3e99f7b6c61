"""How a field of a plug-in declares the range that `negbench study` searches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


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
