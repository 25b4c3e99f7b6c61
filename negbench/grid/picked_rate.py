"""The learning rate that a group was given, as comparison.json holds it."""

from collections.abc import Mapping
from dataclasses import dataclass

STEP = 3.0  # beyond an end, the grid of rates goes on by this factor


@dataclass(frozen=True)
class PickedRate:
    """One group's learning rate; comparison.json holds them under `rates`.

    Attributes:
        labels: labels of the group.
        seed: seed of the trials.
        lr: the chosen rate, or the configured one if no trial is finished.
        tried: (rate, main metric on the dev part) of each trial, lowest rate first; None if it is not finished.
        error: standard error of the difference between the best two rates, paired over queries; None if fewer are
            finished.
        queries: size of the dev part.
        generated: whether the dev part was generated, instead of carved from train.
        metric: the one by which the rate was chosen, if it is not the data set's main metric.
    """

    labels: Mapping[str, str]
    seed: int
    lr: float
    tried: tuple[tuple[float, float | None], ...]
    error: float | None = None
    queries: int = 0
    generated: bool = False
    metric: str = ""

    @property
    def beyond(self) -> float | None:
        """The next rate if the best one is the lowest or the highest that was tried; None if it lies between."""
        known = {rate: value for rate, value in self.tried if value is not None}
        best = [rate for rate, value in known.items() if value == max(known.values())]
        (low, *_), (high, *_) = self.tried[0], self.tried[-1]
        return low / STEP if best == [low] else high * STEP if best == [high] else None
