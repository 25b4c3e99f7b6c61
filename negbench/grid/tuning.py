"""What a comparison at equal tuning found: one entry for each strategy, loss, backbone and data set; tuned.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from negbench.files import read_json, write_json

FILE = "tuned.json"  # in the folder of the comparison at defaults
SUFFIX = "-tuned"  # of the name of the comparison with the settings found


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


def write_tunings(folder: Path, trials: int, found: Sequence[Tuning]) -> None:
    """tuned.json of a comparison's folder; `trials`: the budget of each."""
    write_json(folder / FILE, {"trials": trials, "tunings": [asdict(each) for each in found]})


def read_tunings(folder: Path) -> tuple[int, list[Tuning]]:
    """The budget, and what `write_tunings` wrote; (0, []) where there is none."""
    if not (folder / FILE).exists():
        return 0, []
    kept = read_json(folder / FILE)
    return int(kept["trials"]), [Tuning(**{**each, "knobs": tuple(each["knobs"])}) for each in kept["tunings"]]
