"""Along dials: the best strategy at each point."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from negbench.analysis.answer import answer_of
from negbench.analysis.findings import Findings
from negbench.analysis.frame import results_frame
from negbench.analysis.pivots import at_point, leaders_of, points_frame
from negbench.analysis.verdict_record import Verdict
from negbench.analysis.verdicts import Rules, VerdictTable, verdicts_of
from negbench.grid.axis import Axis, plain_dials, point_text, points_of, short_names
from negbench.report.along import dial_charts
from negbench.scoring.values import Values

LABELS = {"loss": "l", "backbone": "b", "dataset": "d"}


def dials_of(**dials: list[Any]) -> list[Axis]:
    return [Axis(f"dataset.{key}", tuple(values), f"dataset.{key}") for key, values in dials.items()]


def table(point: str, **matrices: Any) -> VerdictTable:
    values = {name: Values(matrix, tuple(range(len(matrix))), None) for name, matrix in matrices.items()}
    return VerdictTable({**LABELS, "point": point}, "recall_at_10", {"recall_at_10": values})


def rows_of(tables: Iterable[VerdictTable]) -> list[Verdict]:
    rows = []
    for of_point in tables:
        rows += verdicts_of(of_point, Rules())
    return rows


def hits(seed: int, rate: float, shape: tuple[int, int] = (5, 1500)) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).random(shape) < rate).astype(float)


@pytest.fixture(scope="module")
def rows() -> list[Verdict]:
    """Return the rows of two points: at the first a and c are the best, at the second b."""
    small = (5, 1200)
    return rows_of(
        [
            table("x=1", a=hits(0, 0.5), b=hits(1, 0.2), c=hits(2, 0.5)),
            table("x=2", a=hits(3, 0.2, small), b=hits(4, 0.6, small), c=hits(5, 0.3, small)),
        ]
    )


def test_two_share_first_place(rows):
    first, second, third = at_point(rows, "x=1")
    assert {first.strategy, second.strategy} == {"a", "c"}
    assert set(leaders_of([first, second, third])) == {"a", "c"}
    behind = third.behind_highest
    assert behind.value == pytest.approx(first.mean.value - third.mean.value)
    assert 0 < behind.low < behind.value < behind.high
    assert first.behind_highest is None


def test_the_answer_says_who_is_best_at_each_point(rows, golden):
    def answer(dials: list[Axis], verdicts: list[Verdict]) -> Any:
        return answer_of(Findings(results_frame([]), {"dials": plain_dials(dials)}, tuple(verdicts))).lines

    answers = {
        "two points": answer(dials_of(x=[1, 2]), rows),
        "one": answer(dials_of(x=[2]), [row for row in rows if row.point == "x=2"]),
        "alone": answer(dials_of(x=[1, 2]), [row for row in rows if row.strategy == "b"]),
    }
    golden("points", answers)


def test_the_table_of_points_has_the_best_and_all_ranks(rows):
    frame = points_frame(dials_of(x=[1, 2]), rows)
    first, *_ = at_point(rows, "x=1")
    assert list(frame["best"]) == [first.strategy, "b"]
    assert frame.loc[1, "not beaten"] == "b"
    assert frame.loc[1, "b"].endswith(" (1)")  # its rank
    assert len({frame.loc[1, name].split()[1] for name in "abc"}) == 3


def test_strategies_that_are_best_at_equally_many_points_are_in_the_order_of_the_points():
    winners = {"x=1": "d", "x=2": "b", "x=3": "c", "x=4": "a"}
    rows = []
    for point, winner in winners.items():
        values = {name: hits(seed, 0.8 if name == winner else 0.2, (2, 300)) for seed, name in enumerate("abcd")}
        rows += verdicts_of(table(point, **values), Rules())
    lines = answer_of(Findings(results_frame([]), {"dials": plain_dials(dials_of(x=[1, 2, 3, 4]))}, tuple(rows))).lines
    expected = [f"{winner} is best at {point}." for point, winner in winners.items()]
    assert [line for line in lines if "is best at" in line] == expected


def test_equal_means_and_losses_to_others_than_the_best():
    """Means that round to one stored number share the lead; b beats c, a beats nobody."""
    a, b = verdicts_of(table("x=1", a=np.full((2, 9), 0.3), b=np.full((2, 9), 0.3 + 1e-12)), Rules())
    frame = points_frame(dials_of(x=[1]), [a.round_numbers(), b.round_numbers()])
    assert frame.loc[0, "next behind by"] == "+0.00 [-46.12, 46.12]"  # log(2 / 0.05) / 8
    assert leaders_of([a, b, replace(b, strategy="c", beaten_by=("b",))]) == ["a", "b"]


def test_dials_of_one_name_in_two_sections():
    values = {"dataset.world": (1, 2), "backbone.world": (3, 4), "train.lr": (0.1,)}
    dials = [Axis(key, of_dial, key) for key, of_dial in values.items()]
    labels = [point_text(short_names(dials), values) for values in points_of(dials)]
    assert labels[0] == "dataset.world=1, backbone.world=3, lr=0.1"
    rows = rows_of(table(label, a=hits(0, 0.5), b=hits(1, 0.2)) for label in labels)
    assert points_frame(dials, rows)[["dataset.world", "backbone.world", "lr"]].to_numpy().tolist() == [
        ["1", "3", "0.1"],
        ["1", "4", "0.1"],
        ["2", "3", "0.1"],
        ["2", "4", "0.1"],
    ]
    titles = {chart.key: [panel.title for panel in chart.panels] for chart in dial_charts(dials, rows)}
    assert titles == {  # without lr
        "best": [""],
        "along-dataset.world": ["backbone.world=3", "backbone.world=4"],
        "along-backbone.world": ["dataset.world=1", "dataset.world=2"],
    }
