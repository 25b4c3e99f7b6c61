"""The figure of a rule's draws and of its mistakes, by kind of judged negative."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from negbench.analysis.columns import READ
from negbench.analysis.frame import labels_of
from negbench.analysis.kinds import KindShares, kind_shares, known_kinds
from negbench.report.charts import GREY, PALETTE, Chart, Panel, tall_enough
from negbench.report.figures import ChartData

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def kinds_chart(data: ChartData) -> Chart | None:
    """Draw each strategy's draws and mistakes by kind; None where the data judge no negatives."""
    template = "{strategy}, {loss}" if len(data.losses) > 1 else "{strategy}"
    groups: list[pd.DataFrame] = []
    for _, groups_of_loss in data.by_loss():
        groups += [group for group in groups_of_loss if known_kinds(group)]
    if not groups:
        return None

    @cache  # read when drawn: the picture of an earlier page needs none
    def lines() -> list[tuple[str, list[KindShares]]]:
        return [(template.format_map(labels_of(group)), kind_shares(group)) for group in groups]

    text = READ["kinds"].format(size=data.size)
    titles = ("drawn", "left among the first ten")
    tall = tall_enough(len(groups) * (1 + len(known_kinds(groups[0]))))
    panels = tuple(Panel(title, partial(_draw, lines, side), tall) for side, title in enumerate(titles))
    return Chart(f"kinds{data.suffix}", "Negatives drawn, and mistakes left, by kind", text, panels, 2)


def _draw(read_lines: Callable[[], Sequence[tuple[str, Sequence[KindShares]]]], side: int, axes: "Axes") -> None:
    """Draw one side: a row per strategy, in it a mark and an interval per kind."""
    lines = read_lines()
    _, first = lines[0]
    kinds = [share.kind for share in first]
    for number, kind in enumerate(kinds):
        y = np.arange(len(lines)) + (number + 1) / (len(kinds) + 1) - 0.5
        shares = [shares[number] for _, shares in lines]
        if side == 0:
            estimates = [share.drawn for share in shares]
        else:
            estimates = [share.mistakes for share in shares]
        mean, low, high = 100 * np.array(estimates).T
        axes.errorbar(mean, y, None, (mean - low, high - mean), "oDs^"[number], color=PALETTE[number], label=kind)
        if not side:
            axes.plot([100 * share.random for share in shares], y, "|", color=GREY)
    spot: Any = axes.get_subplotspec()  # the first in its row, where panels stand below each other
    axes.set_yticks(range(len(lines)), [name if spot.is_first_col() else "" for name, _ in lines])
    axes.set(ylim=(len(lines) - 0.5, -0.5), xlabel="%")
