"""Along dials: who is best where, crossings against closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from negbench.analysis import crossings as along
from negbench.analysis.crossings import Crossing, crossings_of, dials_answer, points_frame
from negbench.analysis.verdicts import Rules, VerdictTable, rows_of
from negbench.grid.dials import Dial, Dials
from negbench.scoring.stored import Values

LABELS = {"loss": "l", "backbone": "b", "dataset": "d"}


def of(**dials: list[Any]) -> Dials:
    return Dials(tuple(Dial(f"dataset.{key}", tuple(values)) for key, values in dials.items()))


def table(point: str, **values: Any) -> VerdictTable:
    found = {name: Values(each, tuple(range(len(each))), None) for name, each in values.items()}
    return VerdictTable({**LABELS, "point": point}, "recall_at_10", {"recall_at_10": found})


def hits(seed: int, rate: float, shape: tuple[int, int] = (5, 1500)) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).random(shape) < rate).astype(float)


def test_the_best_and_those_that_share_first_place() -> None:
    dials = of(x=[1, 2])
    tables = [
        table("x=1", a=hits(0, 0.5), b=hits(1, 0.2), c=hits(2, 0.5)),
        table("x=2", a=hits(3, 0.2), b=hits(4, 0.6), c=hits(5, 0.3)),
    ]
    rows = [row for each in tables for row in rows_of(each, Rules())]
    point = along.at_point(rows, "x=1")
    assert {row.strategy for row in point[:2]} == {"a", "c"} == set(along.unbeaten(point))
    assert point[2].behind == pytest.approx(point[0].mean - point[2].mean)
    assert 0 < point[2].behind_low < point[2].behind < point[2].behind_high
    assert math.isnan(point[0].behind)
    lines = dials_answer(dials, rows, [])
    assert lines[0] == (
        "2 points (R@10, 5 seeds, 1500 queries a point): one strategy beats all others at 1; at 1 several share first "
        "place."
    )
    assert lines[1] == "b is best at x=2."
    assert lines[2] == "Over all points: a, b and c are best or share first place at 1 of 2."
    frame = points_frame(dials, rows)
    assert list(frame["best"]) == [point[0].strategy, "b"]
    assert frame.loc[1, "not beaten"] == "b"
    assert frame.loc[1, "b"].endswith(" (1)")  # its rank
    assert len({frame.loc[1, name].split()[1] for name in "abc"}) == 3


def test_zeros_by_hand() -> None:
    x = [0.0, 1.0, 3.0]
    found = [along._zero(x, gaps) for gaps in ([-1.0, 1.0, 2.0], [3.0, 1.0, -1.0], [2.0, -2.0, 2.0])]
    assert found == pytest.approx([0.5, 2.0, 0.5])  # the first of two
    assert math.isnan(along._zero(x, [-1.0, -2.0, -3.0]))


def crossing(means: dict[int, tuple[float, float]], spread: float = 0.0) -> list[Crossing]:
    """Crossings of two strategies with these means at each value of a dial; each query repeats the mean, plus noise."""
    generator = np.random.default_rng(1)
    tables = []
    for value, pair in means.items():
        noise = [spread * generator.normal(size=(4, 300)) for _ in pair]
        tables.append(table(f"x={value}", **{n: m + e for n, m, e in zip("ab", pair, noise, strict=True)}))
    rows = [row for each in tables for row in rows_of(each, Rules())]
    return crossings_of(of(x=list(means)), tables, rows)


def test_a_crossing_lies_where_the_lines_do() -> None:
    """a - b is -2, -1, 1 (percent) at 10, 20, 30: it is 0 at 25, and the order is known at 20 and 30."""
    (found,) = crossing({10: (0.30, 0.32), 20: (0.30, 0.31), 30: (0.32, 0.31)})
    assert (found.before, found.after) == ("b", "a")
    assert found.at == pytest.approx(25)
    assert (found.low, found.high) == (20, 30)
    assert found.decided
    assert crossing({10: (0.30, 0.32), 20: (0.30, 0.31)}) == []
    (noise,) = crossing({10: (0.30, 0.301), 20: (0.301, 0.30)}, spread=0.5)
    assert not noise.decided
    assert 10 < noise.at < 20
    (wide,) = crossing({10: (0.30, 0.32), 20: (0.3, 0.301), 30: (0.32, 0.31)}, spread=0.02)
    assert (wide.low, wide.high) == (10, 30)  # at 20 neither beats the other
    shown = along.crossings_frame([noise, found])
    assert list(shown["verdict"]) == ["decided", "undecided"]
    assert shown.loc[0, "overtakes"] == "a > b"
