"""Charts as data, drawn twice: by plotly in the page, by matplotlib as a file.

A chart is a few panels; a panel is lines, points, marks and shaded ranges, or a heat map. Both drawings are made from
the same numbers, so that the page and the files never differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# mid tones, readable on white and on dark grey
PALETTE = (
    "#3b7dd8", "#e07b39", "#3d9a50", "#c94f4f", "#8b67c0", "#a1765a", "#d070b0", "#6f7b87", "#a8a032", "#2fa3ab",
)  # fmt: skip
_DASHES = ("solid", "dash", "dot", "dashdot")
_MPL_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
_MPL_SYMBOLS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "cross": "P", "x": "X"}


@dataclass(frozen=True)
class Style:
    """How a series looks: `index` chooses colour and dash, `symbol` the marker."""

    index: int = 0
    symbol: int = 0

    @property
    def color(self) -> str:
        """Of the line and its markers."""
        return PALETTE[self.index % len(PALETTE)]

    @property
    def dash(self) -> str:
        """Lines beyond the palette are told apart by their dashes."""
        return _DASHES[self.index // len(PALETTE) % len(_DASHES)]

    @property
    def marker(self) -> str:
        """Plotly's name of the marker."""
        return _SYMBOLS[self.symbol % len(_SYMBOLS)]


@dataclass(frozen=True)
class Series:
    """One line, or points, of a panel.

    Args:
        name: in the legend; equal names share one entry.
        x, y: of equal length.
        style: colour, dash, marker.
        kind: "line", "marked" (a line with a marker at every point of `marks`) or "points".
        low, high: a shaded band around a line, or error bars of points; empty for none.
        marks: indices of the points that get a marker; empty for all.
        texts: shown beside the pointer, one per point; empty for none.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: Style = Style()
    kind: Literal["line", "marked", "points"] = "line"
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    marks: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A vertical line at `start`, or a shaded range from `start` to `end`."""

    label: str
    start: float
    end: float | None = None
    color: str = PALETTE[7]
    dash: str = "dash"


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `bare` leaves the axes' numbers out, where they mean nothing (a map); `x_ticks` are words for
    x = 0, 1, 2, ...
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    log_y: bool = False
    bare: bool = False
    x_ticks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Heat:
    """Rows x columns of values with a text in each cell; None is an empty cell."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    texts: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Chart:
    """Panels that belong together, `across` of them beside each other where there is room. `alt` says in words what
    there is to see.
    """

    key: str  # file name without its ending, and the figure's id in the page
    title: str
    alt: str
    panels: tuple[Panel | Heat, ...]
    text: str = ""
    across: int = 2


# --- plotly ------------------------------------------------------------------------------------------------------


def plotly_spec(panel: Panel | Heat) -> dict[str, Any]:
    """{"data", "layout"} as Plotly.newPlot takes them; colours of text and grid are the page's own."""
    if isinstance(panel, Heat):
        return _plotly_heat(panel)
    data: list[dict[str, Any]] = []
    named: set[str] = set()
    for series in panel.series:
        data.extend(_plotly_series(series, series.name not in named))
        named.add(series.name)
    layout: dict[str, Any] = {
        "title": {"text": panel.title},
        "xaxis": {"title": {"text": panel.x_label}, "showticklabels": not panel.bare, "zeroline": False},
        "yaxis": {"title": {"text": panel.y_label}, "showticklabels": not panel.bare, "zeroline": False},
        "shapes": [],
        "showlegend": len(named) > 1 or bool(panel.marks),
    }
    if panel.log_y:
        layout["yaxis"]["type"] = "log"
        layout["yaxis"]["dtick"] = 1
    if panel.x_ticks:
        layout["xaxis"] |= {"tickvals": list(range(len(panel.x_ticks))), "ticktext": list(panel.x_ticks)}
    for mark in panel.marks:
        layout["shapes"].append(_plotly_mark(mark))
        data.append(_legend_of(mark))
    return {"data": data, "layout": layout}


