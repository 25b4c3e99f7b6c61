"""Charts: what plotly gets, what matplotlib draws, kinds of change, files of tables."""

from __future__ import annotations

import math

import pandas as pd

from negbench.report.charts import Chart, Heat, Mark, Panel, Series, Style, plotly_spec, png
from negbench.report.gallery import changes
from negbench.report.leader import latex, markdown


def test_plotly_holds_the_numbers_and_no_nan() -> None:
    series = Series("a", (1.0, 2.0, 3.0), (0.5, math.nan, -2.0), Style(11), "marked", marks=(2,))
    spec = plotly_spec(Panel("t", "x", "y", (series,), (Mark("pool", 1, 2), Mark("target", 1.5))))
    assert spec["data"][0]["y"] == [0.5, None, -2.0]
    assert spec["data"][0]["marker"]["size"] == [0, 0, 8]
    assert spec["data"][0]["line"]["dash"] == "dash"  # beyond the palette
    assert [shape["type"] for shape in spec["layout"]["shapes"]] == ["rect", "line"]
    assert [trace["name"] for trace in spec["data"][1:]] == ["pool", "target"]


def test_equal_names_share_an_entry_of_the_legend() -> None:
    spec = plotly_spec(Panel("", "", "", (Series("a", (1,), (1,)), Series("a", (2,), (2,)), Series("b", (1,), (2,)))))
    assert [trace["showlegend"] for trace in spec["data"]] == [True, False, True]


def test_bands_and_bars() -> None:
    band = plotly_spec(Panel("", "", "", (Series("a", (1, 2), (3, 4), low=(2, 3), high=(4, 5)),)))["data"]
    assert band[0]["y"] == [4, 5, 3, 2]
    bars = plotly_spec(Panel("", "", "", (Series("a", (1,), (3,), kind="points", low=(2,), high=(5,)),)))["data"]
    assert bars[0]["error_y"]["array"] == [2]
    assert bars[0]["error_y"]["arrayminus"] == [1]


def test_png_repeats_to_the_byte() -> None:
    heat = Heat("h", ("r1", "r2"), ("c",), ((1.0,), (None,)), (("1",), ("",)))
    chart = Chart("k", "t", "alt", (Panel("p", "x", "y", (Series("a", (1, 2), (3, 40)),), log_y=True), heat))
    assert png(chart) == png(chart)
    assert png(chart).startswith(b"\x89PNG")


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
