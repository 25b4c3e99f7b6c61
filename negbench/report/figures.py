"""Draw the charts of a comparison or of a single run from the runs' folders alone."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from negbench.analysis.columns import READ
from negbench.analysis.frame import (
    config_of,
    curve_of,
    first_run,
    folders_of,
    groups_of,
    labels_of,
    mean_of,
    shared_value,
)
from negbench.analysis.leader import group_by_negatives, negatives_text
from negbench.analysis.verdict_record import Estimate, Verdict
from negbench.analysis.verdicts import beside_batch
from negbench.analysis.words import (
    estimate_text,
    first_names,
    in_points,
    join_names,
    label_of,
    number,
    percent,
    seeds_text,
    shorten_names,
)
from negbench.machine.grouping import group_by
from negbench.metrics.fixed import KINDS
from negbench.metrics.score_curves import ScoreCurves, file_name, octave_positions
from negbench.report.charts import GREY, PALETTE, Chart, Panel, label_ends, line_style, tall_enough

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VERDICTS = {  # colour and marker, distinguishable without colours too
    "best": (PALETTE[2], "D"),
    "highest": (PALETTE[2], "D"),
    "better": (PALETTE[2], "^"),
    "worse": (PALETTE[1], "v"),
    "equal": (PALETTE[0], "s"),
    "undecided": (GREY, "o"),
}


@dataclass(frozen=True, eq=False)
class ChartData:
    """What the charts of one (data set, backbone, training budget) draw, with the words and styles that they share.

    Attributes:
        results: its finished cells (`negbench.analysis.frame`), in the order of the leader table.
        verdicts: on its strategies.
        where: what distinguishes it from the page's other parts.
        suffix: of the charts' keys where a page has several parts.
    """

    results: pd.DataFrame
    verdicts: tuple[Verdict, ...]
    where: str
    suffix: str

    @cached_property
    def groups(self) -> list[pd.DataFrame]:
        """The cells of each strategy and loss, over seeds."""
        return groups_of(self.results)

    @cached_property
    def strategies(self) -> list[str]:
        """Strategies in the order of their best rank in the leader table, as in every figure."""
        return list(self.results["strategy"].unique())

    @cached_property
    def losses(self) -> list[str]:
        """Names of the losses, in alphabetical order."""
        return sorted(self.results["loss"].unique())

    @cached_property
    def main(self) -> str:
        """The metric that verdicts are about."""
        tested = [verdict.metric for verdict in self.verdicts if verdict.main]
        return tested[0] if tested else str(shared_value(self.results, "main_metric"))

    @cached_property
    def size(self) -> str:
        """Sample size: 'n = 1,200 queries, 3 seeds'."""
        queries = first_run(self.results).manifest["dataset"]["val_queries"]
        return f"n = {queries:,} queries, {seeds_text(len(group) for group in self.groups)}"

    def index(self, group: pd.DataFrame) -> int:
        """Return the index of the strategy's colour: by name, so that it does not depend on a result."""
        return sorted(self.strategies).index(shared_value(group, "strategy"))

    def by_loss(self) -> Iterable[tuple[str, list[pd.DataFrame]]]:
        """Yield each loss with its groups, in the order of the strategies."""

        def order(group: pd.DataFrame) -> int:
            return self.strategies.index(shared_value(group, "strategy"))

        for loss in self.losses:
            groups = groups_of(self.results[self.results["loss"] == loss])
            yield loss, sorted(groups, key=order)


