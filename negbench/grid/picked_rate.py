"""The learning rate that a group was given, as comparison.json holds it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

STEP = 3.0  # beyond an end, the grid of rates goes on by this factor


@dataclass(frozen=True)
class PickedRate:
    """One group's learning rate; comparison.json holds them under `rates`.

    Attributes:
        labels: labels of the group.
        seeds: seeds of the trials.
        lr: the chosen rate, or the configured one if no trial is finished.
        tried: (rate, metric on the dev part) of each rate, lowest first: the mean over seeds; None if a trial of it is
            not finished.
        runs: (rate, runs of its trials, one for each seed) of each finished rate.
        queries: size of the dev part.
        generated: whether the dev part was generated, instead of carved from train.
        metric: the one by which the rate was chosen; "" of an older version: the data set's main metric.
        common: whether all groups of its table were given one rate.
    """

    labels: Mapping[str, str]
    seeds: tuple[int, ...]
    lr: float
    tried: tuple[tuple[float, float | None], ...]
    runs: tuple[tuple[float, tuple[str, ...]], ...] = ()
    queries: int = 0
    generated: bool = False
    metric: str = ""
    common: bool = False

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        """Read a row of comparison.json, also of an older version, whose trials had one seed."""
        known = {key: value for key, value in row.items() if key not in ("seed", "error")}
        seeds = row["seeds"] if "seeds" in row else [row["seed"]]
        tried = tuple((rate, value) for rate, value in row["tried"])
        runs = tuple((rate, tuple(names)) for rate, names in row.get("runs", ()))
        return cls(**{**known, "seeds": tuple(seeds), "tried": tried, "runs": runs})

    @property
    def known(self) -> dict[float, float]:
        """Rate -> metric of the rates whose trials are finished, lowest rate first."""
        return {rate: value for rate, value in self.tried if value is not None}

    @property
    def below(self) -> float | None:
        """The next lower rate if the best one is the lowest that was tried; else None."""
        lowest = self.tried[0][0]
        return lowest / STEP if self._best() == [lowest] else None

    @property
    def above(self) -> float | None:
        """The next higher rate if the best one is the highest that was tried; else None."""
        highest = self.tried[-1][0]
        return highest * STEP if self._best() == [highest] else None

    def _best(self) -> list[float]:
        known = self.known
        return [rate for rate, value in known.items() if value == max(known.values())]


def best_rate(means: Mapping[float, float], configured: float) -> float:
    """Return the rate with the highest mean; of equal ones the nearest to the configured rate, which is the default.

    Args:
        means: rate -> mean of its trials.
        configured: the configured rate.
    """
    if not means:
        return configured
    return max(means, key=lambda rate: (round(means[rate], 10), -round(abs(math.log(rate / configured)), 3), -rate))
