"""Charts: what a figure function draws with matplotlib, as SVG for the page and as a PNG file.

A chart is a few panels, each drawn by one function into one pair of axes. In the page every panel is an SVG of its own
(they stand beside or below each other as the screen allows, their text is the page's, colours of text and grid follow
the reader's scheme); as a file all panels and the legend are one picture.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

# mid tones, readable on white and on dark grey
PALETTE = (
    "#3b7dd8", "#e07b39", "#3d9a50", "#c94f4f", "#8b67c0", "#a1765a", "#d070b0", "#6f7b87", "#a8a032", "#2fa3ab",
)  # fmt: skip
GREY = PALETTE[7]
MARKERS = ("o", "s", "D", "^", "P", "X")
_DASHES = ("-", "--", ":", "-.")
GLYPHS = {"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚", "X": "✖", "|": "|"}
_STROKES = {"-": "━", "--": "╍", ":": "┅", "-.": "┅"}
_TEXT, _GRID = "#1d2329", "#dfe4e8"  # of a PNG; the page puts its own in their place
_RC: Any = {  # matplotlib's own type names every key

    "svg.fonttype": "none", "axes.titley": 1.02, "text.parse_math": False, "text.hinting": "no_hinting",
    "svg.hashsalt": "negbench", "path.simplify_threshold": 0.5, "font.size": 8.5,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": _GRID, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": _GRID, "grid.linewidth": 0.6, "axes.titlesize": 9, "axes.titlelocation":
    "left", "axes.titleweight": "bold", "axes.labelsize": 8.5, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "text.color": _TEXT, "axes.labelcolor": _TEXT, "axes.titlecolor": _TEXT, "xtick.color": _GRID,
    "ytick.color": _GRID, "xtick.labelcolor": _TEXT, "ytick.labelcolor": _TEXT, "legend.frameon": False,
    "lines.linewidth": 1.4, "lines.markersize": 4, "xtick.major.size": 2, "ytick.major.size": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `draw` fills it and sets its labels; `tall` and `left` (room for words) are in inches."""

    title: str
    draw: Callable[[Axes], None]
    tall: float = 2.0
    left: float = 0.55
    right: float = 0.1


@dataclass(frozen=True)
class Chart:
    """Panels that belong together, `across` of them beside each other where there is room.

    `key`: file name without its ending, and the figure's id in the page. `text`: the sentence that says what the figure
    shows, of how many. `legend`: more entries (glyph, colour, name) than the drawing names itself. `file`: whether
    it is written as a file, too.
    """

    key: str
    title: str
    text: str
    panels: tuple[Panel, ...]
    across: int = 3
    legend: tuple[tuple[str, str, str], ...] = ()
    file: bool = True


_WIDE = 3.9  # inches of a panel with its labels
_ABOVE, _BELOW = 0.3, 0.5
_TITLE = 0.35  # over the panels of a file
_POINTS, _DPI = 72, 110  # dots an inch, of the page and of a file


def line_style(index: int) -> dict[str, Any]:
    """Colour and dash of the series with this index; beyond the palette the dash tells them apart."""
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": _DASHES[index // len(PALETTE) % len(_DASHES)]}


def told(artist: Artist, texts: Sequence[str]) -> None:
    """What a pointer that rests on each marker of an artist is told."""
    artist.set_gid("told:" + "¦".join(texts))


@dataclass(frozen=True)
class Drawn:
    """A chart as the page and its file hold it.

    `svgs`: each panel as an SVG element. `legend`: (glyph, colour, name). `png`: content of the file.
    """

    svgs: tuple[str, ...]
    legend: tuple[tuple[str, str, str], ...]
    png: bytes


def svgs(chart: Chart) -> tuple[tuple[str, ...], tuple[tuple[str, str, str], ...]]:
    """Each panel as an SVG element, and the legend: (glyph, colour, name)."""
    found = drawn(chart, file=False)
    return found.svgs, found.legend


def png(chart: Chart) -> bytes:
    """The chart as a PNG file's content; the same chart gives the same bytes."""
    return drawn(chart, page=False).png