def chart_data_of(groups: Sequence[pd.DataFrame], verdicts: Sequence[Verdict] = ()) -> list[ChartData]:
    """Divide groups, which are sorted and not none, by data set, backbone and training budget."""

    def labels_apart(labels: Mapping[str, Any]) -> tuple[str, str, int]:
        return labels["dataset"], labels["backbone"], int(labels.get("epochs") or 0)

    groups_by_labels = group_by(groups, lambda group: labels_apart(labels_of(group)))
    verdicts_by_labels = group_by(verdicts, lambda verdict: labels_apart(vars(verdict)))
    datasets, backbones, budgets = (set(labels) for labels in zip(*groups_by_labels, strict=True))
    short = shorten_names(dataset for dataset, _, _ in groups_by_labels)
    chart_data = []
    for count, labels in enumerate(sorted(groups_by_labels), 1):
        dataset, backbone, epochs = labels
        words = []
        if len(datasets) > 1:
            words.append(short[dataset])
        if len(backbones) > 1:
            words.append(backbone)
        if len(budgets) > 1:
            words.append(f"{epochs} epochs")
        suffix = f"-{count}" if len(groups_by_labels) > 1 else ""
        results = pd.concat(groups_by_labels[labels])
        chart_data.append(ChartData(results, tuple(verdicts_by_labels.get(labels, ())), ", ".join(words), suffix))
    return chart_data


# --- the answer --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Question:
    """What a forest shows of a row: its verdict, and its difference; None for none."""

    title: str
    axis: str
    verdict: Callable[[Verdict], str]
    estimate: Callable[[Verdict], Estimate | None]
    column: str


_BEST = _Question(
    "points behind the best strategy that uses the same number of negatives",
    "points behind the best with as many negatives",
    attrgetter("standing"),
    attrgetter("behind_best"),
    "behind",
)


def forests(data: ChartData) -> list[Chart]:
    """Draw every row against the best with as many negatives, and against the baseline that was asked for.

    Where no two rows have as many, or all stand beside the batch, the baseline is drawn alone.
    """
    rows = [row for row in data.verdicts if row.main]
    best = None if beside_batch(rows) else _forest_chart(data, rows, "forest", _BEST)
    charts = [] if best is None else [best]
    baselines = {row.baseline for row in rows if row.against_baseline and (row.baseline_asked or best is None)}
    if baselines:
        title = f"points against {join_names(sorted(baselines))}"
        question = _Question(title, title, attrgetter("verdict"), attrgetter("against_baseline"), "difference")
        other = _forest_chart(data, rows, "forest-baseline" if best else "forest", question)
        if other is not None:
            charts.append(other)
    return charts


def _forest_chart(data: ChartData, rows: Sequence[Verdict], kind: str, question: _Question) -> Chart | None:
    """Draw differences with intervals, beside columns of numbers; None where no row has any."""
    if all(question.estimate(row) is None for row in rows):
        return None
    lines: list[Verdict | str] = []
    for loss in data.losses:
        if len(data.losses) > 1:
            lines.append(f"under {loss}")
        rows_of_loss = [row for row in rows if row.loss == loss]
        rows_of_loss.sort(key=lambda row: data.strategies.index(row.strategy))
        for block in group_by_negatives(rows_of_loss).values():
            lines += block
    name = label_of(data.main)
    first = rows[0]
    columns = _forest_columns(data, question)
    words = [question.verdict(row) for row in rows]
    counts = {word: words.count(word) for word in VERDICTS if word in words}
    about = {
        "metric": name,
        "size": data.size,
        "level": 100 * (1 - first.alpha),
        "margin": in_points(first.margin),
        "negatives": "Negatives: per query and step. " if columns[-1].title == "negatives" else "",
        "bold": "of those with as many negatives" if question is _BEST else "under its loss",
        "counts": ", ".join(f"{count} {word}" for word, count in counts.items()),
    }
    legend = tuple((marker, color, word) for word, (color, marker) in VERDICTS.items() if word in counts)
    panel = Panel("", partial(_forest, lines, question, columns), 0.2 * len(lines) + 0.3)
    epochs = sorted({config_of(group).train.epochs or 0 for group in data.groups})
    length = f"{' or '.join(str(count) for count in epochs)} epochs"
    where = f" ({data.where})" if data.where.removesuffix(f"{epochs[0]} epochs") else ""
    title = f"{name} after {length}: {question.title}{where}"
    return Chart(f"{kind}{data.suffix}", title, READ["forest"].format(**about), (panel,), 1, legend, full=True)


