"""Draw the two figures of docs/findings.md from folders of finished comparisons.

python docs/images/make.py plateau RUNS/plateau RUNS/emoji-plateau
python docs/images/make.py premises RUNS/premise-cliffs RUNS/premise-ranks RUNS/premise-band RUNS/premise-slots
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from negbench.report.charts import GREY, PALETTE

METRIC = "val/recall_at_10"
COLOURS = {"better": PALETTE[2], "worse": PALETTE[1], "equal": PALETTE[0], "undecided": GREY}
ORDER = (
    "in-batch",
    "all-corpus",
    "dqe",
    "cirqrs",
    "qure",
    "top-k",
    "after-target",
)  # a strategy's colour on both sides
TITLES = ("QuRe: its band - CIRQRS' set", "CIRQRS: below the target - from the top", "DQE-CIR: mid-zone - random",
          "HyCoLe-HNM: three slots - target's slot")  # fmt: skip
AXES = ("second drop over the third", "relevant right above the target, %", "false among random negatives, %",
        "queries an image")  # fmt: skip


def plateau(given: list[Path]) -> None:
    """Recall against steps, means over the seeds that all strategies share."""
    figure, all_axes = plt.subplots(1, len(given), figsize=(9.4, 3.4), layout="constrained")
    for axes, folder, title in zip(
        all_axes, given, ("generated worlds, 63 negatives", "emoji, 16 negatives"), strict=True
    ):
        curves = _curves(folder)
        shared = set.intersection(*(set(by_seed) for by_seed in curves.values()))
        for strategy, by_seed in sorted(curves.items(), key=lambda item: ORDER.index(item[0])):
            mean = pd.concat([by_seed[seed] for seed in shared], axis=1).mean(axis=1)
            axes.plot(
                mean.index, 100 * mean, label=strategy, color=PALETTE[ORDER.index(strategy)], marker="o", markersize=2.5
            )
        axes.set(title=f"{title}, {len(shared)} seeds", xlabel="steps", ylabel="R@10, %")
        axes.set_ylim(bottom=100 * min(curve.iloc[1] for each in curves.values() for curve in each.values()) - 3)
        axes.legend(fontsize=7)
    figure.savefig(Path(__file__).with_name("plateau.png"), dpi=110)


def _curves(folder: Path) -> dict[str, dict[int, pd.Series]]:
    """Of each strategy and seed: the metric by step."""
    curves: dict[str, dict[int, pd.Series]] = defaultdict(dict)
    for cell in json.loads((folder / "comparison.json").read_text())["cells"]:
        rows = map(json.loads, (folder.parent / cell["run"] / "metrics.jsonl").read_text().splitlines())
        points = {row["step"]: row[METRIC] for row in rows if METRIC in row}
        curves[cell["strategy"].split()[0]][cell["seed"]] = pd.Series(points)
    return curves


def premises(given: list[Path]) -> None:
    """Each rule against its nearest rival along its own premise, with the intervals of the look that decided."""
    figure, all_axes = plt.subplots(2, 2, figsize=(9.4, 5.6), layout="constrained")
    for axes, folder, title, label in zip(all_axes.flat, given, TITLES, AXES, strict=True):
        table = pd.read_csv(folder / "statistics.csv").query("main and verdict != 'baseline'")
        for number, row in enumerate(table.to_dict("records")):
            _point(axes, number, row)
        axes.set_xticks(range(len(table)), [_place(folder, row) for row in table.to_dict("records")])
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.axhspan(-1, 1, color=GREY, alpha=0.12, linewidth=0)
        metric = {"map_at_10": "mAP@10", "recall_at_10": "R@10"}[table["metric"].iloc[0]]
        axes.set(title=title, xlabel=label, ylabel=f"points of {metric}")
        axes.margins(x=0.12, y=0.15)
    handles = [plt.Line2D([], [], color=colour, marker="o", linestyle="") for colour in COLOURS.values()]
    figure.legend(handles, list(COLOURS), loc="outside lower center", ncols=len(COLOURS), fontsize=8)
    figure.savefig(Path(__file__).with_name("premises.png"), dpi=110)


def _point(axes: Axes, place: int, row: dict[str, float | str]) -> None:
    low, middle, high = (100 * float(row[key]) for key in ("diff_low", "difference", "diff_high"))
    colour = COLOURS[str(row["verdict"])]
    axes.errorbar(place, middle, yerr=np.array([[middle - low], [high - middle]]), color=colour, marker="o", capsize=3)
    axes.annotate(
        f"{row['seeds']} worlds", (place, high), (0, 3), textcoords="offset points", ha="center", fontsize=6.5
    )


def _place(folder: Path, row: dict[str, float | str]) -> str:
    """A point's dial, and the premise as measured at the last refresh."""
    point = row["point"]
    setting, _, value = str(point).partition("=")
    regime = pd.read_csv(folder / "regime.csv").query("point == @point").set_index("strategy")
    if setting == "look":
        return f"{regime.loc['qure', 'drop_prominence_second']:.1f}\n(look {value})"
    if setting == "twins":
        from_top = regime.filter(like="top-k", axis=0)
        share = from_top["false_negatives_above"] if len(from_top) else regime["false_negatives"]
        return f"{100 * share.iloc[0]:.1f}\n(twins {value})"
    return f"{300 / float(value):.2g}\n({value} images)"


if __name__ == "__main__":
    {"plateau": plateau, "premises": premises}[sys.argv[1]]([Path(each) for each in sys.argv[2:]])