def drawn(chart: Chart, *, page: bool = True, file: bool = True) -> Drawn:
    """A chart for the page and, or, for its file: each panel is drawn once, for both."""
    import matplotlib as mpl

    across = min(chart.across, len(chart.panels))
    rows = [chart.panels[start : start + across] for start in range(0, len(chart.panels), across)]
    heights = [_ABOVE + max(panel.tall for panel in row) + _BELOW for row in rows]
    with mpl.rc_context(_RC):
        figures = [_figure(panel) for panel in chart.panels]
        handles: dict[str, Any] = {}
        for figure in figures:
            for handle, name in zip(*figure.axes[0].get_legend_handles_labels(), strict=True):
                handles.setdefault(name, handle)
        picture = _picture(chart, across * _WIDE, sum(heights), handles) if file else None
        found = []
        for number, (figure, panel) in enumerate(zip(figures, chart.panels, strict=True)):
            row, column = divmod(number, across)
            text = _rendered(figure, picture, column * _WIDE, _TITLE + sum(heights[:row]))
            if page:
                found.append(_embedded(text, f"{chart.key}-{number}", f"{chart.title}. {panel.title}"))
        legend = {name: (glyph, color, name) for glyph, color, name in chart.legend}
        legend |= {name: (*_key(handle), name) for name, handle in handles.items() if name not in legend}
        whole = _png(picture) if picture is not None else b""
    entries = tuple(entry for name, entry in legend.items() if not name.startswith("_"))
    return Drawn(tuple(found), entries if len(entries) > 1 else (), whole)


def _figure(panel: Panel) -> Figure:
    """A panel as a figure of its own, its axes as wide as its words leave room for."""
    from matplotlib.figure import Figure

    tall, wide = _BELOW + panel.tall + _ABOVE, _WIDE - panel.left - panel.right
    figure = Figure(figsize=(_WIDE, tall), dpi=_POINTS)
    axes = figure.add_axes((panel.left / _WIDE, _BELOW / tall, wide / _WIDE, panel.tall / tall))
    axes.locator_params(nbins=5)
    panel.draw(axes)
    axes.set_title(panel.title, x=-panel.left / wide + 0.02)
    for patch in (figure.patch, axes.patch):
        patch.set(facecolor="none", edgecolor="none")
    return figure


def _picture(chart: Chart, width: float, height: float, handles: Mapping[str, Any]) -> FigureCanvasAgg:
    """A white sheet under the chart's title and over its legend, with `height` inches left for panels between."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    keys: dict[str, Any] = {
        name: Line2D([], [], color=color, marker=next((m for m, g in GLYPHS.items() if g == glyph), ""))
        for glyph, color, name in chart.legend
    }
    keys |= handles
    names = [name for name in keys if not name.startswith("_")]
    columns = max(1, int(width / (0.6 + 0.07 * max(map(len, names), default=0))))
    below = 0.1 + 0.2 * math.ceil(len(names) / columns) if len(names) > 1 else 0.0
    figure = Figure(figsize=(width, _TITLE + height + below), dpi=_DPI, facecolor="white")
    figure.suptitle(chart.title, x=0.01, y=0.99, ha="left", va="top", fontsize=10, fontweight="bold")
    if below:
        figure.legend([keys[n] for n in names], names, loc="lower center", ncols=columns, fontsize=8)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas


def _rendered(figure: Figure, picture: FigureCanvasAgg | None, left: float, top: float) -> str:
    """A panel's figure as an SVG file, painted into its place of the picture, too."""
    from negbench.report.renderer import PanelRenderer

    file = io.StringIO()
    renderer = PanelRenderer(figure, file, None if picture is None else picture.get_renderer(), left, top)
    figure.draw(renderer)
    renderer.finalize()  # type: ignore[no-untyped-call]
    return file.getvalue()