def _block(row: Verdict) -> tuple[str, str]:
    """Return what rows must share to be compared: the loss and the number of negatives."""
    return row.loss, negatives_text(row.negatives)


@dataclass(frozen=True)
class _Column:
    """A column of numbers beside a forest.

    Attributes:
        title: above it.
        edge: its right edge in wide figures, in points from the axes.
        narrow_edge: in narrow figures; 0 if it is left out there.
        text: of a row.
    """

    title: str
    edge: int
    narrow_edge: int
    text: Callable[[Verdict], str]


def _forest_columns(data: ChartData, question: _Question) -> list[_Column]:
    """Return the columns beside the forest."""
    groups = {(shared_value(group, "strategy"), shared_value(group, "loss")): group for group in data.groups}

    def behaviour(row: Verdict, name: str) -> float:
        group = groups.get((row.strategy, row.loss))
        return math.nan if group is None else mean_of(group, f"behaviour/{name}")

    def mean(row: Verdict) -> str:
        return percent(row.mean.value, 1)

    def difference(row: Verdict) -> str:
        return estimate_text(question.estimate(row))

    def false_negatives(row: Verdict) -> str:
        return percent(behaviour(row, "false_negative_rate_draws"), 2)

    def rank(row: Verdict) -> str:
        return number(behaviour(row, "draw_rank_median"))

    def kind(row: Verdict) -> str:
        shares = {}
        for name in KINDS:
            share = behaviour(row, f"draws_{name}")
            if not math.isnan(share):
                shares[name] = share
        if not shares:
            return "-"
        most = max(shares, key=lambda name: shares[name])
        return f"{most} {percent(shares[most], 0)} %"

    def negatives(row: Verdict) -> str:
        return negatives_text(row.negatives)

    metric = f"{label_of(data.main).removeprefix('average ')} %"
    if any(kind(row) != "-" for row in data.verdicts):  # with the mean, too, narrow figures have no room for intervals
        columns = [
            _Column(metric, 50, 0, mean),
            _Column(question.column, 160, 0, difference),
            _Column("FN %", 200, 25, false_negatives),
            _Column("rank", 240, 55, rank),
            _Column("mostly", 315, 112, kind),
        ]
    else:
        columns = [
            _Column(metric, 50, 32, mean),
            _Column(question.column, 160, 0, difference),
            _Column("FN %", 200, 60, false_negatives),
            _Column("rank", 240, 92, rank),
        ]
    if len({negatives(row) for row in data.verdicts}) > 1:
        columns.append(_Column("negatives", columns[-1].edge + 55, 0, negatives))
    return columns


