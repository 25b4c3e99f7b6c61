"""What is known of a model as it is now: a thing that several look at is computed once, until training goes on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")


class Known:
    """Values by key, of one model between two steps of its training. Runs of a stack may share a model, and this."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of `key`, made now unless it is there; whoever names a key means the same by it."""
        if key not in self._values:
            self._values[key] = make()
        found: Value = self._values[key]
        return found

    def forget(self) -> None:
        """The model moves, or another one is looked at."""
        self._values.clear()
