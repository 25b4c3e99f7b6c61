"""Along dials: the best strategy at each point."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from negbench.analysis.answer import say
from negbench.analysis.findings import Findings
from negbench.analysis.frame import results_frame
from negbench.analysis.pivots import at_point, points_frame, unbeaten
from negbench.analysis.verdicts import Rules, VerdictTable, verdicts_of
from negbench.grid.axis import Axis, plain_dials, point_text, points_of, short_names
from negbench.report.along import dial_charts
from negbench.scoring.values import Values

LABELS = {"loss": "l", "backbone": "b", "dataset": "d"}


def of(**dials: list[Any]) -> list[Axis]:
    return [Axis(f"dataset.{key}", tuple(values), f"dataset.{key}") for key, values in dials.items()]


def table(point: str, **values: Any) -> VerdictTable:
    by_strategy = {name: Values(each, tuple(range(len(each))), None) for name, each in values.items()}
    return VerdictTable({**LABELS, "point": point}, "recall_at_10", {"recall_at_10": by_strategy})


def hits(seed: int, rate: float, shape: tuple[int, int] = (5, 1500)) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).random(shape) < rate).astype(float)


RATES = {"a": 0.2, "b": 0.6, "c": 0.3}


def test_the_best_and_those_that_share_first_place(golden):
    dials = of(x=[1, 2])
    tables = [
        table("x=1", a=hits(0, 0.5), b=hits(1, 0.2), c=hits(2, 0.5)),
        table("x=2", **{name: hits(3 + i, rate, (5, 1200)) for i, (name, rate) in enumerate(RATES.items())}),
    ]
    rows = [row for each in tables for row in verdicts_of(each, Rules())]
    point = at_point(rows, "x=1")
    assert {row.strategy for row in point[:2]} == {"a", "c"} == set(unbeaten(point))
    behind = point[2].behind_highest
    assert behind.value == pytest.approx(point[0].mean.value - point[2].mean.value)
    assert 0 < behind.low < behind.value < behind.high
    assert point[0].behind_highest is None
    cases = {"two points": (dials, rows), "one": (of(x=[2]), [r for r in rows if r.point == "x=2"])}
    cases["alone"] = dials, [r for r in rows if r.strategy == "b"]
    none = results_frame([])
    golden("points", {k: say(Findings(none, {"dials": plain_dials(d)}, tuple(r))) for k, (d, r) in cases.items()})
    frame = points_frame(dials, rows)
    assert list(frame["best"]) == [point[0].strategy, "b"]
    assert frame.loc[1, "not beaten"] == "b"
    assert frame.loc[1, "b"].endswith(" (1)")  # its rank
    assert len({frame.loc[1, name].split()[1] for name in "abc"}) == 3


def test_equal_means_and_losses_to_others_than_the_best():
    """Means that round to one stored number share the lead; b beats c, a beats nobody."""
    rows = verdicts_of(table("x=1", a=np.full((2, 9), 0.3), b=np.full((2, 9), 0.3 + 1e-12)), Rules())
    read = [row.rounded() for row in rows]
    assert points_frame(of(x=[1]), read).loc[0, "next behind by"] == "+0.00 [-46.12, 46.12]"  # log(2 / 0.05) / 8
    a, b = rows
    assert unbeaten([a, b, replace(b, strategy="c", beaten_by=("b",))]) == ["a", "b"]


def test_dials_of_one_name_in_two_sections():
    values = {"dataset.world": (1, 2), "backbone.world": (3, 4), "train.lr": (0.1,)}
    dials = [Axis(key, of_dial, key) for key, of_dial in values.items()]
    labels = [point_text(short_names(dials), place) for place in points_of(dials)]
    assert labels[0] == "dataset.world=1, backbone.world=3, lr=0.1"
    rows = [row for label in labels for row in verdicts_of(table(label, a=hits(0, 0.5), b=hits(1, 0.2)), Rules())]
    assert points_frame(dials, rows)[["dataset.world", "backbone.world", "lr"]].to_numpy().tolist() == [
        [str(x), str(y), "0.1"] for x in (1, 2) for y in (3, 4)
    ]
    titles = {chart.key: [panel.title for panel in chart.panels] for chart in dial_charts(dials, rows)}
    along = [[f"{name}.world={n}" for n in values] for name, values in (("backbone", (3, 4)), ("dataset", (1, 2)))]
    assert titles == {"best": [""], "along-dataset.world": along[0], "along-backbone.world": along[1]}  # without lr
