"""Rules of selection: hand curves, and what they do to the order."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from negbench.analysis.selection import chosen, curve_of, selection, selection_answer, selection_frame
from negbench.runfolder import RunFolder

NONE = math.nan
# epoch -> (reported split, dev part)
FIRST = {1: (0.2, 0.5), 2: (0.6, 0.4), 3: (0.4, 0.5)}  # dev: 1, the earliest of two; val: 2
SECOND = {1: (0.1, 0.1), 2: (0.2, 0.3), 3: (0.5, 0.2)}  # dev: 2; val: 3


def test_every_rule_by_hand() -> None:
    curves = [FIRST, SECOND]
    assert chosen(curves, "last") == pytest.approx((0.45, 3))
    assert chosen(curves, "dev") == pytest.approx((0.2, 1.5))
    assert chosen(curves, "val") == pytest.approx((0.55, 2.5))
    assert chosen(curves, "oracle") == pytest.approx((0.6, 2))


def test_what_was_not_logged_is_not_known() -> None:
    undev = {1: (0.2, NONE), 2: (0.3, NONE)}
    assert all(map(math.isnan, chosen([FIRST, undev], "dev")))
    assert chosen([undev], "val") == (0.3, 2)
    assert all(map(math.isnan, chosen([{}], "last")))
    assert all(map(math.isnan, chosen([], "last")))


def test_the_order_under_each_rule() -> None:
    """Last: b before a. Dev and val: a before b. Oracle too."""
    a, b = {1: (0.9, 0.9), 2: (0.1, 0.1)}, {1: (0.3, 0.3), 2: (0.4, 0.2)}
    rows = selection({"t": {"a": [a], "b": [b]}})
    ranks = {(row.rule, row.strategy): row.rank for row in rows}
    assert [ranks[rule, "a"] for rule in ("last", "dev", "val", "oracle")] == [2, 1, 1, 1]
    frame = selection_frame(rows).set_index("strategy")
    assert frame.loc["a"].tolist() == ["10.00 (2)", "90.00 (1)", "90.00 (1)", "90.00 (1)"]
    assert frame.loc["b"].tolist() == ["40.00 (1)", "30.00 (2)", "40.00 (1)".replace("(1)", "(2)"), "40.00 (2)"]
    dev, val, oracle = selection_answer(rows)
    assert dev.startswith(
        "Epoch chosen by dev instead of the last: +35.00 points on average, Kendall's tau of the orders -1"
    )
    assert "+40.00 points" in val
    assert oracle.endswith("another strategy highest in 1 of 1 tables.")
    (line,) = [text for text in selection_answer(selection({"t": {"a": [{1: (0.2, NONE)}]}})) if "dev:" in text]
    assert "was not logged" in line


def test_means_are_over_tables_and_missing_ones_are_told() -> None:
    rows = selection({"t": {"a": [FIRST], "b": [SECOND]}, "u": {"a": [SECOND], "b": [FIRST]}})
    frame = selection_frame(rows).set_index("strategy")
    assert frame.loc["a", "last"] == frame.loc["b", "last"] == "45.00 (1.5)"
    rows = selection({"t": {"a": [FIRST]}, "u": {"a": [{1: (0.2, NONE)}]}})
    assert selection_frame(rows)["dev"].tolist() == ["-"]


def test_a_curve_is_read_from_the_points_that_a_run_logs(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    points = [{"epoch": -1, "val/m": 0.9}, {"epoch": 0, "val/m": 0.1, "dev/m": 0.2}, {"epoch": 0, "train/loss": 3.0}]
    run.write_metrics([{"step": 0, **point} for point in [*points, {"epoch": 1, "val/m": 0.3, "val/other": 0.5}]])
    found = curve_of(run, "m")
    assert found[1] == (0.1, 0.2)
    assert found[2][0] == 0.3
    assert math.isnan(found[2][1])
    assert set(found) == {1, 2}
