"""The charts of a comparison or of a single run, from the runs' folders alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from negbench.grid.comparison import Group
from negbench.mining import curves
from negbench.mining.curves import Curves
from negbench.report.charts import PALETTE, Chart, Heat, Mark, Panel, Series, Style
from negbench.report.curve import label_of
from negbench.report.leader import spread

_MOMENTS = {"start": "before training", "warm": "after the warm-up", "end": "after training"}
_TARGET, _DROPS, _POOL = PALETTE[2], PALETTE[3], PALETTE[1]
_CURVE_POINTS = 1500  # of one query's curve in the page; beyond, only every n-th place of the tail


@dataclass(frozen=True, eq=False)
class Runs:
    """Groups of one (data set, backbone), with the words and styles that all its charts share."""

    groups: tuple[Group, ...]  # by the main metric, the best first
    dataset: str
    backbone: str
    suffix: str  # of the charts' keys where a page holds several data sets or backbones

    @cached_property
    def strategies(self) -> list[str]:
        """By name, in alphabetical order, so that a colour does not depend on a result."""
        return sorted({group.labels["strategy"] for group in self.groups})

    @cached_property
    def losses(self) -> list[str]:
        """By name, in alphabetical order."""
        return sorted({group.labels["loss"] for group in self.groups})

    @cached_property
    def main(self) -> str:
        """The metric that the data set is judged by."""
        return str(self.groups[0].results[0]["main_metric"])

    def style(self, group: Group) -> Style:
        """Colour by strategy, marker by loss, the same in every chart."""
        return Style(self.strategies.index(group.labels["strategy"]), self.losses.index(group.labels["loss"]))

    def key(self, name: str) -> str:
        """A chart's file name."""
        return f"{name}{self.suffix}"

    def by_loss(self) -> Iterable[tuple[str, list[Group]]]:
        """Groups of each loss."""
        for loss in self.losses:
            yield loss, [group for group in self.groups if group.labels["loss"] == loss]


def parts_of(groups: Sequence[Group]) -> list[Runs]:
    """One `Runs` for each data set and backbone; `groups` are not empty."""
    found: dict[tuple[str, str], list[Group]] = {}
    for group in sorted(groups, key=lambda g: -float(np.mean(g.values("metrics", g.results[0]["main_metric"])))):
        found.setdefault((group.labels["dataset"], group.labels["backbone"]), []).append(group)
    several = len(found) > 1
    return [
        Runs(tuple(members), dataset, backbone, f"-{number}" if several else "")
        for number, ((dataset, backbone), members) in enumerate(sorted(found.items()), 1)
    ]


# --- against the epoch -------------------------------------------------------------------------------------------


def training(runs: Runs) -> Chart:
    """Main metric against the epoch, a marker where pools were redefined: QuRe fig. 4."""
    name = label_of(runs.main)
    panels = []
    for loss, groups in runs.by_loss():
        series = tuple(filter(None, (_training_line(runs, group) for group in groups)))
        panels.append(Panel(loss, "epochs trained", f"{name} (%)", series))
    return Chart(
        runs.key("training"),
        f"{name} against the epoch",
        f"Lines: {name} of the reported split after each epoch, one line for each strategy. Loss:",
        tuple(panels),
        ("Mean over seeds; the band goes from the lowest to the highest seed. " if _several(runs) else "")
        + "0 is the untrained model. A marker stands where pools had just been redefined from the model's scores.",
    )


def _several(runs: Runs) -> bool:
    """Whether any line stands for more than one seed."""
    return any(len(group.runs) > 1 for group in runs.groups)


