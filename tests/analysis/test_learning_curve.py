"""Plateaus, rises and steps against hand-computed values; remarks on runs that are still improving."""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from negbench.analysis.columns import ABOUT, COLUMNS
from negbench.analysis.frame import folders_of
from negbench.analysis.leader import leader_table, measured_tables
from negbench.analysis.learning_curve import SHARE, LearningCurve, training_answer
from negbench.analysis.verdicts import Rules, tables_of, verdicts_of
from negbench.grid.axis import names_of
from tests.made import again
from tests.report.test_verdicts import group_of

METRIC = "average/recall"
STEPS = 7  # per epoch


def with_curves(group: pd.DataFrame, curves: Sequence[Sequence[float | None]]) -> pd.DataFrame:
    """Return the group with these curves: one value per epoch after the untrained model's; None if not scored."""
    for run, values in zip(folders_of(group), curves, strict=True):
        points = []
        for epoch, value in enumerate(values):
            point = {"step": STEPS * epoch, "epoch": epoch - 1, "train/loss": 1.0}
            if value is not None:
                point[f"val/{METRIC}"] = value
            points.append(point)
        run.write_metrics(points)
    return again(group)


def curve_of(*values: float) -> LearningCurve:
    return LearningCurve(tuple(range(len(values))), tuple(STEPS * e for e in range(len(values))), values)


def test_tables_name_the_share_of_a_plateau_that_is_counted():
    percent = f"{100 * SHARE:g} %"
    assert COLUMNS["steps_own"].title == f"steps to {percent}"
    assert COLUMNS["steps_best"].title == f"steps to {percent} of the best"
    assert f"reached {percent}" in ABOUT["training"]["text"]


def test_the_mean_curve_is_that_of_the_points_that_all_seeds_have(tmp_path):
    curves = [[0.1, 0.2, 0.4, 0.5], [0.3, None, 0.5, 0.6], [0.2, 0.3, 0.6, 0.7]]
    curve = LearningCurve.of(with_curves(group_of(tmp_path, "qure", 0.5), curves), METRIC)
    assert (curve.epochs, curve.steps) == ((0, 2, 3), (0, 14, 21))
    assert curve.mean == pytest.approx((0.2, 0.5, 0.6))
    assert curve.level == pytest.approx(0.6)


def test_without_a_point_that_all_seeds_have_there_is_no_plateau(tmp_path):
    nothing = LearningCurve.of(with_curves(group_of(tmp_path, "dqe", 0.5), [[], [0.1], [0.1]]), METRIC)
    assert math.isnan(nothing.level)
    assert math.isnan(nothing.rise)
    assert math.isnan(nothing.steps_to(0.0))


@pytest.mark.parametrize(
    ("values", "rise"),
    [
        pytest.param((0, 0.1, 0.2, 0.3, 0.5, 0.55, 0.6), 0.1, id="6 epochs: fourth to sixth"),
        pytest.param((0, 0.1, 0.2, 0.3, 0.5, 0.4), 0.4 - 0.5, id="5 epochs: fourth to fifth"),
        pytest.param((0, 0.1, 0.2, 0.3), 0.1, id="3 epochs: second to third"),
        pytest.param((0.2, 0.5), math.nan, id="one epoch has no last third"),
    ],
)
def test_the_rise_of_the_last_third_by_hand(values, rise):
    assert curve_of(*values).rise == pytest.approx(rise, nan_ok=True)


def test_the_last_third_is_that_of_the_epochs_and_not_of_the_points():
    assert math.isnan(LearningCurve((0, 30), (0, 300), (0.1, 0.9)).rise)  # scored only at the end
    assert LearningCurve((0, 10, 20, 30), (0, 100, 200, 300), (0.1, 0.5, 0.6, 0.9)).rise == pytest.approx(0.3)


def test_steps_to_a_level_by_hand():
    curve = curve_of(0.1, 0.5, 0.78, 0.74, 0.8)
    assert [curve.steps_to(level) for level in (0.05, 0.5, 0.76, 0.8)] == [0, STEPS, 2 * STEPS, 4 * STEPS]
    assert math.isnan(curve.steps_to(0.81))


def slow_and_fast(runs: Path) -> list[pd.DataFrame]:
    """Return the groups of qure, which still rises, and of all-corpus, which is at its plateau after two epochs."""
    slow = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    fast = [0.1, 0.55, 0.599, 0.6, 0.6, 0.6, 0.6]
    return [
        with_curves(group_of(runs, "qure", 0.5), [slow] * 3),
        with_curves(group_of(runs, "all-corpus", 0.3), [fast] * 3),
    ]


def test_the_table_has_plateaus_and_speed_beside_each_other(tmp_path):
    """95 % of 0.7 is 0.665 and of 0.6 is 0.57: only the slow strategy reaches 95 % of the higher plateau."""
    groups = slow_and_fast(tmp_path)
    frame = measured_tables(groups)["training"].set_index("strategy")
    assert frame["plateau"].to_dict() == pytest.approx({"qure": 0.7, "all-corpus": 0.6})
    assert frame["rise"].to_dict() == pytest.approx({"qure": 0.2, "all-corpus": 0.0})
    assert frame["steps_own"].to_dict() == {"qure": 6 * STEPS, "all-corpus": 2 * STEPS}
    assert frame["steps_best"]["qure"] == 6 * STEPS
    assert math.isnan(frame["steps_best"]["all-corpus"])
    printed = leader_table(groups)["training"].set_index("strategy")
    assert printed["steps to 95 % of the best"].to_dict() == {"qure": "42", "all-corpus": "-"}
    assert printed["rise in last third"]["qure"] == "20.00"
    groups[0] = again(groups[0], dataset="g@1")  # the best plateau is per data set
    frame = measured_tables(groups)["training"].set_index("strategy")
    assert frame["steps_best"].to_dict() == {"qure": 6 * STEPS, "all-corpus": 2 * STEPS}


def test_what_still_rises_is_named_and_what_does_not_is_not(tmp_path):
    groups = slow_and_fast(tmp_path)

    def remarks(margin: float) -> list[str]:
        rules = Rules(margin=margin)
        main_rows = []
        for table in tables_of(groups, rules):
            main_rows += [row for row in verdicts_of(table, rules) if row.main]
        return training_answer(groups, main_rows)

    (line,) = remarks(0.01)
    rises = "average recall still rises by more than 1 point in the last third of the epochs"
    assert line.startswith(f"Training is unfinished: {rises}")
    assert "(qure by 20.0)" in line
    third = "in the last third of the epochs."
    assert remarks(0.25) == [f"Training is finished: no curve of average recall rises by more than 25 points {third}"]
    groups[0] = again(groups[0], epochs="9")
    groups[1] = again(groups[1], epochs="20")  # of which the longer is trained out
    (line,) = remarks(0.01)
    assert line.endswith("more than 1 point in the last third of the 20 epochs.")


def test_names_tell_groups_apart_by_what_differs():
    def labels(strategy: str, **more: str) -> dict[str, str]:
        return {"strategy": strategy, "loss": "l", "backbone": "b", "dataset": "d", **more}

    assert names_of([labels("qure"), labels("dqe")]) == ["qure", "dqe"]
    assert names_of([labels("qure"), labels("qure", loss="m")]) == ["qure l", "qure m"]
    assert names_of([labels("qure", point="k=1"), labels("qure", point="k=2", dataset="e")]) == [
        "[k=1] qure",
        "[k=2] qure",
    ]
