"""Charts: what the page and the file get of a drawing; kinds of change; files of tables."""

from __future__ import annotations

import io
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from negbench.analysis.words import label_of, latex, listed, markdown, number, percent, signed, spread
from negbench.report.charts import PALETTE, Chart, Panel, drawn, heat, line_style, png, svgs, told
from negbench.report.gallery import changes


def lines(axes: Any) -> None:
    for index, name in enumerate("ab"):
        axes.plot([1, 2, 3], [index, 4.0, 2.0], label=name, **line_style(index))
    (dots,) = axes.plot([1, 3], [2, 5], "s", color=PALETTE[2], label="dots")
    told(dots, ["first <&> one", "second"])
    axes.fill_between([1, 2], 0, 1, color=PALETTE[1])
    axes.set(xlabel="x", ylabel="y (%)")


CHART = Chart(
    "k", "Title", "What it shows.", (Panel("one", lines), Panel("two", lines)), legend=(("▲", "#123456", "up"),)
)


def test_a_panel_is_an_svg_of_the_page() -> None:
    found, legend = svgs(CHART)
    ids: list[str] = []
    for text in found:
        root = ElementTree.fromstring(text.replace(" href=", " h="))
        assert root.get("role") == "img"
        assert root.get("aria-label", "").startswith("Title. ")
        ids += [str(e.get("id")) for e in root.iter() if e.get("id")]
        words = [e.text for e in root.iter() if e.tag.endswith("text")]
        assert {"x", "y (%)"} <= set(words)  # words stay words: they can be read, found and copied
        assert [e.text for e in root.iter() if e.tag.endswith("title")] == ["first <&> one", "second"]
        assert "currentColor" in text
        assert "DejaVu" not in text
        assert all(f'id="{name}"' in text for name in re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    assert len(set(ids)) == len(ids)  # two panels in one page
    assert list(legend) == [
        ("▲", "#123456", "up"), ("━", PALETTE[0], "a"), ("━", PALETTE[1], "b"), ("■", PALETTE[2], "dots"),
    ]  # fmt: skip


def test_the_same_chart_gives_the_same_bytes() -> None:
    assert png(CHART) == png(CHART)
    assert png(CHART).startswith(b"\x89PNG")
    assert svgs(CHART) == svgs(CHART)


def test_the_file_shows_what_the_page_shows_in_its_place() -> None:
    dots = {"#ff0000": (0.25, 0.75), "#0000ff": (0.8, 0.1), "#00c000": (0.5, 0.5)}

    def dot(color: str) -> Panel:
        def draw(axes: Any) -> None:
            axes.plot([dots[color][0]], [dots[color][1]], "s", color=color, markersize=9)
            axes.plot([-5, 5], [0.9, 0.9], color="#ff00ff", linewidth=3, linestyle="--")  # cut off at the axes
            axes.text(0.5, 0.3, "MMMM", color="#00ffff", ha="center", va="center")
            axes.fill_between([0, 1], 0.55, 0.65, color="#ffff00", linewidth=0)
            axes.set(xlim=(0, 1), ylim=(0, 1))

        return Panel("", draw, tall=1.5 if color == "#0000ff" else 2.0)

    chart = Chart("k", "Title", "", tuple(map(dot, dots)), across=2)
    both = drawn(chart)
    assert (both.svgs, both.png) == (drawn(chart, file=False).svgs, drawn(chart, page=False).png)
    pixels = np.asarray(Image.open(io.BytesIO(both.png)))
    panels = {"#ff0000": (0.0, 0.35), "#0000ff": (3.9, 0.35), "#00c000": (0.0, 3.15)}  # inches from the upper left
    assert pixels.shape == (int(110 * (0.35 + 2 * 2.8)), 2 * 429, 3)
    for color, (left, top) in panels.items():
        wide, tall = 3.9 - 0.55 - 0.1, 1.5 if color == "#0000ff" else 2.0
        x, y = dots[color]
        place = 110 * (left + 0.55 + x * wide), 110 * (top + 0.3 + (1 - y) * tall)
        assert _middle(pixels, color) == pytest.approx(place, abs=1)
        panel = pixels[int(110 * top) : int(110 * (top + 2.8)), int(110 * left) : int(110 * (left + 3.9))]
        middle = 110 * (0.55 + wide / 2)
        assert _middle(panel, "#00ffff") == pytest.approx((middle, 110 * (0.3 + 0.7 * tall)), abs=2)
        assert _middle(panel, "#ffff00") == pytest.approx((middle, 110 * (0.3 + 0.4 * tall)), abs=1.5)
        columns = np.flatnonzero(_of(panel, "#ff00ff").any(axis=0))
        assert columns[0] >= 110 * 0.55 - 1.5
        assert columns[-1] <= 110 * (0.55 + wide) + 1.5


def _of(pixels: Any, color: str) -> Any:
    wanted = [int(color[start : start + 2], 16) for start in (1, 3, 5)]
    return (np.abs(pixels.astype(int) - wanted) < 40).all(axis=2)


def _middle(pixels: Any, color: str) -> tuple[float, float]:
    y, x = np.nonzero(_of(pixels, color))
    return (x.min() + x.max() + 1) / 2, (y.min() + y.max() + 1) / 2


def test_matplotlib_is_left_as_it_was() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    svgs(CHART)
    png(CHART)
    assert dict(mpl.rcParams) == before


def test_heat_map_cells() -> None:
    from matplotlib.figure import Figure

    panel = heat(("r1", "r2"), ("c1", "c2"), {(0, 0): (1.0, "one"), (1, 1): (3.0, "three")})
    axes = Figure().add_subplot()
    panel.draw(axes)
    assert [(t.get_text(), t.get_position()) for t in axes.texts] == [("one", (0, 0)), ("three", (1, 1))]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["r1", "r2"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first row is at the top


def test_beyond_the_palette_dashes_tell_series_apart() -> None:
    styles = [tuple(line_style(index).items()) for index in range(25)]
    assert len(set(styles)) == 25


def test_numbers_as_written() -> None:
    assert (percent(0.1234), percent(None), percent(float("nan")), number(1234.5, 1)) == ("12.3", "-", "-", "1,234.5")
    assert signed(0.0125, -0.001, 0.02) == "+1.25 [-0.10, 2.00]"
    assert signed(float("nan"), 0, 0) == "-"
    assert spread([0.1, 0.3]) == "20.00 ± 14.14"
    assert label_of("dress/subset_recall_at_3") == "dress Rs@3"
    assert [listed(["a"]), listed(["a", "b", "c"]), listed(list("abcdefgh"))] == ["a", "a, b and c", "8 strategies"]


def test_kinds_of_change() -> None:
    texts = ["it is red with dots", "that red", "longer sleeves", "sleeves and dots", "blue", "it is plain"]
    found = changes(texts * 5)
    assert found[:6] == ["dots", "red", "longer", "dots", "blue", "plain"]
    assert changes(["the and of"] * 3) == [""] * 3


def test_latex_and_markdown_escape() -> None:
    frame = pd.DataFrame([{"a_b": r"50 % & {x}$^~\ #1", "c": "p|q ± 1 > 0 < 2"}])
    tex = latex(frame)
    assert r"a\_b & c \\" in tex
    assert r"50 \% \& \{x\}\$\textasciicircum{}\textasciitilde{}\textbackslash{} \#1" in tex
    assert r"p|q $\pm$ 1 $>$ 0 $<$ 2 \\" in tex
    assert tex.splitlines()[1] == r"\toprule"
    assert markdown(frame).splitlines()[-1].count(r"\|") == 1
