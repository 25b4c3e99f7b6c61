"""Charts of a comparison's own axes: points of dials, training budgets, and systems."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from negbench.analysis.answer import steps_of
from negbench.analysis.columns import READ
from negbench.analysis.pivots import READ_SIGNS, SIGNS, at_point, lead, leaders_of, size_of
from negbench.analysis.verdict_record import TABLE_AXES, Verdict
from negbench.analysis.words import label_of
from negbench.grid.axis import Axis, Point, lines_along, point_text, short_names, varied_text
from negbench.machine.grouping import group_by
from negbench.report.charts import Chart, ChartCell, Panel, heat, label_ends, line_style, log_axis, shade, tall_enough

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKED: dict[str, Any] = {"marker": "o", "markersize": 3}


def dial_charts(axes: Sequence[Axis], rows: Sequence[Verdict]) -> list[Chart]:
    """Draw the best strategy at every point of these axes, and the metric along each."""
    charts = [_best(axes, rows)]
    for index, axis in enumerate(axes):
        # the names of strategies end with the number of negatives where this is an axis
        if len(axis.values) > 1 and axis.column != "num_negatives":
            charts.append(_along(axes, rows, index))
    return charts


def _styles(rows: Sequence[Verdict]) -> dict[str, dict[str, Any]]:
    """Return strategy -> its line's style, by name."""
    names = sorted({row.strategy for row in rows})
    return {name: line_style(index) for index, name in enumerate(names)}


def _best(axes: Sequence[Axis], rows: Sequence[Verdict]) -> Chart:
    """Draw two axes as a heat map; further ones as further panels."""
    names = short_names(axes)
    styles = _styles(rows)
    first, *others = axes
    down: list[Point] = [()]  # a single line without a second axis
    labels = [""]
    if others:
        second = others.pop(0)
        down = [(value,) for value in second.values]
        labels = [f"{names[1]} {value}" for value in second.values]
    panels = []
    winners = set()
    for rest in product(*(axis.values for axis in others)):
        squares = []
        for y, line in enumerate(down):
            for x, value in enumerate(first.values):
                verdicts = at_point(rows, point_text(names, (value, *line, *rest)))
                if verdicts:
                    winner = verdicts[0].strategy
                    winners.add(winner)
                    squares.append(_winner(x, y, verdicts, styles[winner]["color"]))
        title = varied_text(axes, (first.values[0], *down[0], *rest), without=(0, 1))
        panel = heat(labels, [str(value) for value in first.values], squares, 0.42, names[0])
        panels.append(replace(panel, title=title))
    legend = tuple(("s", styles[name]["color"], name) for name in sorted(winners))
    text = READ["best"].format(metric=label_of(rows[0].metric), size=size_of(rows))
    title = f"Best strategy by {' and '.join(names[:2])}"
    return Chart("best", title, text, tuple(panels), 2, legend)


def _winner(x: int, y: int, point: Sequence[Verdict], color: str) -> ChartCell:
    """Return the square of a point: its best strategy, and how far it is ahead of the next."""
    text = point[0].strategy
    if len(point) > 1:
        ahead = lead(point)
        text += f"\n+{100 * (ahead.value if ahead else math.nan):.1f}"
    return ChartCell(x, y, text, color, hatched=len(leaders_of(point)) > 1)


def _along(axes: Sequence[Axis], rows: Sequence[Verdict], index: int) -> Chart:
    """Draw the metric of every strategy along one axis, a panel for each setting of the others."""
    names = short_names(axes)
    tall = tall_enough(len(_styles(rows)))
    panels = []
    for line in lines_along(axes, index):
        points = [(str(point[index]), point_text(names, point)) for point in line]
        draw = partial(_draw_line, rows, names[index], points)
        panels.append(Panel(varied_text(axes, line[0], without=(index,)), draw, tall))
    text = READ["along"].format(metric=label_of(rows[0].metric), name=names[index], size=size_of(rows))
    return Chart(f"along-{names[index]}", f"Along {names[index]}", text, tuple(panels), direct=True)