def _forest(lines: Sequence[Verdict | str], question: _Question, columns: Sequence[_Column], axes: "Axes") -> None:
    """Draw lines from the top: each loss's name, if given, above its rows. The best of those compared is bold."""
    rows = [line for line in lines if not isinstance(line, str)]
    margin = 100 * rows[0].margin
    best_rows = _best_rows(rows, question)
    figure = axes.get_figure(root=True)
    small = figure is not None and figure.get_figwidth() < 6
    beside = axes.get_yaxis_transform()
    metric = columns[0].title
    columns = [column for column in columns if column.narrow_edge or not small]

    def write(column: _Column, text: str, y: float, **style: Any) -> None:
        edge = column.narrow_edge if small else column.edge
        axes.annotate(text, (1, y), (edge, 0), beside, "offset points", ha="right", va="center", fontsize=8, **style)

    axes.axvspan(-margin, margin, color=GREY, alpha=0.12, linewidth=0)
    axes.axvline(0, color=GREY, linewidth=1)
    for column in columns:
        write(column, column.title, -1, color=GREY)
    before: Verdict | str = ""
    for y, line in enumerate(lines):
        if isinstance(line, str):
            axes.text(-0.01, y, line, transform=beside, ha="right", va="center", color=GREY, fontstyle="italic")
        else:
            if isinstance(before, Verdict) and _block(before) != _block(line):
                axes.axhline(y - 0.5, color=GREY, linewidth=0.5, linestyle=":")
            color_of_verdict, _ = _mark(line, question)
            for column in columns:
                weight = "bold" if column.title == metric and line in best_rows else "normal"
                color = color_of_verdict if column.title == question.column else "black"
                write(column, column.text(line), y, weight=weight, color=color)
            _draw_interval(line, question, y, axes)
        before = line
    heights = [y for y, line in enumerate(lines) if not isinstance(line, str)]
    axes.set_yticks(heights, [_tick(row, question) for row in rows])
    axes.set(ylim=(len(lines) - 0.4, -1.4), xlim=_ends(rows, question))
    axes.set_xlabel(question.axis)
    if small:
        axes.locator_params(axis="x", nbins=3)
    axes.xaxis.set_inverted(question is _BEST)  # the better, the further to the right
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def _mark(row: Verdict, question: _Question) -> tuple[str, str]:
    """Return the colour and the marker of a row's verdict."""
    return VERDICTS.get(question.verdict(row), (GREY, "o"))


def _draw_interval(row: Verdict, question: _Question, y: float, axes: "Axes") -> None:
    """Draw a row's difference with its interval; at 0 that of the best, which differs from itself by nothing."""
    color, marker = _mark(row, question)
    estimate = question.estimate(row)
    if question.verdict(row) in ("best", "highest"):
        estimate = Estimate(0.0, 0.0, 0.0)
    if estimate:
        axes.plot([100 * estimate.low, 100 * estimate.high], [y, y], color=color, linewidth=1.6)
        axes.plot([100 * estimate.value], [y], marker, color=color, markersize=5.5)


def _ends(rows: Sequence[Verdict], question: _Question) -> tuple[float, float]:
    """Return the ends of the axis, in points: all intervals and the margin, with some room."""
    margin = 100 * rows[0].margin
    ends = [margin, -margin]
    for row in rows:
        estimate = question.estimate(row)
        if estimate is not None:
            ends += [100 * estimate.low, 100 * estimate.high]
    room = 0.05 * (max(ends) - min(ends))
    return min(ends) - room, max(ends) + room


def _best_rows(rows: Sequence[Verdict], question: _Question) -> list[Verdict]:
    """Return the rows with the highest mean of several that are compared."""
    key = _block if question is _BEST else attrgetter("loss")
    best: list[Verdict] = []
    for members in group_by(rows, key).values():
        if len(members) > 1:
            highest = max(row.mean.value for row in members)
            best += [row for row in members if row.mean.value == highest]
    return best


def _tick(row: Verdict, question: _Question) -> str:
    """Return a row's name beside the chart."""
    if row.verdict == "baseline" and question is not _BEST:
        return f"{row.marked_label} (baseline)"
    return row.marked_label


# --- against the epoch -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Line:
    """A line of a chart.

    Attributes:
        name: at its end.
        style: number of its colour and dash.
        x: where its values are.
        values: [seeds, x].
        marked: values of x with a marker.
    """

    name: str
    style: int
    x: Sequence[float]
    values: np.ndarray
    marked: Sequence[float]


def _lines(lines: Sequence[_Line], ylabel: str, xlabel: str, axes: "Axes") -> None:
    """Draw means over seeds with a band from the lowest to the highest, and markers at the marked x values."""
    ends = []
    for line in lines:
        style = line_style(line.style)
        mean = line.values.mean(0)
        (curve,) = axes.plot(line.x, mean, label=line.name, **style)
        marked = [index for index, value in enumerate(line.x) if value in line.marked]
        if marked:
            curve.set(marker="o", markevery=marked)
        if len(line.values) > 1:
            low = line.values.min(0)
            high = line.values.max(0)
            axes.fill_between(line.x, low, high, color=style["color"], alpha=0.15, linewidth=0)
        ends.append((mean[-1], line.name, style["color"]))
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.locator_params(axis="x", integer=True)
    label_ends(axes, ends)