def _plotly_series(series: Series, first: bool) -> list[dict[str, Any]]:
    color, found = series.style.color, []
    trace: dict[str, Any] = {
        "type": "scatter",
        "name": series.name,
        "legendgroup": series.name,
        "showlegend": first,
        "x": _numbers(series.x),
        "y": _numbers(series.y),
        "mode": {"line": "lines", "marked": "lines+markers", "points": "markers"}[series.kind],
    }
    if series.kind != "points":
        trace["line"] = {"color": color, "dash": series.style.dash, "width": 2}
    if series.kind != "line":
        size: Any = 8
        if series.marks:
            chosen = set(series.marks)
            size = [8 if index in chosen else 0 for index in range(len(series.x))]
        trace["marker"] = {"color": color, "symbol": series.style.marker, "size": size, "opacity": 1}
    if series.texts:
        trace["text"] = list(series.texts)
        trace["hovertemplate"] = "%{text}<extra></extra>"
    if series.low and series.kind == "points":
        up = [h - y for h, y in zip(series.high, series.y, strict=True)]
        down = [y - low for low, y in zip(series.low, series.y, strict=True)]
        trace["error_y"] = {"type": "data", "array": _numbers(up), "arrayminus": _numbers(down), "thickness": 1}
    elif series.low:
        found.append(
            {
                "type": "scatter",
                "x": _numbers([*series.x, *reversed(series.x)]),
                "y": _numbers([*series.high, *reversed(series.low)]),
                "fill": "toself",
                "fillcolor": _faded(color),
                "line": {"width": 0},
                "mode": "lines",
                "hoverinfo": "skip",
                "legendgroup": series.name,
                "showlegend": False,
            }
        )
    return [*found, trace]


def _plotly_mark(mark: Mark) -> dict[str, Any]:
    shape: dict[str, Any] = {"yref": "paper", "y0": 0, "y1": 1, "x0": mark.start, "layer": "below"}
    if mark.end is None:
        line = {"color": mark.color, "dash": mark.dash, "width": 1.5}
        return {**shape, "type": "line", "x1": mark.start, "line": line, "layer": "above"}
    return {**shape, "type": "rect", "x1": mark.end, "fillcolor": _faded(mark.color, 0.18), "line": {"width": 0}}


def _legend_of(mark: Mark) -> dict[str, Any]:
    """Shapes have no entry in the legend: an empty trace stands for them."""
    entry: dict[str, Any] = {"type": "scatter", "name": mark.label, "x": [None], "y": [None], "hoverinfo": "skip"}
    if mark.end is None:
        return {**entry, "mode": "lines", "line": {"color": mark.color, "dash": mark.dash, "width": 1.5}}
    square = {"color": _faded(mark.color, 0.35), "symbol": "square", "size": 11}
    return {**entry, "mode": "markers", "marker": square}