def _png(picture: FigureCanvasAgg) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    image = Image.fromarray(np.asarray(picture.buffer_rgba())).convert("RGB")  # nothing shines through the sheet
    image.save(file, "png", dpi=(_DPI, _DPI), compress_level=3)  # 6 % larger than at 6, a third faster
    return file.getvalue()


def _key(handle: Any) -> tuple[str, str]:
    """Glyph and colour that stand for a drawn thing in a legend of text."""
    from matplotlib.colors import to_hex

    if hasattr(handle, "get_marker"):
        marker, stroke = str(handle.get_marker()), str(handle.get_linestyle())
        return (GLYPHS.get(marker) or _STROKES.get(stroke, "━")), to_hex(handle.get_color())
    if hasattr(handle, "get_facecolor"):
        color = handle.get_facecolor()
        return "▇", to_hex(color[0] if getattr(color, "ndim", 1) == 2 else color)
    return "●", to_hex(handle[0].get_color())  # a bar of errors: its own line


def _embedded(text: str, key: str, label: str) -> str:
    """Matplotlib's file as an element of the page: own ids, the page's font and colours, hints at the points."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    hints = [part.split("¦") for part in re.findall(r'<g id="told:([^"]*)"', text)]
    first, *rest = re.split(r'<g id="told:[^"]*"', text)
    text = first + "".join("<g" + _hinted(part, texts) for part, texts in zip(rest, hints, strict=True))
    used = set(re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda m: f' id="{key}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{key}-", text).replace("xlink:href", "href")
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)  # hundredths of a point
    text = re.sub(r"font: (?:bold |\d+ )?([\d.]+)px [^;\"]*", _font, text)
    text = re.sub(r"font-family: [^;\"]*(; )?", "", text)
    text = text.replace(_TEXT, "currentColor").replace(_GRID, "var(--grid)")
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<style[^>]*>.*?</style>|<!--.*?-->|(?<=>)\s+(?=<)", "", body, flags=re.DOTALL)
    return f'<svg viewBox="{box[1]}" role="img" aria-label="{escape(label)}">{body}'.strip()


def _font(found: re.Match[str]) -> str:
    return f"font-size: {found[1]}px" + "; font-weight: 600" * bool(re.search(r"bold|[67]00", found[0]))


def _hinted(part: str, texts: Sequence[str]) -> str:
    """The first markers of a piece of SVG, each with its hint."""
    left = iter(texts)

    def wrap(found: re.Match[str]) -> str:
        text = next(left, None)
        return found[0] if text is None else f"<g><title>{text}</title>{found[0]}</g>"

    return re.sub(r"<use [^>]*/>", wrap, part, count=len(texts))


def heat(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[int, ...], tuple[float, str]],
    *,
    differences: bool = False,
) -> Panel:
    """A heat map: (number of the row, of the column) -> value and the text in its cell.

    Darker is higher; of `differences`, blue is above and orange below 0, which is white.
    """
    white, colors = np.ones(3), {True: np.array([0.13, 0.38, 0.72]), False: np.array([0.78, 0.36, 0.1])}

    def draw(axes: Axes) -> None:
        from matplotlib.colors import to_hex

        values = [value for value, _ in cells.values()]
        low, high = min(values), max(values)
        for (y, x), (value, text) in cells.items():
            if differences:
                share = abs(value) / max(abs(low), abs(high), 1e-12)
                color = to_hex(tuple((white + share * (colors[value > 0] - white)).tolist()))
            else:
                share = (value - low) / (high - low) if high > low else 0.5
                color = to_hex((0.9 - 0.78 * share, 0.935 - 0.56 * share, 0.98 - 0.32 * share))
            axes.fill_between([x - 0.48, x + 0.48], y - 0.46, y + 0.46, color=color, linewidth=0)
            axes.text(x, y, text, ha="center", va="center", color="#ffffff" if share > 0.45 else "#16202a", fontsize=8)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)

    return Panel("", draw, 0.27 * len(rows) + 0.1, words_room(rows))


def words_room(names: Sequence[str]) -> float:
    """Inches that the longest of these names takes beside an axis."""
    return 0.2 + 0.062 * max(map(len, names), default=0)