def _lines_of(data: ChartData, line_of: Callable[[pd.DataFrame], _Line]) -> dict[str, list[_Line]]:
    """Return each loss with the lines of its groups that have a point."""
    by_loss = {}
    for loss, groups in data.by_loss():
        lines = [line_of(group) for group in groups]
        lines = [line for line in lines if line.x]
        if lines:
            by_loss[loss] = lines
    return by_loss


def _epoch_chart(key: str, title: str, text: str, by_loss: Mapping[str, Sequence[_Line]], ylabel: str) -> Chart | None:
    """Draw a panel for each loss, with the names at the ends of the lines; None without a line."""
    panels = []
    for loss, lines in by_loss.items():
        title_of_panel = loss if len(by_loss) > 1 else ""
        draw = partial(_lines, lines, ylabel, "epochs trained")
        panels.append(Panel(title_of_panel, draw, tall_enough(len(lines))))
    return Chart(key, title, text, tuple(panels), direct=True) if panels else None


def _describe_seeds(data: ChartData) -> str:
    """Say what a line over these runs' seeds is."""
    several = any(len(group) > 1 for group in data.groups)
    return "mean over seeds, with a band from the lowest to the highest seed" if several else "one seed"


def _at(epochs: Sequence[int]) -> str:
    """'after each epoch', 'after every 10 epochs', or 'after 0, 1 and 7 epochs'."""
    steps = {after - before for before, after in itertools.pairwise(epochs)}
    if len(epochs) > 2 and len(steps) == 1:
        return "after each epoch" if steps == {1} else f"after every {steps.pop()} epochs"
    return f"after {join_names([str(epoch) for epoch in epochs], len(epochs))} epochs"


def training(data: ChartData) -> Chart | None:
    """Draw the metric against the epoch, with a marker where pools were refreshed, as in QuRe fig. 4."""
    name = label_of(data.main)
    reported = config_of(data.groups[0]).eval.reported
    split = "reported split" if reported else "part of train held out for development"

    def line_of(group: pd.DataFrame) -> _Line:
        epochs, _, values = curve_of(group, data.main)
        refreshes = [float(epoch) for epoch in first_run(group).result["refresh_epochs"] if epoch]
        x = [float(epoch) for epoch in epochs]
        return _Line(shared_value(group, "strategy"), data.index(group), x, 100 * values, refreshes)

    by_loss = _lines_of(data, line_of)
    epochs: set[int] = set()
    has_markers = False
    for lines in by_loss.values():
        for line in lines:
            epochs.update(int(epoch) for epoch in line.x)
            has_markers = has_markers or not set(line.x).isdisjoint(line.marked)
    about = {"metric": name, "split": split, "size": data.size}
    text = READ["training"].format(**about, epochs=_at(sorted(epochs)), seeds=_describe_seeds(data))
    if has_markers:
        text += READ["refreshed"]
    text += "."
    return _epoch_chart(f"training{data.suffix}", f"{name} against the epoch", text, by_loss, f"{name} (%)")


def _at_refreshes(data: ChartData, name: str, scale: float = 1, *, redefined: bool = False) -> dict[str, list[_Line]]:
    """Return a number of the strategies' behaviour against the epoch, of all or of those that redefine their pools."""

    def line_of(group: pd.DataFrame) -> _Line:
        rows = []
        if first_run(group).result["refresh_epochs"] or not redefined:
            for run in group["stored"]:
                rows += [row for row in run.result["behaviour_by_refresh"] if row.get(name) is not None]
        x = []
        means = []
        for epoch, members in sorted(group_by(rows, lambda row: int(row["epoch"])).items()):
            x.append(float(epoch))
            means.append(float(np.mean([scale * row[name] for row in members])))
        return _Line(shared_value(group, "strategy"), data.index(group), x, np.array([means]), x)

    return _lines_of(data, line_of)


