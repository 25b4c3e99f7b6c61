"""When is a mined negative worth it? Give every row its own temperature and rate, then draw what it gains.

Run the trials that the recipe `batch-size` (or `evenness`) names, on data that are not reported. `choose` prints the
best temperature and rate of every row, and the commands that run each row at its own:

    python examples/gain_figure.py choose runs/bs-trials --by train.batch_size
    python examples/gain_figure.py choose runs/ev-trials --by backbone.decay,backbone.noise --metric map_at_10

Run those commands. `draw` reads what they left, and draws the gain of every row over the batch alone, each at its own
temperature and rate, as tables and as one picture:

    python examples/gain_figure.py draw runs/bs-8-* runs/bs-32-* runs/bs-128-* --trials runs/bs-trials \
        --by train.batch_size --panels train.epochs --out gain.svg

The first of `--by` is the figure's x axis. Under each of its values stands what the batch alone reaches there.
`--level 92:CIRR` marks where the batch alone reaches a published R@10. Intervals are simultaneous for a panel's
differences on one metric. They hold given the temperatures and rates that the trials chose.

`settings` prints tables of what every row of some comparisons gains over the batch alone, a column a comparison; where
one has no row of the batch alone, that of `--alone` stands in, with the same seeds:

    python examples/gain_figure.py settings runs/ev-hidden-0.5 runs/ev-fifteen-0.5 --alone runs/ev-0.5-0.3-0.1-0.009
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from negbench.analysis.differences import differences
from negbench.analysis.frame import folders_of, results_of
from negbench.analysis.words import label_of
from negbench.report.charts import GREY, PALETTE, Chart, Panel, picture
from negbench.scoring.values import values_of

BASELINE = "in-batch"
PAIR = ["loss.tau", "train.lr"]  # what is chosen
METRICS = ["recall_at_1", "recall_at_10", "map_at_10"]
LEVELS_OF = "recall_at_10"  # the metric of published levels


def cells_of(folders: Sequence[Path], settings: Sequence[str]) -> pd.DataFrame:
    """Return a row for each finished run of these comparisons, with a column for each setting; a run stands once."""
    frames = []
    for folder in folders:
        results = results_of(folder.parent, folder.name)
        flat = [run.config.flat() for run in results["stored"]]
        for setting in settings:
            results[setting] = [values.get(setting, values.get(_option_of(setting))) for values in flat]
        frames.append(results)
    return pd.concat(frames, ignore_index=True).drop_duplicates("run", ignore_index=True)


def _option_of(setting: str) -> str:
    """Return 'loss.options.tau' for 'loss.tau', as a configuration names a plug-in's option."""
    section, _, name = setting.partition(".")
    return f"{section}.options.{name}"


def best_pairs(trials: pd.DataFrame, by: Sequence[str], metric: str) -> pd.DataFrame:
    """Return the pair with the highest mean over the trials' seeds: a row for each setting and strategy.

    Of pairs with the same mean the one with the lower temperature, then the lower rate. Ends the program if pairs of
    one row were tried with different numbers of seeds, as their means are no choice then.
    """
    counts = trials.groupby([*by, "strategy", *PAIR])["seed"].nunique()
    if (counts.groupby([*by, "strategy"]).nunique() > 1).any():
        raise SystemExit("some pairs were tried with fewer seeds than others of their row: finish the trials first")
    means = trials.groupby([*by, "strategy", *PAIR], as_index=False, sort=True)[f"metrics/{metric}"].mean()
    best = means.groupby([*by, "strategy"], sort=False)[f"metrics/{metric}"].idxmax()
    return means.loc[best].rename(columns={f"metrics/{metric}": metric}).reset_index(drop=True)


