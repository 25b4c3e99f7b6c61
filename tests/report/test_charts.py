"""Charts: what the page and the file get of a drawing; kinds of change; files of tables."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pandas as pd

from negbench.report.charts import PALETTE, Chart, Panel, heat, line_style, png, svgs, told
from negbench.report.gallery import changes
from negbench.report.words import label_of, latex, listed, markdown, number, percent, signed, spread


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
