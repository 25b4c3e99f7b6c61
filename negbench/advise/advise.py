"""Advice from a map: the worlds nearest to a regime card, what did well there, and how often such advice was right.

A map (`negbench map`) knows for each of its worlds how far every strategy was behind the best one. A data set is
looked up among them by its regime card. Whether that says anything is measured on the map itself: every world is held
out once, advised from the others, and compared with always advising the one strategy that did best on these others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from negbench.errors import DataError, NegbenchError
from negbench.files import read_json
from negbench.statistics import Interval

Array = NDArray[np.float64]
Moment = Literal["untrained", "trained"]

NEIGHBOURS = 5
MARGIN = 0.005  # of the metric: a strategy no further behind the best is as good
SHIPPED = "worlds.json"

_RESAMPLES = 5000
_LEVEL = 0.95
_SEED = 0xAD


def _same(value: float) -> float:
    return value


# what two cards are compared by, on a scale on which a difference means the same everywhere
FEATURES: Mapping[str, Callable[[float], float]] = {
    "images": math.log,
    "train_queries": math.log,
    "target_rank_median": math.log,
    "target_first": _same,
    "skewness": _same,
    "kurtosis": math.asinh,
    "tail": _same,
    "drop_prominence": math.log,
    "drop_prominence_second": math.log,
    "band_start_median": _same,
    "band_start_top": _same,
    "relevant": math.log,
    "false_negatives_above": _same,
    "false_negatives_below": _same,
    "recall_train": _same,
    "fit_gap": _same,
}


@dataclass(frozen=True)
class World:
    """One point of a map.

    Attributes:
        dials: name -> value.
        cards: the regime card before training and at its end (means over seeds, and over strategies).
        behind: strategy -> how far its mean is behind the best one's, in the unit of the metric.
        unbeaten: strategies that the best one does not beat.
    """

    dials: Mapping[str, Any]
    cards: Mapping[str, Mapping[str, float]]
    behind: Mapping[str, float]
    unbeaten: frozenset[str]

    def good(self, strategy: str) -> bool:
        """Whether a strategy is the best here or within the margin of it; not being beaten may only mean few seeds."""
        return self.behind[strategy] <= MARGIN

    @property
    def label(self) -> str:
        """'twins=1, tokens=4'."""
        return ", ".join(f"{name}={value}" for name, value in self.dials.items())


@dataclass(frozen=True)
class Worlds:
    """A map as a table: what it was made with, and its worlds."""

    metric: str
    seeds: int
    queries: int
    worlds: tuple[World, ...]

    @cached_property
    def strategies(self) -> tuple[str, ...]:
        """Those that every world knows."""
        return tuple(sorted(set.intersection(*(set(world.behind) for world in self.worlds))))

    @cached_property
    def behind(self) -> Array:
        """[worlds, strategies]."""
        return np.array([[world.behind[name] for name in self.strategies] for world in self.worlds])

    @cached_property
    def good(self) -> NDArray[np.bool_]:
        """[worlds, strategies]."""
        return np.array([[world.good(name) for name in self.strategies] for world in self.worlds])


def read_worlds(path: Path | None = None) -> Worlds:
    """The table that `negbench map` writes into its folder; None takes the one that ships with the package.

    Raises:
        DataError: no such table, or fewer than ten worlds or two strategies: nothing could be told from them.
    """
    if path is None:
        path = Path(str(package_files("negbench.advise") / SHIPPED))
    found = read_json(path)
    try:
        worlds = tuple(
            World(each["dials"], each["cards"], each["behind"], frozenset(each["unbeaten"])) for each in found["worlds"]
        )
        table = Worlds(found["metric"], found["seeds"], found["queries"], worlds)
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not the worlds of a map ({error}); `negbench map` writes them") from error
    if len(table.worlds) < 10 or len(table.strategies) < 2:
        raise DataError(f"{path}: {len(table.worlds)} worlds cannot advise: map at least 10, with two strategies")
    return table


# --- advising --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """How often advice was right on held-out worlds; shares of worlds, and points behind the best (unit of the metric).

    `gain`: share of `advised` minus that of `constant`, the one strategy that was best on the other worlds; its
    interval is over worlds. `regret` and `constant_regret`: mean distance to the best strategy.
    """

    worlds: int
    advised: float
    constant: float
    gain: Interval
    regret: float
    constant_regret: float

    @property
    def better(self) -> bool:
        """Whether advice from the card is better than always naming one strategy."""
        return self.gain.low > 0


@dataclass(frozen=True)
class Advice:
    """What to use.

    Attributes:
        strategy: the nearest worlds' best where that is better than a constant, else the constant.
        from_card: what the nearest worlds say.
        constant: the strategy with the smallest mean distance to the best over all worlds.
        expected: strategy -> expected distance behind the best, from the nearest worlds, the smallest first.
        nearest: the nearest worlds with their distances, in standard deviations per feature.
        features: that were compared.
        outside: features in which the card lies beyond all worlds, with its value and their ends.
        held: the measure.
    """

    strategy: str
    from_card: str
    constant: str
    expected: Mapping[str, float]
    nearest: tuple[tuple[World, float], ...]
    features: tuple[str, ...]
    outside: Mapping[str, tuple[float, float, float]]
    held: Held


def advise(card: Mapping[str, float], worlds: Worlds, moment: Moment, *, neighbours: int = NEIGHBOURS) -> Advice:
    """Advice for a regime card.

    Args:
        card: of `negbench.mining.regime`, and `train_queries`; features that are not known (NaN, absent) are left out.
        worlds: of a map.
        moment: whether the card is that of a model before training or of one at its end.
        neighbours: worlds that are asked.

    Raises:
        NegbenchError: nothing is known that the worlds know too.
    """
    names = tuple(
        name for name in FEATURES if _known(card, name) and all(_known(w.cards[moment], name) for w in worlds.worlds)
    )
    if not names:
        raise NegbenchError("the regime card and the map's worlds have no number in common: nothing can be compared")
    table = np.array([_scaled(world.cards[moment], names) for world in worlds.worlds])
    mine = np.array(_scaled(card, names))
    predicted, near, far = _predicted(table, worlds.behind, mine, neighbours)
    order = np.argsort(predicted, kind="stable")
    constant = worlds.strategies[int(worlds.behind.mean(0).argmin())]
    held = _held(table, worlds, neighbours)
    chosen = worlds.strategies[int(order[0])]
    return Advice(
        strategy=chosen if held.better else constant,
        from_card=chosen,
        constant=constant,
        expected={worlds.strategies[i]: float(predicted[i]) for i in order},
        nearest=tuple((worlds.worlds[i], float(d)) for i, d in zip(near, far, strict=True)),
        features=names,
        outside={
            name: (float(card[name]), *_ends(worlds, moment, name))
            for name, value, column in zip(names, mine, table.T, strict=True)
            if not column.min() <= value <= column.max()
        },
        held=held,
    )


def _known(card: Mapping[str, float], name: str) -> bool:
    value = card.get(name)
    return value is not None and math.isfinite(value) and (value > 0 or FEATURES[name] is not math.log)


def _scaled(card: Mapping[str, float], names: Sequence[str]) -> list[float]:
    return [FEATURES[name](float(card[name])) for name in names]


def _ends(worlds: Worlds, moment: Moment, name: str) -> tuple[float, float]:
    values = [float(world.cards[moment][name]) for world in worlds.worlds]
    return min(values), max(values)


def _predicted(table: Array, behind: Array, mine: Array, neighbours: int) -> tuple[Array, NDArray[np.intp], Array]:
    """Distances behind the best [strategies] from the nearest worlds, which these are, and how far."""
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    count = min(neighbours, len(table))
    model = make_pipeline(StandardScaler(), KNeighborsRegressor(count, weights="distance")).fit(table, behind)
    scaler, nearest = (step for _, step in model.steps)
    far, near = nearest.kneighbors(scaler.transform(mine[None]))
    return model.predict(mine[None])[0], near[0], far[0] / math.sqrt(len(mine))


def _held(table: Array, worlds: Worlds, neighbours: int) -> Held:
    """Every world advised from the others."""
    rows = np.arange(len(table))
    advised, constant = np.zeros(len(table), dtype=int), np.zeros(len(table), dtype=int)
    for row in rows:
        others = rows != row
        predicted, _, _ = _predicted(table[others], worlds.behind[others], table[row], neighbours)
        advised[row], constant[row] = predicted.argmin(), worlds.behind[others].mean(0).argmin()
    right, always = worlds.good[rows, advised].astype(float), worlds.good[rows, constant].astype(float)
    drawn = np.random.default_rng(_SEED).integers(len(rows), size=(_RESAMPLES, len(rows)))
    low, high = np.quantile((right - always)[drawn].mean(1), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Held(
        worlds=len(rows),
        advised=float(right.mean()),
        constant=float(always.mean()),
        gain=Interval(float(low), float(high), _LEVEL),
        regret=float(worlds.behind[rows, advised].mean()),
        constant_regret=float(worlds.behind[rows, constant].mean()),
    )
