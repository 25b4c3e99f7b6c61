"""The search of one strategy of a comparison at equal tuning; comparison.json holds them under `tuned`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tuning:
    """One strategy's search.

    Attributes:
        labels: strategy, loss, backbone, data set, as tables print them.
        study: its name; '' where the strategy has nothing to tune.
        knobs: keys that were searched.
        trials: how many ended, of those asked for.
        seconds: of computing, over all trials.
        default, best: the main metric on the dev part; NaN (null) without trials.
        found: key -> value of the best trial; empty where that is the default.
        error: why there is no result; '' else.
    """

    labels: Mapping[str, str]
    study: str = ""
    knobs: tuple[str, ...] = ()
    trials: int = 0
    seconds: float = 0.0
    default: float | None = None
    best: float | None = None
    found: Mapping[str, Any] | None = None
    error: str = ""