def _plotly_heat(heat: Heat) -> dict[str, Any]:
    trace = {
        "type": "heatmap",
        "x": list(heat.columns),
        "y": list(heat.rows),
        "z": [[None if v is None else _number(v) for v in row] for row in heat.values],
        "text": [list(row) for row in heat.texts],
        "texttemplate": "%{text}",
        "hovertemplate": "%{y}, %{x}: %{text}<extra></extra>",
        "colorscale": [[0, "#e4eefa"], [1, "#1f5fa8"]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
    }
    layout = {
        "title": {"text": heat.title},
        "xaxis": {"side": "bottom", "automargin": True},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "height": 130 + 34 * len(heat.rows),
    }
    return {"data": [trace], "layout": layout}


def _number(value: float) -> float | None:
    """Six digits are more than a screen shows; JSON has no NaN."""
    return None if not math.isfinite(value) else float(f"{value:.6g}")


def _numbers(values: Sequence[float]) -> list[float | None]:
    return [_number(value) for value in values]


def _faded(color: str, opacity: float = 0.15) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


# --- matplotlib --------------------------------------------------------------------------------------------------


def png(chart: Chart) -> bytes:
    """The chart as a PNG file's content; the same chart gives the same bytes.

    Margins are set in inches rather than fitted: matplotlib's layout engines take most of a report's time.
    """
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(chart.across, len(chart.panels))
    down = math.ceil(len(chart.panels) / across)
    heats = [panel for panel in chart.panels if isinstance(panel, Heat)]
    left = max([0.75, *(0.25 + 0.075 * max(map(len, heat.rows), default=0) for heat in heats)])
    tall = max([2.9, *(0.4 + 0.32 * len(heat.rows) for heat in heats)])
    wide, above, below = 3.6 if across > 1 else 5.6, 0.35, 0.6
    names = _names(chart)
    columns = max(1, int((across * (left + wide)) // (0.75 + 0.075 * max(map(len, names), default=0))))
    legend = 0.1 + 0.2 * math.ceil(len(names) / columns) if len(names) > 1 else 0.0
    width, height = across * (left + wide) + 0.2, down * (above + tall + below) + legend
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    handles: dict[str, Any] = {}
    for index, panel in enumerate(chart.panels):
        row, column = divmod(index, across)
        bottom = legend + (down - 1 - row) * (above + tall + below) + below
        x, y = left + column * (left + wide), bottom
        axes = figure.add_axes((x / width, y / height, wide / width, tall / height))
        if isinstance(panel, Heat):
            _draw_heat(axes, panel)
        else:
            _draw(axes, panel)
            found, labels = axes.get_legend_handles_labels()
            handles |= {label: handle for label, handle in zip(labels, found, strict=True) if label not in handles}
    if legend:
        figure.legend(
            list(handles.values()), list(handles), loc="lower center", ncols=columns, frameon=False, fontsize=8
        )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _names(chart: Chart) -> list[str]:
    """What the legend names."""
    panels = [panel for panel in chart.panels if isinstance(panel, Panel)]
    every = [s.name for panel in panels for s in panel.series] + [m.label for panel in panels for m in panel.marks]
    return list(dict.fromkeys(every))


def _draw(axes: Axes, panel: Panel) -> None:
    for series in panel.series:
        _draw_series(axes, series)
    for mark in panel.marks:
        if mark.end is None:
            axes.axvline(
                mark.start, color=mark.color, linestyle=_MPL_DASHES[mark.dash], linewidth=1.2, label=mark.label
            )
        else:
            axes.axvspan(mark.start, mark.end, color=mark.color, alpha=0.18, linewidth=0, label=mark.label)
    axes.set_title(panel.title, fontsize=10)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.log_y:
        axes.set_yscale("log")
    if panel.x_ticks:
        axes.set_xticks(range(len(panel.x_ticks)), panel.x_ticks, fontsize=8)
    if panel.bare:
        axes.set(xticks=[], yticks=[])
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_series(axes: Axes, series: Series) -> None:
    style, label = series.style, series.name
    dash, symbol = _MPL_DASHES[style.dash], _MPL_SYMBOLS[style.marker]
    x, y = list(series.x), list(series.y)
    if series.kind == "points":
        if series.low:
            bars = [
                [b - a for a, b in zip(series.low, y, strict=True)],
                [b - a for a, b in zip(y, series.high, strict=True)],
            ]
            axes.errorbar(x, y, yerr=bars, fmt="none", color=style.color, linewidth=1)
        axes.plot(x, y, linestyle="none", marker=symbol, markersize=4, color=style.color, label=label)
        return
    (line,) = axes.plot(x, y, linestyle=dash, color=style.color, linewidth=1.5, label=label)
    if series.kind == "marked":
        line.set(marker=symbol, markersize=4, markevery=list(series.marks) or None)
    if series.low:
        axes.fill_between(x, series.low, series.high, color=style.color, alpha=0.15, linewidth=0)


def _draw_heat(axes: Axes, heat: Heat) -> None:
    import numpy as np

    values = np.array([[math.nan if v is None else v for v in row] for row in heat.values], dtype=float)
    axes.imshow(values, cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(heat.columns)), heat.columns, fontsize=8)
    axes.set_yticks(range(len(heat.rows)), heat.rows, fontsize=8)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2 if np.isfinite(values).any() else 0.0
    for row, texts in enumerate(heat.texts):
        for column, text in enumerate(texts):
            dark = np.isfinite(values[row, column]) and values[row, column] > middle
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_title(heat.title, fontsize=10)
