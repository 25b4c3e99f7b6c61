"""The zone: what negatives are worth against the rank that they come from."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from negbench.analysis.columns import READ
from negbench.analysis.verdicts import TABLE_AXES, VerdictRow
from negbench.analysis.words import label_of, listed
from negbench.grid.comparison import CellGroup, group_key
from negbench.mining.window import WINDOW
from negbench.report.charts import GREY, PALETTE, Chart, Panel, label_ends, log_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class _Rule:
    """A rule's gain and where its negatives come from."""

    row: VerdictRow
    rank: float  # median rank of the drawn negatives, from 1; mean over refreshes and seeds
    window: bool


def zone_chart(groups: Sequence[CellGroup], rows: Sequence[VerdictRow]) -> Chart | None:
    """Draw each rule's gain over the baseline against the median rank of its negatives; None without two windows.

    A panel holds one table's rows of one number of negatives. Batch strategies, which rank no corpus, have no point.
    """
    panels: dict[tuple[str, ...], list[_Rule]] = {}
    of_place = {group_key(group.labels): group for group in groups}
    for row in (row for row in rows if row.main and row.compared):
        group = of_place.get(group_key(vars(row)))
        ranks = group.values("behaviour", "draw_rank_median") if group else []
        if group and ranks:
            window = group.configs[0].strategy.name == WINDOW
            key = (str(group.configs[0].train.num_negatives), *(getattr(row, axis) for axis in TABLE_AXES))
            panels.setdefault(key, []).append(_Rule(row, float(np.mean(ranks)), window))
    panels = {key: rules for key, rules in panels.items() if sum(rule.window for rule in rules) > 1}
    if not panels:
        return None
    first = next(iter(panels.values()))[0].row
    baselines = listed(sorted({rule.row.baseline for rules in panels.values() for rule in rules}))
    ends = [100 * end for rules in panels.values() for r in rules for end in (r.row.diff_low, r.row.diff_high)]
    several = [len({key[index] for key in panels}) > 1 for index in range(1 + len(TABLE_AXES))]
    drawn = []
    epochs = 1 + TABLE_AXES.index("epochs")
    for key, rules in sorted(panels.items(), key=lambda panel: (int(panel[0][0]), int(panel[0][epochs] or 0))):
        parts = [f"{key[0]} negative{'s' * (key[0] != '1')} per query and step"]
        named = [*key[1:epochs], f"{key[epochs]} epochs" * bool(key[epochs]), *key[epochs + 1 :]]
        parts += [text for text, shown in zip(named, several[1:], strict=True) if shown and text]
        ylabel = f"{label_of(first.metric)}, points over {baselines}"
        drawn.append(Panel(", ".join(parts), partial(_draw, rules, ylabel, ends), 2.6))
    level = 100 * (1 - first.alpha)
    text = READ["zone"].format(metric=label_of(first.metric), baselines=baselines, level=level)
    return Chart("zone", "Where in the ranking should negatives come from?", text, tuple(drawn), 2, direct=True)


def _draw(rules: Sequence[_Rule], ylabel: str, reach: Sequence[float], axes: "Axes") -> None:
    """Draw windows as a line through their ranks, each other rule as a point, with intervals; names to the right.

    `reach`: numbers that the y axis holds, the same in every panel.
    """
    series = [[rule for rule in rules if rule.window], *([rule] for rule in rules if not rule.window)]
    ends = []
    for color, kept in zip(itertools.cycle(PALETTE), series):
        kept = sorted(kept, key=lambda rule: rule.rank)
        x, y = [rule.rank for rule in kept], np.array([100 * rule.row.difference for rule in kept])
        bars = np.abs(100 * np.array([[r.row.diff_low for r in kept], [r.row.diff_high for r in kept]]) - y)
        axes.errorbar(x, y, yerr=bars, color=color, fmt="o-" if kept[0].window else "D", elinewidth=0.8)
        ends.append((y[-1], "windows" if kept[0].window else kept[0].row.strategy, color))
    axes.axhline(0, color=GREY, linewidth=1)
    log_axis(axes)
    axes.set_ylim(min(*reach, 0) - 1, max(*reach, 0) + 1)
    label_ends(axes, ends)
    axes.set(xlabel="median rank of the negatives (1: the hardest)", ylabel=ylabel)
