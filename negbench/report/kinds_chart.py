"""The figure of a rule's draws and of its mistakes, by kind of judged negative."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from negbench.analysis.columns import READ
from negbench.analysis.kinds import KindShares, kind_shares
from negbench.report.charts import GREY, PALETTE, Chart, Panel, tall_enough
from negbench.report.figures import Runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def kinds_chart(runs: Runs) -> Chart | None:
    """Draw each strategy's draws and mistakes by kind; None where the data judge no negatives."""
    named = "{strategy}, {loss}" if len(runs.losses) > 1 else "{strategy}"
    groups = [group for _, of_loss in runs.by_loss() for group in of_loss]
    lines = [(named.format_map(group.labels), shares) for group in groups if (shares := kind_shares(group))]
    if not lines:
        return None
    text = READ["kinds"].format(size=runs.size)
    titles, tall = ("drawn", "left among the first ten"), tall_enough(len(lines) * (1 + len(lines[0][1])))
    panels = tuple(Panel(title, partial(_draw, lines, side), tall) for side, title in enumerate(titles))
    return Chart(f"kinds{runs.suffix}", "Negatives drawn, and mistakes left, by kind", text, panels, 2)


def _draw(lines: Sequence[tuple[str, Sequence[KindShares]]], side: int, axes: "Axes") -> None:
    """Draw one side: a row per strategy, in it a mark and an interval per kind."""
    count = len(lines[0][1])
    for place, kind in enumerate(share.kind for share in lines[0][1]):
        y = np.arange(len(lines)) + (place + 1) / (count + 1) - 0.5
        shares = [shares[place] for _, shares in lines]
        mean, low, high = 100 * np.array([(each.drawn, each.left)[side] for each in shares]).T
        axes.errorbar(mean, y, None, (mean - low, high - mean), "oDs^"[place], color=PALETTE[place], label=kind)
        if not side:
            axes.plot([100 * each.random for each in shares], y, "|", color=GREY)
    spot: Any = axes.get_subplotspec()  # the first in its row, where panels stand below each other
    axes.set_yticks(range(len(lines)), [name if spot.is_first_col() else "" for name, _ in lines])
    axes.set(ylim=(len(lines) - 0.5, -0.5), xlabel="%")
