"""What papers publish of their strategies in training, and whether a finished run shows it.

A world is in a paper's regime as far as the paper's strategy behaves there as published. Verdicts on what a paper
claims to be better stand in `negbench.claims`; here is only what one run of one strategy can show. What is marked is
the run's own value: one seed, no test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from negbench.metrics.epochs import event_effect, late_slope, slope
from negbench.runfolder import RunFolder

DEGRADED = 0.005  # of the main metric: a fall from the best epoch that is more than noise of single queries


@dataclass(frozen=True)
class Behaviour:
    """One published behaviour, and what a run shows of it.

    Attributes:
        name: what is published, in words.
        source: paper and figure.
        shown: whether the run shows it; None where the run cannot tell (too few refreshes, no ground truth).
        value: what was measured, in `unit`; NaN where `shown` is None.
        unit: of the value.
    """

    name: str
    source: str
    shown: bool | None
    value: float
    unit: str


@dataclass(frozen=True, eq=False)
class _Finished:
    folder: RunFolder

    @cached_property
    def result(self) -> dict[str, Any]:
        return self.folder.result

    @cached_property
    def points(self) -> list[dict[str, float]]:
        return [point for point in self.folder.metrics() if point["epoch"] >= 0]

    def refreshes(self, name: str) -> list[float]:
        """A statistic of mining at each refresh of the strategy."""
        return [_known(row.get(name)) for row in self.result["behaviour_by_refresh"]]

    def card(self, name: str) -> list[float]:
        """A number of the regime card at each refresh and at the end."""
        return [_known(card.get(name)) for card in (*self.result["regime_by_refresh"], self.result["regime"])]

    def main(self) -> tuple[list[float], list[float]]:
        """Epochs and the main metric after them."""
        return self.series(f"{self.folder.manifest['dataset']['scored']}/{self.result['main_metric']}")

    def series(self, name: str) -> tuple[list[float], list[float]]:
        found = [point for point in self.points if name in point]
        return [point["epoch"] for point in found], [point[name] for point in found]


def _known(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _trend(run: _Finished) -> float:
    sizes = run.refreshes("pool_size")
    return float(slope(sizes)) if len(sizes) > 1 else math.nan


def _rise(run: _Finished) -> float:
    before, after, *rest = run.card("band_start_median")
    return before - after if rest else math.nan  # else the second is the end


def _fall(run: _Finished) -> float:
    _, values = run.main()
    return max(values) - values[-1] if len(values) > 1 else math.nan


def _late(run: _Finished) -> float:
    epochs, values = run.main()
    return late_slope(values, epochs)


def _at_refresh(run: _Finished, series: tuple[list[float], list[float]]) -> float:
    epochs, values = series
    return event_effect(values, run.result["refresh_epochs"]) if epochs == list(range(len(epochs))) else math.nan


def _cleaner(run: _Finished) -> float:
    return run.card("false_negatives")[-1] - _known(run.result["behaviour"].get("false_negative_rate_draws"))


def _harder(run: _Finished) -> float:
    return 0.5 - _known(run.result["behaviour"].get("band_mean"))


@dataclass(frozen=True)
class _Published:
    name: str
    sources: Mapping[str, str]  # strategy -> paper and figure
    measure: Callable[[_Finished], float]
    shows: Callable[[float], bool]
    unit: str


def _rises(value: float) -> bool:
    return value > 0


def _falls(value: float) -> bool:
    return value < 0


_PUBLISHED = (
    _Published(
        "its sets shrink from refresh to refresh",
        {"qure": "QuRe fig. 5", "dqe": "DQE-CIR fig. 7"},
        _trend,
        _falls,
        "images a refresh",
    ),
    _Published(
        "the band lies higher after the warm-up than before training",
        {"qure": "QuRe fig. 7-8"},
        _rise,
        _rises,
        "of the ranking",
    ),
    _Published(
        "the metric rises, then degrades",
        {"top-k": "QuRe fig. 4"},
        _fall,
        lambda value: value >= DEGRADED,
        "below its best epoch",
    ),
    _Published(
        "the metric declines slightly in the end",
        {"after-target": "QuRe fig. 4"},
        _late,
        _falls,
        "an epoch, last third",
    ),
    _Published(
        "the metric improves to the end", {"all-corpus": "QuRe fig. 4"}, _late, _rises, "an epoch, last third"
    ),
    _Published(
        "a redefinition lifts the metric",
        {"cirqrs": "CIRQRS fig. 3"},
        lambda run: _at_refresh(run, run.main()),
        _rises,
        "beyond the epochs beside it",
    ),
    _Published(
        "a redefinition raises the loss at once",
        {"cirqrs": "CIRQRS fig. 3"},
        lambda run: _at_refresh(run, run.series("train/loss")),
        _rises,
        "beyond the epochs beside it",
    ),
    _Published(
        "most of what scores right above the target is relevant",
        {"cirqrs": "CIRQRS app. B.2"},
        lambda run: run.card("false_negatives_above")[-1],
        lambda value: value > 0.5,
        "of the images",
    ),
    _Published(
        "its draws hold fewer false negatives than random ones", {"dqe": "DQE-CIR sec. 3.3"}, _cleaner, _rises,
        "of the draws",
    ),
    _Published(
        "its draws are harder than random ones", {"dqe": "DQE-CIR sec. 3.3"}, _harder, _rises, "of the ranking"
    ),
)  # fmt: skip


def published_behaviours(folder: RunFolder) -> list[Behaviour]:
    """What is published of a finished run's strategy, marked as shown or not; empty where nothing is.

    Raises:
        RunError: the run is not finished.
    """
    run, strategy = _Finished(folder), folder.config.strategy.name
    found = []
    for published in _PUBLISHED:
        if strategy in published.sources:
            value = published.measure(run)
            shown = None if math.isnan(value) else published.shows(value)
            found.append(Behaviour(published.name, published.sources[strategy], shown, value, published.unit))
    return found