def commands(pairs: pd.DataFrame, by: Sequence[str], command: str, name: str) -> list[str]:
    """Return one command for each setting and pair, which runs all strategies that take this pair there."""
    lines = []
    for key, rows in pairs.groupby([*by, *PAIR], sort=True):
        *values, tau, rate = key
        settings = [f"--set {key}={value}" for key, value in zip(by, values, strict=True)]
        strategies = ",".join(as_option(strategy) for strategy in rows["strategy"])
        comparison = "-".join(str(value) for value in (name, *key))
        pair = f"--losses info-nce:tau={tau} --lr {rate}"
        lines.append(f"{command} {' '.join(settings)} {pair} --strategies {strategies} --name {comparison}")
    return lines


def as_option(strategy: str) -> str:
    """Return a strategy as the command line names it: 'top-k(k=50, shared=true)' -> 'top-k:k=50:shared=true'."""
    return strategy.replace("(", ":").replace(", ", ":").replace(")", "")


def beside_the_batch(folders: Sequence[Path], alone: Path | None) -> pd.DataFrame:
    """Return the runs of these comparisons, with a column `comparison`, which names the folder.

    A comparison without a row of the batch alone is given that of `alone`, with its own seeds. Ends the program if
    `alone` has not all of them, or is not given.
    """
    frames = []
    for folder in folders:
        cells = cells_of([folder], [])
        if BASELINE not in set(cells["strategy"]):
            stand_in = cells_of([alone], []) if alone else cells[:0]
            stand_in = stand_in[(stand_in["strategy"] == BASELINE) & stand_in["seed"].isin(cells["seed"])]
            if set(stand_in["seed"]) != set(cells["seed"]):
                raise SystemExit(f"{folder.name} has no row {BASELINE}: name a comparison that has it with --alone")
            cells = pd.concat([cells, stand_in], ignore_index=True)
        frames.append(cells.assign(comparison=folder.name))
    return pd.concat(frames, ignore_index=True)


def at_their_own(cells: pd.DataFrame, pairs: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Keep the cells whose strategy runs at its chosen pair."""
    return cells.merge(pairs[[*by, "strategy", *PAIR]], on=[*by, "strategy", *PAIR])


def gains(cells: pd.DataFrame, x: str, panels: Sequence[str]) -> pd.DataFrame:
    """Return the difference of every strategy to the batch alone, in points; a row for each setting, metric, strategy.

    All intervals of a panel and a metric hold together with 95 %: each value of `x` spends an equal part of the 5 %.

    Args:
        cells: of strategies at their own pairs.
        x: the setting on the figure's x axis.
        panels: settings that part the panels.
    """
    records: list[dict[str, Any]] = []
    for panel, of_panel in _split(cells, panels):
        points = of_panel[x].nunique()
        for value, of_value in of_panel.groupby(x, sort=True):
            queries: dict[int, Any] = {}
            values = {}
            for strategy, rows in of_value.groupby("strategy", sort=False):
                values[strategy] = values_of(folders_of(rows.sort_values("seed")), METRICS, queries)
            if len(values) < 2 or BASELINE not in values:
                continue
            point = {**panel, x: value}
            for metric in METRICS:
                of_metric = {strategy: by_metric[metric] for strategy, by_metric in values.items()}
                tests = differences(of_metric, BASELINE, alpha_part=1 / points, key=f"{point}/{metric}")
                level = 100 * tests.means[BASELINE].mean
                for strategy, test in tests.against.items():
                    records.append(
                        {
                            **point,
                            "metric": metric,
                            "strategy": strategy,
                            "batch alone": level,
                            "gain": 100 * test.value,
                            "low": 100 * test.interval.low,
                            "high": 100 * test.interval.high,
                            "seeds": test.seeds,
                        }
                    )
    return pd.DataFrame(records)


def _split(frame: pd.DataFrame, panels: Sequence[str]) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Return each panel's settings with its rows."""
    if not panels:
        return [({}, frame)]
    split = []
    for values, rows in frame.groupby(list(panels), sort=True):
        split.append((dict(zip(panels, values, strict=True)), rows))
    return split


def table(rows_of_gains: pd.DataFrame, x: str, panels: Sequence[str]) -> str:
    """Return the gains as tables in Markdown, one for each metric: a row a strategy, a column a setting."""
    parts = []
    for metric in METRICS:
        of_metric = rows_of_gains[rows_of_gains["metric"] == metric]
        head = ["in addition to the batch"]
        batch_alone = [f"nothing: {label_of(metric)}"]
        rows_by_labels = _split(of_metric, [*panels, x])
        for labels, rows in rows_by_labels:
            head.append(_heading(labels))
            batch_alone.append(f"{rows['batch alone'].iloc[0]:.1f} %")
        lines = [head, ["---" for _ in head], batch_alone]
        for strategy in dict.fromkeys(of_metric["strategy"]):
            cells = [_cell(rows[rows["strategy"] == strategy]) for _, rows in rows_by_labels]
            lines.append([f"`{strategy}`", *cells])
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts)