def _draw_line(rows: Sequence[Verdict], name: str, points: Sequence[tuple[str, str]], axes: "Axes") -> None:
    """Draw every strategy at these points: (value of the axis `name`, text of the point)."""
    styles = _styles(rows)
    lines = []
    for number, (strategy, style) in enumerate(styles.items()):
        shift = 0.06 * (number - len(styles) / 2)  # so that bars are apart
        x = []
        verdicts = []
        for position, (_, point) in enumerate(points):
            for row in at_point(rows, point):
                if row.strategy == strategy:
                    x.append(position + shift)
                    verdicts.append(row)
        lines.append((strategy, x, verdicts, style))
    _draw_means(axes, lines)
    axes.set_xticks(range(len(points)), [value for value, _ in points])
    axes.set(xlabel=name, ylabel=f"{label_of(rows[0].metric)} (%)")


_Line = tuple[str, Sequence[float], Sequence[Verdict], dict[str, Any]]  # name, x, a row for each x, style


def _draw_means(axes: "Axes", lines: Sequence[_Line]) -> None:
    """Draw each line's means with their intervals, and its name at its end."""
    ends = []
    for name, x, rows, style in lines:
        if not x:
            continue
        means = np.array([row.mean.value for row in rows])
        below = means - [row.mean.low for row in rows]
        above = [row.mean.high for row in rows] - means
        y = (100 * means).tolist()
        reach = 100 * np.array([below, above])
        axes.errorbar(x, y, yerr=np.maximum(reach, 0), label=name, elinewidth=0.7, **style)
        ends.append((y[-1], name, style["color"]))
    label_ends(axes, ends)


def budgets_chart(groups: Sequence[pd.DataFrame], rows: Sequence[Verdict]) -> Chart | None:
    """Draw each rule's mean after each training budget; None unless a comparison has several budgets."""
    steps = steps_of(groups)
    rows = [row for row in rows if row.main and row.epochs in steps]
    if len({row.epochs for row in rows} - {""}) < 2:
        return None
    varied_axes = []
    for axis in TABLE_AXES:
        if axis != "epochs" and len({getattr(row, axis) for row in rows}) > 1:
            varied_axes.append(axis)

    def title_of(row: Verdict) -> str:
        return ", ".join(getattr(row, axis) for axis in varied_axes)

    rows_of_panels = group_by(rows, title_of)
    name = label_of(rows[0].metric)

    def draw(members: Sequence[Verdict], axes: "Axes") -> None:
        lines = []
        styles = _styles(members)
        reach = {steps[row.epochs] for row in members}
        for number, (strategy, style) in enumerate(styles.items()):
            verdicts = [row for row in members if row.strategy == strategy]
            verdicts.sort(key=lambda row: steps[row.epochs])
            from_the_middle = number - (len(styles) - 1) / 2
            factor = (max(reach) / min(reach)) ** (0.015 * from_the_middle)  # so that bars are apart
            x = [steps[row.epochs] * factor for row in verdicts]
            lines.append((strategy, x, verdicts, style | _MARKED))
        _draw_means(axes, lines)
        log_axis(axes)
        axes.minorticks_off()
        axes.set_xticks(sorted(reach))
        axes.set(xlabel="training steps", ylabel=f"{name} (%)")

    panels = []
    for title, members in rows_of_panels.items():
        panels.append(Panel(title, partial(draw, members), tall_enough(len(_styles(members)))))
    text = READ["budgets"].format(metric=name)
    return Chart("budgets", f"{name} after how many steps", text, tuple(panels), 2, direct=True)


def matrix_chart(rows: Sequence[Verdict]) -> Chart:
    """Draw strategies x systems: the difference to the system's own negatives."""
    systems = list(dict.fromkeys(row.system for row in rows))
    strategies = sorted({row.strategy for row in rows})
    reach = max((abs(row.against_baseline.value) for row in rows if row.against_baseline), default=0.0) or 1.0
    squares = []
    for row in rows:
        if row.verdict == "baseline":
            text = "own"
            color = shade(0.0, reach)
        elif row.against_baseline:
            difference = row.against_baseline.value
            text = f"{100 * difference:+.1f} {SIGNS[row.verdict]}"
            color = "" if row.verdict == "undecided" else shade(difference, reach)
        else:
            continue
        squares.append(ChartCell(systems.index(row.system), strategies.index(row.strategy), text, color))
    text = READ["matrix"].format(metric=label_of(rows[0].metric), size=size_of(rows), signs=READ_SIGNS)
    panel = heat(strategies, systems, squares)
    return Chart("matrix", "Every system with every strategy's negatives", text, (panel,), 1)
