"""Spies: functions that note how they are called and then do what the original does."""

import functools
from collections.abc import Callable
from typing import Any


def spy(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> Callable[..., Any]:
    """Return a function that adds the positional arguments of each call to `calls`, then calls `function`."""

    @functools.wraps(function)
    def note_and_call(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return function(*arguments, **options)

    return note_and_call