def _heading(labels: Mapping[str, Any]) -> str:
    """Return settings as a heading: 'batch_size 8, epochs 3'; a comparison is its name."""
    if "comparison" in labels:
        return str(labels["comparison"])
    return ", ".join(f"{key.partition('.')[2]} {value:g}" for key, value in labels.items())


def _cell(rows: pd.DataFrame) -> str:
    """Return a gain with its interval; bold if the interval lies on one side of 0."""
    if rows.empty:
        return ""
    row = rows.iloc[0]
    text = f"{row['gain']:+.1f} [{row['low']:.1f}, {row['high']:.1f}]"
    return f"**{text}**" if row["low"] > 0 or row["high"] < 0 else text


def chart(
    rows_of_gains: pd.DataFrame,
    x: str,
    panels: Sequence[str],
    metrics: Sequence[str],
    marks: Sequence[str],
    levels: Sequence[str] = (),
) -> Chart:
    """Draw a row of panels for each metric: the gain against the first setting, a line for each strategy.

    Where a metric has one panel, they stand side by side.

    `marks`: 'VALUE:NAME', a vertical line at a value of `x`; `levels`: one where the batch alone reaches this R@10.
    """
    strategies = sorted(rows_of_gains["strategy"].unique())  # so that figures of the same rows have the same colours
    drawings = []
    across = 1
    for metric in metrics:
        of_metric = rows_of_gains[rows_of_gains["metric"] == metric]
        split = _split(of_metric, panels)
        across = len(split)
        for panel, rows in split:
            title = ", ".join([label_of(metric), _heading(panel)]) if panel else label_of(metric)
            lines = _mark_positions(rows, x, marks)
            if metric == LEVELS_OF:
                lines += _level_positions(rows, x, levels)
            drawings.append(Panel(title, partial(_draw, rows, x, strategies, lines)))
    if across == 1:
        across = len(metrics)
    return Chart("gain", "", "", tuple(drawings), across)


def _mark_positions(rows: pd.DataFrame, x: str, marks: Sequence[str]) -> list[tuple[float, str]]:
    """Return where on a panel's axis these values of `x` lie, with their names; none that lie outside."""
    values = sorted(rows[x].unique())
    positions = []
    for mark in marks:
        text, _, name = mark.partition(":")
        value = float(text)
        if values[0] <= value <= values[-1]:
            positions.append((float(np.interp(value, values, range(len(values)))), name))
    return positions


def _level_positions(rows: pd.DataFrame, x: str, levels: Sequence[str]) -> list[tuple[float, str]]:
    """Return where the batch alone reaches these levels, between two settings, with their names; none it misses."""
    alone = rows.groupby(x, sort=True)["batch alone"].first().to_list()
    positions = []
    for mark in levels:
        text, _, name = mark.partition(":")
        level = float(text)
        for index, (before, after) in enumerate(itertools.pairwise(alone)):
            if before != after and min(before, after) <= level <= max(before, after):
                positions.append((index + (level - before) / (after - before), name))
                break
    return positions


