"""Columns: one declaration for people, for programs and for MLflow."""

import math
from typing import Any

import pytest

from negbench.analysis.columns import TABLES, Column, constant_columns, metric_column, numbers, texts, values_to_log
from negbench.analysis.words import join_names, label_of

LINE: dict[str, Any] = {
    "share": 0.1234,
    "low": 0.1,
    "high": 0.2,
    "gain": 0.01,
    "p": 0.0004,
    "plain": 1234.5,
    "who": ("a", "b"),
    "none": (),
    "gap": math.nan,
    "runs": [0.1, 0.3],
    "absence": None,
}


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (Column("share", "", "%", 1), "12.3"),
        (Column("share", "", "%", 2, ("low", "high")), "12.34 [10.00, 20.00]"),
        (Column("gain", "", "points", 2, ("low", "high")), "+1.00 [10.00, 20.00]"),
        (Column("plain", "", digits=1), "1,234.5"),
        (Column("p", "", "p"), "<0.001"),
        (Column("who", "", "words"), "a, b"),
        (Column("none", "", "words"), "-"),
        (Column("runs", "", "%"), "20.00 ± 14.14"),
        (Column("gap", "", "%"), "-"),
        (Column("gap", "", "points", 2, ("low", "high")), "-"),
        (Column("absence", "", "%"), "-"),
        (Column("absent", "", "word"), "-"),
    ],
)
def test_a_value_is_written_by_its_unit(column, text):
    assert column.text(LINE) == text


def test_names_are_written_for_people():
    assert label_of("dress/subset_recall_at_3") == "dress Rs@3"
    assert join_names(["a"]) == "a"
    assert join_names(["a", "b", "c"]) == "a, b and c"
    assert join_names(list("abcdefgh")) == "8 strategies"


def test_a_column_reaches_every_output_from_its_declaration():
    lines = [{"strategy": "a", "x": 0.5, "y": None}, {"strategy": "b", "x": 0.25, "y": None}]
    columns = [Column("x", "X %", "%", 1), Column("y", "Y", optional=True)]
    printed = texts(columns, lines, ["strategy"])
    assert printed.to_dict("records") == [{"strategy": "a", "X %": "50.0"}, {"strategy": "b", "X %": "25.0"}]
    assert constant_columns(printed, ("strategy", "X %")) == {}
    assert constant_columns(printed.head(1), ("strategy", "absent")) == {"strategy": "a"}
    stored = numbers(columns, lines, ["strategy"])
    assert list(stored["x"]) == [0.5, 0.25]
    assert list(stored.columns) == ["strategy", "x", "y"]


def test_mlflow_gets_the_numbers_and_ends_of_a_row_that_are_known():
    keys = []
    for column in TABLES["tests"]:
        if column.logged:
            keys += [column.key, *column.ends]
    assert {"mean", "low", "high", "difference", "diff_low", "diff_high", "p_adjusted"} <= set(keys)
    assert values_to_log(dict.fromkeys(keys, 0.5) | {"difference": math.nan}).keys() == set(keys) - {"difference"}


@pytest.mark.parametrize("name", ["behaviour", "tests"])
def test_titles_and_keys_are_unique_in_a_table(name):
    table = TABLES[name]
    assert len({column.title for column in table}) == len(table)
    assert len({column.key for column in table}) == len(table)


def test_the_column_of_a_metric_has_its_short_name():
    assert metric_column("average/recall_at_10").title == "R@10"