def false_negatives(data: ChartData) -> Chart | None:
    """Draw the false-negative rate of the draws at each refresh; None if only targets are known to be relevant."""
    lines = _at_refreshes(data, "false_negative_rate_draws", 100)
    title = "False negatives among the draws"
    return _epoch_chart(f"false-negatives{data.suffix}", title, READ["false_negatives"], lines, "false negatives (%)")


def pool_sizes(data: ChartData) -> Chart | None:
    """Draw the mean size of the pools at each refresh (QuRe fig. 5, DQE-CIR fig. 7); None if none is redefined."""
    lines = _at_refreshes(data, "pool_size", redefined=True)
    title = "Size of the pools over training"
    return _epoch_chart(f"pool-sizes{data.suffix}", title, READ["pool_sizes"], lines, "images in a pool")


def score_curves(data: ChartData) -> Chart | None:
    """Draw sorted scores before training and after the warm-up (QuRe fig. 7-8); None if no run mined pools."""
    panels = []
    for loss, groups in data.by_loss():
        lines = _score_lines(groups)
        if lines:
            draw = partial(_lines, lines, "score", "rank")
            panels.append(Panel(loss if len(data.losses) > 1 else "", draw, tall_enough(len(lines))))
    text = READ["score_curves"].format(seeds=_describe_seeds(data))
    title = "Scores by rank before and after the warm-up"
    return Chart(f"score-curves{data.suffix}", title, text, tuple(panels), direct=True) if panels else None


def _score_lines(groups: Sequence[pd.DataFrame]) -> list[_Line]:
    """Return a line of sorted scores for the untrained model, and for each strategy after its warm-up.

    Strategies that share a warm-up, and so have the same curve, share a line.
    """
    warm = [group for group in groups if (first_run(group).folder.path / file_name("warm")).exists()]
    if not warm:
        return []
    untrained = {}  # the same for all strategies
    for group in warm:
        untrained.update({run.config.seed: run.folder for run in group["stored"]})
    lines: dict[bytes, _Line] = {}  # by the bytes of their scores
    names: dict[bytes, list[str]] = {}
    moments = [("before training", "start", [*untrained.values()])]
    moments += [(shared_value(group, "strategy"), "warm", folders_of(group)) for group in warm]
    for name, moment, folders in moments:
        files = [folder.path / file_name(moment) for folder in folders]
        curves = [ScoreCurves.load(file) for file in files if file.exists()]
        size = min((len(curve.scores) for curve in curves), default=0)
        if not size:
            continue
        values = np.stack([curve.scores[:size] for curve in curves])
        positions = octave_positions(int(min(curve.length.min() for curve in curves)))
        x = [float(position + 1) for position in positions]
        key = values.tobytes()
        names.setdefault(key, []).append(name)
        index = list(names).index(key)
        lines[key] = _Line(_join_two(names[key]), index, x, values, _ranks_of_drops(curves, x))
    return list(lines.values())


def _join_two(names: Sequence[str]) -> str:
    """Return the name of a line of several strategies: the first two, or the first if two are too long."""
    count = 2 if len(", ".join(names[:2])) < 30 else 1
    return first_names(names, min(count, len(names)))


def _ranks_of_drops(curves: Sequence[ScoreCurves], x: Sequence[float]) -> list[float]:
    """Return the x values nearest to the median ranks of the two steepest drops."""
    pairs = []
    for curve in curves:
        has_both = (curve.drops >= 0).all(1)
        pairs.append(curve.drops[has_both])
    ranks = np.median(np.sort(np.concatenate(pairs), axis=1) + 1, axis=0)
    return [x[int(np.abs(np.array(x) - rank).argmin())] for rank in ranks]