def _draw(rows: pd.DataFrame, x: str, strategies: Sequence[str], marks: Sequence[tuple[float, str]], axes: Any) -> None:
    values = sorted(rows[x].unique())
    positions = {value: index for index, value in enumerate(values)}
    for number, strategy in enumerate(strategies):
        line = rows[rows["strategy"] == strategy].sort_values(x)
        beside = 0.06 * (number - (len(strategies) - 1) / 2)  # so that intervals do not cover each other
        at = [positions[value] + beside for value in line[x]]
        reach = np.array([line["gain"] - line["low"], line["high"] - line["gain"]])
        axes.errorbar(
            at,
            line["gain"],
            yerr=reach,
            color=PALETTE[number],
            fmt="o-",
            elinewidth=0.8,
            label=strategy.removeprefix("in-batch+"),
        )
    axes.axhline(0, color=GREY, linewidth=1)
    for number, (at, name) in enumerate(marks):
        below = -8 - 9 * number  # so that names of near lines do not cover each other
        axes.axvline(at, color=GREY, linewidth=0.8, linestyle=":")
        axes.annotate(name, (at, 1), (3, below), ("data", "axes fraction"), "offset points", color=GREY, fontsize=7)
    alone = rows.groupby(x)["batch alone"].first()
    axes.set_xticks(range(len(values)), [f"{value:g}\n{alone[value]:.1f} %" for value in values])
    axes.set(xlabel=f"{x}, and the batch alone", ylabel="points over the batch alone")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    choosing = steps.add_parser("choose", help="print each row's best pair, and commands")
    choosing.add_argument("trials", type=Path, nargs="+")
    choosing.add_argument("--command", default="negbench compare --recipe RECIPE")
    choosing.add_argument("--name", default="gain", help="names of the comparisons begin with it")
    drawing = steps.add_parser("draw", help="print tables, write a picture")
    drawing.add_argument("folders", type=Path, nargs="+")
    drawing.add_argument("--trials", type=Path, action="append", required=True, help="by which pairs were chosen")
    drawing.add_argument("--panels", default="", help="settings that part the panels")
    drawing.add_argument("--metrics", default=",".join(METRICS), help="of the picture")
    drawing.add_argument("--mark", action="append", default=[], help="VALUE:NAME on the x axis")
    drawing.add_argument("--out", type=Path, required=True, help="the picture, an SVG file")
    drawing.add_argument("--level", action="append", default=[], help="VALUE:NAME, an R@10 in percent")
    beside = steps.add_parser("settings", help="print what the rows of each comparison gain")
    beside.add_argument("folders", type=Path, nargs="+")
    beside.add_argument("--alone", type=Path, help="a comparison with a row of the batch alone")
    for step in (choosing, drawing):
        step.add_argument("--by", required=True, help="settings at which pairs were chosen")
        step.add_argument("--metric", default="recall_at_10", help="by which pairs were chosen")
    options = parser.parse_args()
    if options.step == "settings":
        print(table(gains(beside_the_batch(options.folders, options.alone), "comparison", []), "comparison", []))
        return
    by = options.by.split(",")
    pairs = best_pairs(cells_of(options.trials, [*by, *PAIR]), by, options.metric)
    if options.step == "choose":
        print(pairs.to_string(index=False))
        print("\n".join(commands(pairs, by, options.command, options.name)))
        return
    panels = [name for name in options.panels.split(",") if name]
    cells = cells_of(options.folders, [*by, *panels, *PAIR])
    rows_of_gains = gains(at_their_own(cells, pairs, by), by[0], panels)
    print(table(rows_of_gains, by[0], panels))
    figure = chart(rows_of_gains, by[0], panels, options.metrics.split(","), options.mark, options.level)
    options.out.write_bytes(picture(figure, "svg", False))


if __name__ == "__main__":
    main()
