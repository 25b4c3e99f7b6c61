"""Along dials: the best strategy at each point."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from negbench.analysis import dial_points as along
from negbench.analysis.dial_points import dials_answer, points_frame
from negbench.analysis.verdicts import Rules, VerdictTable, rows_of
from negbench.grid.dials import Dial, Dials
from negbench.scoring.stored import Values

LABELS = {"loss": "l", "backbone": "b", "dataset": "d"}


def of(**dials: list[Any]) -> Dials:
    return Dials(tuple(Dial(f"dataset.{key}", tuple(values)) for key, values in dials.items()))


def table(point: str, **values: Any) -> VerdictTable:
    by_strategy = {name: Values(each, tuple(range(len(each))), None) for name, each in values.items()}
    return VerdictTable({**LABELS, "point": point}, "recall_at_10", {"recall_at_10": by_strategy})


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
    lines = dials_answer(dials, rows)
    assert lines[0] == (
        "2 points (R@10, 5 seeds, 1500 queries per point): one strategy beats all others at 1; at 1 several share "
        "first place."
    )
    assert lines[1] == "b is best at x=2."
    assert lines[2] == "Over all points: a, b and c are best or share first place at 1 of 2."
    frame = points_frame(dials, rows)
    assert list(frame["best"]) == [point[0].strategy, "b"]
    assert frame.loc[1, "not beaten"] == "b"
    assert frame.loc[1, "b"].endswith(" (1)")  # its rank
    assert len({frame.loc[1, name].split()[1] for name in "abc"}) == 3