def _training_line(runs: Runs, group: Group) -> Series | None:
    tables = [
        {int(p["epoch"]) + 1: 100 * p[f"val/{runs.main}"] for p in run.metrics() if f"val/{runs.main}" in p}
        for run in group.runs
    ]
    epochs = sorted(set.intersection(*(set(table) for table in tables)))
    if not epochs:
        return None
    values = np.array([[table[epoch] for epoch in epochs] for table in tables])
    refreshed = set(group.results[0]["refresh_epochs"])
    several = len(tables) > 1
    return Series(
        group.labels["strategy"],
        tuple(map(float, epochs)),
        tuple(values.mean(0).tolist()),
        Style(runs.style(group).index),
        "marked" if refreshed & set(epochs) else "line",
        tuple(values.min(0).tolist()) if several else (),
        tuple(values.max(0).tolist()) if several else (),
        tuple(index for index, epoch in enumerate(epochs) if epoch in refreshed),
    )


def pools(runs: Runs) -> Chart:
    """Pool size at each refresh: QuRe fig. 5, DQE-CIR fig. 7."""
    return _per_refresh(
        runs,
        "pools",
        "Pool size at each refresh",
        ("pool_size", 1.0, "images in the pool"),
        "Mean over queries and seeds; a batch strategy has a value for each epoch, its pool is the batch.",
    )


def false_negatives(runs: Runs) -> Chart | None:
    """False-negative rate of the draws at each refresh; None where nothing but the target is known to be relevant."""
    chart = _per_refresh(
        runs,
        "false-negatives",
        "False negatives among the draws at each refresh",
        ("false_negative_rate_draws", 100.0, "false negatives (%)"),
        "Share of the drawn negatives that are known to be relevant to their query.",
    )
    return chart if any(panel.series for panel in chart.panels if isinstance(panel, Panel)) else None


def _per_refresh(runs: Runs, key: str, title: str, what: tuple[str, float, str], text: str) -> Chart:
    name, factor, label = what
    panels: list[tuple[str, tuple[Series, ...]]] = []
    everything: list[float] = []
    for loss, groups in runs.by_loss():
        lines = []
        for group in groups:
            found: dict[int, list[float]] = {}
            for result in group.results:
                for row in result["behaviour_by_refresh"]:
                    if row.get(name) is not None:
                        found.setdefault(int(row["epoch"]), []).append(factor * row[name])
            if found:
                x, y = zip(*((float(e), float(np.mean(v))) for e, v in sorted(found.items())), strict=True)
                everything.extend(y)
                lines.append(Series(group.labels["strategy"], x, y, Style(runs.style(group).index), "marked"))
        panels.append((loss, tuple(lines)))
    wide = bool(everything) and min(everything) > 0 and max(everything) > 20 * min(everything)
    return Chart(
        runs.key(key),
        title,
        f"Lines: {label} at each refresh, one line for each strategy. Loss:",
        tuple(Panel(loss, "epochs trained", label, lines, log_y=wide) for loss, lines in panels),
        text + (" The vertical axis is logarithmic." if wide else ""),
    )


# --- scores ------------------------------------------------------------------------------------------------------


def score_curves(runs: Runs) -> dict[str, Chart]:
    """For each group the sorted scores at three moments, over all queries and of one: QuRe fig. 7-8.

    Groups whose first run kept no curves are left out. The one query is the same in every chart.
    """
    kept = {index: _kept(group.runs[0].path) for index, group in enumerate(runs.groups)}
    kept = {index: found for index, found in kept.items() if found}
    if not kept:
        return {}
    chosen = _typical(next(iter(kept.values())))
    charts = {}
    for index, found in kept.items():
        group = runs.groups[index]
        first = next(iter(found.values()))
        name = f"{group.labels['strategy']}, {group.labels['loss']}"
        panels = [_all_queries(moment, one) for moment, one in found.items()]
        panels += [_one_query(moment, one, chosen) for moment, one in found.items() if chosen < one.kept]
        charts[name] = Chart(
            runs.key(f"scores-{_slug(name)}"),
            f"Sorted scores: {name}",
            f"Score against the rank, with the target, the two steepest drops and the pool marked, {name}:",
            tuple(panels),
            f"{len(first.queries):,} sampled train queries of the run with seed "
            f"{group.runs[0].config.seed}, scored against their corpus. Over all queries: mean score, the band from "
            "the 10th to the 90th percentile; marks at the median place. Batch strategies have no pool in the ranking.",
            across=len(found),
        )
    return charts


