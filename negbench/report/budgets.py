"""The metric of every rule against the training budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from negbench.analysis.answer import steps_of
from negbench.analysis.verdicts import PLACE, VerdictRow
from negbench.analysis.words import label_of
from negbench.grid.comparison import Group
from negbench.report.charts import Chart, Panel, label_ends, line_style, log_axis, tall_enough

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def budgets_chart(groups: Sequence[Group], rows: Sequence[VerdictRow]) -> Chart | None:
    """Draw each rule's mean after each training budget; None unless a comparison has several budgets."""
    steps = steps_of(groups)
    rows = [row for row in rows if row.main and row.epochs in steps]
    if len({row.epochs for row in rows} - {""}) < 2:
        return None
    panels: dict[str, list[VerdictRow]] = {}
    places = [[label for axis, label in zip(PLACE, row.place, strict=True) if axis != "epochs"] for row in rows]
    varied = [index for index in range(len(PLACE) - 1) if len({place[index] for place in places}) > 1]
    for row, place in zip(rows, places, strict=True):
        panels.setdefault(", ".join(place[index] for index in varied), []).append(row)
    drawn = tuple(
        Panel(title, _lines(members, steps), tall_enough(len({row.strategy for row in members})))
        for title, members in panels.items()
    )
    name = label_of(rows[0].metric)
    text = (
        f"{name} after each training budget, in steps; every budget has its own schedule and learning rates. Bars are "
    )
    return Chart("budgets", f"{name} after how many steps", f"{text}the intervals of the means.", drawn, 2, direct=True)


def _lines(rows: Sequence[VerdictRow], steps: Mapping[str, int]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        ends = []
        for index, name in enumerate(sorted({row.strategy for row in rows})):
            own = sorted((row for row in rows if row.strategy == name), key=lambda row: steps[row.epochs])
            x, y = [steps[row.epochs] for row in own], [100 * row.mean for row in own]
            reach = 100 * np.array([[row.mean - row.low for row in own], [row.high - row.mean for row in own]])
            style = line_style(index)
            axes.errorbar(x, y, yerr=np.maximum(reach, 0), marker="o", elinewidth=0.7, markersize=3, **style)
            ends.append((y[-1], name, style["color"]))
        log_axis(axes)
        axes.minorticks_off()
        axes.set_xticks(sorted({steps[row.epochs] for row in rows}))
        axes.set(xlabel="training steps", ylabel=f"{label_of(rows[0].metric)} (%)")
        label_ends(axes, ends)

    return draw
