"""The zone: what negatives are worth against the rank that they come from."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from negbench.analysis.columns import READ
from negbench.analysis.frame import config_of, key_of, mean_of
from negbench.analysis.verdict_record import TABLE_AXES, Estimate, Verdict
from negbench.analysis.words import join_names, label_of, plural
from negbench.grid.axis import group_key
from negbench.mining.window import WINDOW
from negbench.report.charts import GREY, PALETTE, Chart, Panel, label_ends, log_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class _Rule:
    """A rule's gain over the baseline, and where its negatives come from."""

    strategy: str
    baseline: str
    gain: Estimate
    rank: float  # median rank of the drawn negatives, from 1; mean over refreshes and seeds
    window: bool


def zone_chart(groups: Sequence[pd.DataFrame], rows: Sequence[Verdict]) -> Chart | None:
    """Draw each rule's gain over the baseline against the median rank of its negatives; None without two windows.

    A panel holds one table's rows of one number of negatives. Batch strategies, which rank no corpus, have no point.
    """
    cells_of = {key_of(cells): cells for cells in groups}
    rules_by_panel: dict[tuple[str, ...], list[_Rule]] = {}  # number of negatives, then the table's values of its axes
    for row in rows:
        cells = cells_of.get(group_key(vars(row)))
        if not row.main or row.against_baseline is None or cells is None:
            continue
        rank = mean_of(cells, "behaviour/draw_rank_median")
        if math.isnan(rank):
            continue
        config = config_of(cells)
        window = config.strategy.name == WINDOW
        rule = _Rule(row.strategy, row.baseline, row.against_baseline, rank, window)
        rules_by_panel.setdefault((str(config.train.num_negatives), *row.table_key), []).append(rule)
    keys = []
    ends: list[float] = []
    names = set()
    for key, rules in rules_by_panel.items():
        if sum(rule.window for rule in rules) > 1:
            keys.append(key)
            names |= {rule.baseline for rule in rules}
            ends += [100 * rule.gain.low for rule in rules] + [100 * rule.gain.high for rule in rules]
    if not keys:
        return None
    metric = label_of(rows[0].metric)
    baselines = join_names(sorted(names))
    ylabel = f"{metric}, points over {baselines}"
    titles = _titles(keys)
    panels = []
    for key in sorted(keys, key=_order):
        panels.append(Panel(titles[key], partial(_draw, rules_by_panel[key], ylabel, ends), 2.6))
    level = 100 * (1 - rows[0].alpha)
    text = READ["zone"].format(metric=metric, baselines=baselines, level=level)
    return Chart("zone", "Where in the ranking should negatives come from?", text, tuple(panels), 2, direct=True)


def _panel_labels(key: tuple[str, ...]) -> dict[str, str]:
    """Return the number of negatives and the table's values of a panel by name."""
    return dict(zip(("negatives", *TABLE_AXES), key, strict=True))


def _order(key: tuple[str, ...]) -> tuple[int, int]:
    """Sort panels by the number of negatives, then by the training budget."""
    labels = _panel_labels(key)
    return int(labels["negatives"]), int(labels["epochs"] or 0)


def _titles(keys: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Return each panel's title: its number of negatives, and the values in which the panels differ."""
    values_on_axes: dict[str, set[str]] = {axis: set() for axis in TABLE_AXES}
    for key in keys:
        labels = _panel_labels(key)
        for axis in TABLE_AXES:
            values_on_axes[axis].add(labels[axis])
    titles = {}
    for key in keys:
        labels = _panel_labels(key)
        count = int(labels["negatives"])
        parts = [f"{count} {plural(count, 'negative')} per query and step"]
        for axis, values in values_on_axes.items():
            if len(values) > 1 and labels[axis]:
                parts.append(f"{labels[axis]} epochs" if axis == "epochs" else labels[axis])
        titles[key] = ", ".join(parts)
    return titles


def _draw(rules: Sequence[_Rule], ylabel: str, reach: Sequence[float], axes: "Axes") -> None:
    """Draw windows as a line through their ranks, each other rule as a point, with intervals; names to the right.

    `reach`: numbers that the y axis holds, the same in every panel.
    """
    windows = sorted((rule for rule in rules if rule.window), key=lambda rule: rule.rank)
    series = [windows, *([rule] for rule in rules if not rule.window)]
    ends = []
    for color, members in zip(itertools.cycle(PALETTE), series):
        x = [rule.rank for rule in members]
        y = np.array([100 * rule.gain.value for rule in members])
        low = np.array([100 * rule.gain.low for rule in members])
        high = np.array([100 * rule.gain.high for rule in members])
        marker = "o-" if members[0].window else "D"
        axes.errorbar(x, y, yerr=np.abs([y - low, high - y]), color=color, fmt=marker, elinewidth=0.8)
        ends.append((y[-1], "windows" if members[0].window else members[0].strategy, color))
    axes.axhline(0, color=GREY, linewidth=1)
    log_axis(axes)
    axes.set_ylim(min(*reach, 0) - 1, max(*reach, 0) + 1)
    label_ends(axes, ends)
    axes.set(xlabel="median rank of the negatives (1: the hardest)", ylabel=ylabel)
