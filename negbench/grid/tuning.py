"""Tuning of one strategy of a comparison at equal budgets; comparison.json lists the tunings under `tuned`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT, TUNED = "default", "tuned"  # values of the axis `settings`


@dataclass(frozen=True)
class Tuning:
    """Result of tuning one strategy.

    Attributes:
        labels: strategy, loss, backbone, data set, as tables print them.
        study: name of the study; '' if the strategy has nothing to tune.
        knobs: keys that were searched.
        trials: number of trials that ended.
        seconds: computing time of all trials.
        default, best: main metric of the default and of the best trial on the dev part; None (null) without trials.
        found: key -> value of the best trial; empty if that is the default.
        error: why there is no result; '' if there is one.
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