def _kept(folder: Path) -> dict[str, Curves]:
    found = {}
    for moment in curves.MOMENTS:
        path = folder / curves.file_name(moment)
        if path.exists():
            found[moment] = Curves.load(path)
    return found


def _typical(found: Mapping[str, Curves]) -> int:
    """The kept query whose target's place before training is their median: neither an easy one nor a lost one."""
    first = next(iter(found.values()))
    if not first.kept:
        return 0
    return int(np.argsort(first.target[: first.kept], kind="stable")[first.kept // 2])


def _all_queries(moment: str, found: Curves) -> Panel:
    x = tuple((100 * found.share.astype(float)).tolist())
    line = Series(
        "score",
        x,
        tuple(found.mean.tolist()),
        Style(0),
        low=tuple(found.low.tolist()),
        high=tuple(found.high.tolist()),
    )

    def median(values: Any) -> float:
        known = values[~np.isnan(values)]
        return 100 * float(np.median(known)) if len(known) else math.nan

    drops, pool = found.shares(np.sort(found.drops, axis=1)), found.shares(found.pool)
    marks = _marks(
        median(found.shares(found.target)),
        [median(drops[:, 0]), median(drops[:, 1])],
        [median(pool[:, 0]), median(pool[:, 1])],
    )
    return Panel(f"all queries, {_MOMENTS[moment]}", "rank (% of the corpus)", "score", (line,), marks)


def _one_query(moment: str, found: Curves, index: int) -> Panel:
    curve, length = found.curve(index), int(found.length[index])
    places = np.arange(length)
    if length > _CURVE_POINTS:
        marked = [found.target[index], *found.drops[index], *found.pool[index]]
        near = [p + step for p in marked for step in (-1, 0, 1)]
        spaced = np.linspace(0, length - 1, _CURVE_POINTS - 300).round().astype(np.int64)
        places = np.unique(np.clip(np.concatenate([np.arange(300), spaced, near]), 0, length - 1))
    line = Series("score", tuple((places + 1.0).tolist()), tuple(curve[places].tolist()), Style(0))
    marks = _marks(
        _rank(found.target[index]),
        [_rank(place) + 0.5 for place in sorted(found.drops[index])],  # a drop lies between two places
        [_rank(place) for place in found.pool[index]],
    )
    title = f"query {int(found.queries[index])}, {_MOMENTS[moment]}"
    return Panel(title, "rank", "score", (line,), marks)


def _rank(place: int) -> float:
    return float(place + 1) if place >= 0 else math.nan


def _marks(target: float, drops: Sequence[float], pool: Sequence[float]) -> tuple[Mark, ...]:
    marks = []
    if not any(map(math.isnan, pool)):
        marks.append(Mark("pool", pool[0], pool[1], _POOL))
    if not math.isnan(target):
        marks.append(Mark("target", target, color=_TARGET, dash="solid"))
    names = ("upper drop", "lower drop")
    marks += [
        Mark(name, at, color=_DROPS, dash=dash)
        for name, at, dash in zip(names, drops, ("dash", "dot"), strict=True)
        if not math.isnan(at)
    ]
    return tuple(marks)


# --- strategies against each other -------------------------------------------------------------------------------


def heat_map(runs: Runs) -> Chart | None:
    """Strategy x loss, main metric; None where there is one strategy or one loss."""
    if len(runs.strategies) < 2 or len(runs.losses) < 2:
        return None
    table = {(g.labels["strategy"], g.labels["loss"]): g.values("metrics", runs.main) for g in runs.groups}
    cells = [[table.get((strategy, loss)) for loss in runs.losses] for strategy in runs.strategies]
    name = label_of(runs.main)
    heat = Heat(
        f"{name} (%)",
        tuple(runs.strategies),
        tuple(runs.losses),
        tuple(tuple(None if v is None else 100 * float(np.mean(v)) for v in row) for row in cells),
        tuple(tuple("" if v is None else spread(v) for v in row) for row in cells),
    )
    return Chart(
        runs.key("heat-map"),
        f"{name} of every strategy under every loss",
        f"Heat map of {name}: rows are strategies, columns are losses.",
        (heat,),
        "Mean ± standard deviation over seeds.",
    )


def trade_offs(runs: Runs) -> Chart:
    """Main metric against the false-negative rate of the draws, and against the time that mining took."""
    name = label_of(runs.main)
    against: list[tuple[str, str, Callable[[Group], float | None]]] = [
        (f"{name} and false negatives", "false negatives among the draws (%)", _false_negative_rate),
        (f"{name} and mining time", "mining (seconds a run)", _mining_seconds),
    ]
    panels = []
    for title, label, value_of in against:
        points = []
        for group in runs.groups:
            x = value_of(group)
            if x is not None and math.isfinite(x):
                points.append(_point(runs, group, x))
        if points:
            markers = [_marker(index, loss) for index, loss in enumerate(runs.losses)] if len(runs.losses) > 1 else []
            panels.append(Panel(title, label, f"{name} (%)", (*points, *markers)))
    return Chart(
        runs.key("trade-offs"),
        f"What {name} comes with",
        f"Points: {name} of each strategy and loss against",
        tuple(panels),
        "Colour is the strategy, the marker the loss; bars are one standard deviation over seeds. Seconds depend on "
        "the machine and on what else it did.",
    )


def _point(runs: Runs, group: Group, x: float) -> Series:
    values = [100 * value for value in group.values("metrics", runs.main)]
    mean = float(np.mean(values))
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    strategy, loss = group.labels["strategy"], group.labels["loss"]
    low, high = ((mean - deviation,), (mean + deviation,)) if deviation else ((), ())
    told = (f"{strategy}, {loss}: {mean:.2f} at {x:.3g}",)
    return Series(strategy, (x,), (mean,), runs.style(group), "points", low, high, texts=told)


def _marker(index: int, loss: str) -> Series:
    """An entry of the legend without a point."""
    return Series(loss, (math.nan,), (math.nan,), Style(7, index), "points")


def _false_negative_rate(group: Group) -> float | None:
    rates = group.values("behaviour", "false_negative_rate_draws")
    return 100 * float(np.mean(rates)) if rates else None


def _mining_seconds(group: Group) -> float | None:
    return float(np.sum(group.values("seconds", "mine"))) / len(group.runs)


def loss_curve(runs: Runs) -> Chart:
    """Training loss against the epoch."""
    panels = []
    for loss, groups in runs.by_loss():
        lines = []
        for group in groups:
            tables = [
                {int(p["epoch"]) + 1: p["train/loss"] for p in r.metrics() if "train/loss" in p} for r in group.runs
            ]
            epochs = sorted(set.intersection(*(set(table) for table in tables)))
            y = tuple(float(np.mean([table[epoch] for table in tables])) for epoch in epochs)
            lines.append(Series(group.labels["strategy"], tuple(map(float, epochs)), y, Style(runs.style(group).index)))
        panels.append(Panel(loss, "epochs trained", "loss", tuple(lines)))
    return Chart(
        runs.key("loss"),
        "Training loss",
        "Lines: training loss of each epoch, one line for each strategy. Loss:",
        tuple(panels),
        ("Mean over seeds. " if _several(runs) else "")
        + "The losses of different strategies are of different negatives: a lower one is not better.",
    )


def _slug(text: str) -> str:
    kept = "".join(c if c.isalnum() else "-" for c in text.lower())
    return "-".join(part for part in kept.split("-") if part)
