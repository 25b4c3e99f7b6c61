"""Charts: pictures for the page and for files; numbers as written; files of tables."""

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from negbench.analysis.words import markdown
from negbench.report import charts
from negbench.report.charts import GREY, PALETTE, Chart, ChartCell, Panel, label_ends, line_style, picture, shade


def lines(axes: Any) -> None:
    for index, name in enumerate("ab"):
        axes.plot([1, 2, 3], [index, 4.0, 2.0], label=name, **line_style(index))
    axes.fill_between([1, 2], 0, 1, color=PALETTE[1])
    axes.set(xlabel="x", ylabel="y (%)")


CHART = Chart("k", "Title", "It shows.", (Panel("one", lines), Panel("two", lines)), legend=(("^", "#123456", "up"),))


def test_a_chart_is_one_picture_of_all_panels_with_one_legend():
    text = picture(CHART, "svg", False).decode()
    root = ElementTree.fromstring(text)
    words = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"one", "two", "x", "y (%)"} <= set(words)  # text stays text
    assert "Title" not in words  # the page has it above the picture
    assert [words.count(name) for name in ("up", "a", "b")] == [1, 1, 1]
    assert root.get("width") == f"{2 * 3.9 * 72:g}pt"  # two panels of 3.9 inches
    assert {f"stroke: {PALETTE[0]}", f"fill: {PALETTE[1]}", "fill: #123456"} <= set(re.findall(r"\w+: #\w+", text))


@pytest.mark.parametrize(
    ("changes", "wide", "tall"),
    [
        ({"panels": CHART.panels[:1], "full": True}, 9.4, 1),
        ({}, 7.8, 2),  # its panels stand below each other
        ({"panels": CHART.panels[:1]}, 3.9, 1),
        ({"across": 1}, 3.9, 1),
    ],
)
def test_small_screens_get_a_picture_as_wide_as_one_panel(changes, wide, tall):
    chart = replace(CHART, **changes)
    width, height = charts._figure(chart, narrow=False).get_size_inches()
    narrow_width, narrow_height = charts._figure(chart, narrow=True).get_size_inches()
    assert (width, narrow_width) == (wide, 3.9)
    assert chart.narrows == (wide > 3.9)
    more_panels = (narrow_height - height) / 2.8
    assert more_panels == pytest.approx(tall - 1, abs=0.2)


def test_names_at_the_ends_of_lines_are_in_order_and_apart():
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    axes.plot([0, 1], [0, 100])
    label_ends(axes, [(50.0, "b", "C0"), (50.1, "c", "C1"), (0.0, "a", "C2"), (100.0, "e", "C3"), (99.9, "d", "C4")])
    labels: list[Any] = list(axes.texts)
    heights = {label.get_text(): label.xy[1] for label in labels}
    label_heights = [heights[name] for name in "abcde"]
    gap = 0.15 / charts.tall_enough(5)
    assert min(np.diff(label_heights)) >= gap - 1e-9
    assert max(label_heights) <= 1
    assert heights["b"] == pytest.approx(0.5, abs=0.01)  # of names that overlap, the lowest stays


@pytest.mark.parametrize("count", [1, 20, 40])
def test_a_chart_is_tall_enough_for_the_names_at_the_ends_of_its_lines(count):
    assert charts.tall_enough(count) >= 0.15 * count


def test_the_same_chart_gives_the_same_bytes_and_leaves_matplotlib_as_it_was():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    assert picture(CHART, "svg", False) == picture(replace(CHART), "svg", False)
    assert dict(mpl.rcParams) == before


def test_heat_map_cells():
    from matplotlib.figure import Figure

    cells = [
        ChartCell(0, 0, "low", shade(-1.0, 3.0)),
        ChartCell(1, 1, "high", shade(3.0, 3.0)),
        ChartCell(1, 0, "open", ""),
        ChartCell(0, 1, "shared", PALETTE[0], hatched=True),
    ]
    axes = Figure().add_subplot()
    charts.heat(("r1", "r2"), ("c1", "c2"), cells).draw(axes)
    positions = {text.get_text(): text.get_position() for text in axes.texts}
    assert positions == {"low": (0, 0), "high": (1, 1), "open": (1, 0), "shared": (0, 1)}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["r1", "r2"]
    bottom, top = axes.get_ylim()
    assert bottom > top  # the first row is at the top
    assert [text.get_color() for text in axes.texts] == ["#16202a", "#ffffff", GREY, "#16202a"]
    boxes = [(box.get_alpha(), box.get_hatch()) for box in axes.collections]
    assert boxes == [(0.85, None), (0.85, None), (0.35, None), (None, "////")]


def test_shades_are_purple_above_zero_and_orange_below():
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(shade(3.0, 3.0))
    assert blue > red > green
    red, green, blue = to_rgb(shade(-3.0, 3.0))
    assert red > 2 * blue
    assert min(to_rgb(shade(0.0, 3.0))) > 0.95


def test_beyond_the_palette_dashes_separate_series():
    styles = [tuple(line_style(index).items()) for index in range(25)]
    assert len(set(styles)) == 25


def test_markdown_escapes(subtests, spelled):
    for text, cell in spelled["cells"].items():
        with subtests.test(text=text):
            assert markdown(pd.DataFrame([{"a": 1, "c": text}])).splitlines()[-1] == f"| 1 | {cell} |"


def test_a_chart_is_as_wide_as_the_names_beside_it_need():
    def wide(name: str) -> float:
        panel = Panel("", lambda axes: label_ends(axes, [(0.5, name, GREY)]))
        return float(charts._figure(Chart("c", "", "", (panel,), direct=True), narrow=False).get_figwidth())

    assert wide("x" * 16) == wide("x") < wide("x" * 40)


@pytest.mark.filterwarnings("error")  # matplotlib's layout warns where no room is left
def test_a_forest_of_very_long_names_has_room_for_its_axes():
    panel = Panel("", lambda axes: axes.set_yticks([0], ["x" * 120]))
    figure = charts._figure(Chart("c", "", "", (panel,), full=True), narrow=True)
    assert figure.axes[0].get_position().width > 0.1
