"""Charts: a few panels drawn with matplotlib into one picture, for the page and as a file."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# readable on white as lines and as text, and distinguishable without red and green
PALETTE = (
    "#0072b2", "#c85200", "#007a5a", "#b0489a", "#8a6d00", "#1b8fc4", "#7b3f00", "#5b3fa8", "#b3202c", "#4d8000",
)  # fmt: skip
GREY = "#66717c"  # for undecided results, and for anything but series
_DASHES = ("-", "--", ":", "-.")
_WIDE = 3.9  # inches of a panel with its labels
_FULL = 9.4  # inches of a panel as wide as the page
Form = Literal["svg", "pdf", "png"]
_AROUND = 0.8  # inches above and below a panel's axes


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `draw` fills it and sets its labels; `tall`: inches of the axes."""

    title: str
    draw: Callable[[Axes], None]
    tall: float = 2.0


@dataclass(frozen=True)
class Chart:
    """Panels that belong together, `across` of them in a row.

    `key`: file name without its ending, and the figure's id in the page. `text`: caption that says what the
    figure shows, with the sample size. `legend`: entries (marker, colour, name) besides the drawing's own. `direct`:
    the drawing labels its lines itself and needs no legend. `full`: one panel as wide as the page. `pictures`: what was
    drawn so far, by form and narrowness.
    """

    key: str
    title: str
    text: str
    panels: tuple[Panel, ...]
    across: int = 3
    legend: tuple[tuple[str, str, str], ...] = ()
    direct: bool = False
    full: bool = False
    pictures: dict[tuple[Form, bool], bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def narrows(self) -> bool:
        """Whether it is drawn again for small screens, as wide as one panel, with the panels below each other."""
        return self.full or min(self.across, len(self.panels)) > 1


def line_style(index: int) -> dict[str, Any]:
    """Return colour and dash of the series with this index; beyond the palette, dashes distinguish series."""
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": _DASHES[index // len(PALETTE) % len(_DASHES)]}


def picture(chart: Chart, form: Form, narrow: bool) -> bytes:
    """Return the chart as a file, without its title, rendered once; the same chart gives the same bytes."""
    if (form, narrow) not in chart.pictures:
        from matplotlib import style

        file = io.BytesIO()
        no_dates = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}, "png": {}}[form]
        with style.context(Path(__file__).with_name("charts.mplstyle")):
            _figure(chart, narrow).savefig(file, format=form, metadata=no_dates, dpi=200)
        chart.pictures[form, narrow] = file.getvalue()
    return chart.pictures[form, narrow]


def _figure(chart: Chart, narrow: bool) -> Figure:
    """Draw all panels and one legend below them."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    across = 1 if narrow else min(chart.across, len(chart.panels))
    heights = []  # of each row
    for start in range(0, len(chart.panels), across):
        row = chart.panels[start : start + across]
        heights.append(max(panel.tall for panel in row) + _AROUND)
    wide = _FULL if chart.full and not narrow else across * _WIDE
    figure = Figure((wide, 1), layout="constrained", facecolor="white")
    grid = figure.add_gridspec(len(heights), across, height_ratios=heights)
    handles: dict[str, Any] = {}
    for marker, color, name in chart.legend:
        handles[name] = Line2D([], [], color=color, marker=marker, linestyle="")
    for number, panel in enumerate(chart.panels):
        axes = figure.add_subplot(grid[divmod(number, across)])
        axes.locator_params(nbins=5)
        panel.draw(axes)
        axes.set_title(panel.title)
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    tall = sum(heights)
    beside: list[int] = []
    ticks: list[int] = []
    for axes in figure.axes:
        ticks += [len(text.get_text()) for text in axes.get_yticklabels()]
        if chart.direct:
            beside += [len(text.get_text()) for text in axes.texts]
    longest = max(max(beside, default=0) - 16, max(ticks, default=0) - 24, 0)
    wide += across * 0.08 * longest  # room for long names beside the panels
    if len(handles) > 1 and not chart.direct:
        longest_name = max(len(name) for name in handles)
        columns = max(1, int(wide / (0.6 + 0.07 * longest_name)))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=8)
        tall += 0.1 + 0.2 * -(-len(handles) // columns)
    figure.set_size_inches(wide, tall)
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
    figure.set_layout_engine(None)  # otherwise matplotlib draws everything once more for the layout
    return figure


def log_axis(axes: Axes) -> None:
    """Make x logarithmic, with plain numbers at its ticks."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")


_LETTERS = 0.15  # inches from one label to the next


def tall_enough(labels: int) -> float:
    """Return the height (inches) of axes that have room for so many labels beside them."""
    return max(2.0, _LETTERS * labels)


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write names to the right of the axes, each (y value, name, colour), moved apart where they would overlap."""
    axes.autoscale_view()
    scale = axes.transScale + axes.transLimits
    gap = _LETTERS / tall_enough(len(ends))
    labels = []  # from the lowest to the highest: its height in the axes, 0 to 1, name and colour
    for y, name, color in ends:
        _, height = scale.transform((1.0, y))
        labels.append((float(height), name, color))
    labels.sort()
    heights = [height for height, _, _ in labels]
    for index in range(1, len(heights)):
        heights[index] = max(heights[index], heights[index - 1] + gap)
    above = 1.0 + gap
    for index in reversed(range(len(heights))):
        heights[index] = min(heights[index], above - gap)
        above = heights[index]
    for height, (_, name, color) in zip(heights, labels, strict=True):
        axes.annotate(
            name, (1, height), (5, 0), "axes fraction", "offset points", color=color, va="center", fontsize=8,
            annotation_clip=False,
        )  # fmt: skip


@dataclass(frozen=True)
class ChartCell:
    """One cell of a heat map: column and row, its text, its colour ('' for white with grey text), pale if hatched."""

    x: int
    y: int
    text: str
    color: str
    hatched: bool = False


def heat(
    rows: Sequence[str], columns: Sequence[str], squares: Sequence[ChartCell], tall: float = 0.27, across: str = ""
) -> Panel:
    """Build a heat map of `tall` inches a row, with the columns' axis named `across`; the first row is at the top."""

    def draw(axes: Axes) -> None:
        from matplotlib.colors import to_rgb

        for square in squares:
            box: Any = ([square.x - 0.48, square.x + 0.48], square.y - 0.46, square.y + 0.46)
            text_color = GREY
            if square.color:
                strength = 0.35 if square.hatched else 0.85
                axes.fill_between(*box, color=square.color, linewidth=0, alpha=strength)
                light = 1 - strength * (1 - np.dot((0.3, 0.6, 0.1), to_rgb(square.color)))
                text_color = "#ffffff" if light < 0.5 else "#16202a"
            if square.hatched:
                axes.fill_between(*box, facecolor="none", edgecolor=square.color, hatch="////", linewidth=0)
            axes.text(square.x, square.y, square.text, ha="center", va="center", color=text_color, fontsize=7)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), xlabel=across)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)

    return Panel("", draw, tall * len(rows) + 0.1)


def shade(value: float, reach: float) -> str:
    """Return a difference's colour: purple above 0, orange below, the darker the nearer to `reach`."""
    import matplotlib as mpl
    from matplotlib.colors import to_hex

    return to_hex(mpl.colormaps["PuOr"](0.5 + value / (2 * reach)))
