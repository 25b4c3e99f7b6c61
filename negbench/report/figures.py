"""Draw the charts of a comparison or of a single run from the runs' folders alone."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from negbench.analysis.columns import READ
from negbench.analysis.leader import equally_many, negatives_text
from negbench.analysis.verdicts import VerdictRow
from negbench.analysis.words import in_points, label_of, listed, percent, shortened, signed, span
from negbench.grid.comparison import CellGroup, together
from negbench.metrics.curve_file import Curves, file_name, spaced
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
class Runs:
    """Groups of one (data set, backbone, training budget), with the words and styles that all its charts share.

    `groups` are in the order of the leader table, `rows` their statistics.
    """

    groups: tuple[CellGroup, ...]
    rows: tuple[VerdictRow, ...]
    where: str  # what distinguishes it from the page's other parts
    suffix: str  # of the charts' keys where a page has several parts

    @cached_property
    def strategies(self) -> list[str]:
        """Strategies in the order of their best place in the leader table, as in every figure."""
        return list(dict.fromkeys(group.labels["strategy"] for group in self.groups))

    @cached_property
    def losses(self) -> list[str]:
        """Names of the losses, in alphabetical order."""
        return sorted({group.labels["loss"] for group in self.groups})

    @cached_property
    def main(self) -> str:
        """The metric that verdicts are about."""
        tested = [row.metric for row in self.rows if row.main]
        return tested[0] if tested else str(self.groups[0].results[0]["main_metric"])

    @cached_property
    def size(self) -> str:
        """Sample size: 'n = 1,200 queries, 3 seeds'."""
        seeds = span((len(group.runs) for group in self.groups), str)
        queries = self.groups[0].runs[0].manifest["dataset"]["val_queries"]
        return f"n = {queries:,} queries, {seeds} seed{'s' * (seeds != '1')}"

    def index(self, group: CellGroup) -> int:
        """Return the index of the strategy's colour: by name, so that it does not depend on a result."""
        return sorted(self.strategies).index(group.labels["strategy"])

    def by_loss(self) -> Iterable[tuple[str, list[CellGroup]]]:
        """Yield each loss with its groups, in the order of the strategies."""
        for loss in self.losses:
            groups = [group for group in self.groups if group.labels["loss"] == loss]
            yield loss, sorted(groups, key=lambda group: self.strategies.index(group.labels["strategy"]))


def parts_of(groups: Sequence[CellGroup], rows: Sequence[VerdictRow] = ()) -> list[Runs]:
    """Build one `Runs` per data set, backbone and training budget; `groups` must be sorted and not empty."""

    def place_of(labels: Mapping[str, Any]) -> tuple[str, str, int]:
        return labels["dataset"], labels["backbone"], int(labels.get("epochs") or 0)

    members = together(groups, lambda group: place_of(group.labels))
    own = together(rows, lambda row: place_of(vars(row)))
    short = shortened(dataset for dataset, _, _ in members)
    varied = [len({*each}) > 1 for each in zip(*members, strict=True)]
    parts = []
    for count, place in enumerate(sorted(members), 1):
        words = (short[place[0]], place[1], f"{place[2]} epochs")
        where = ", ".join(word for word, differs in zip(words, varied, strict=True) if differs)
        suffix = f"-{count}" if len(members) > 1 else ""
        parts.append(Runs(tuple(members[place]), tuple(own.get(place, ())), where, suffix))
    return parts


# --- the answer --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Question:
    """What a forest shows of a row: its verdict, and its difference with the ends of the interval; NaN for none."""

    title: str
    axis: str
    verdict: Callable[[VerdictRow], str]
    ends: Callable[[VerdictRow], tuple[float, float, float]]
    column: str


_BEST = _Question(
    "points behind the best strategy that uses the same number of negatives",
    "points behind the best with as many negatives",
    attrgetter("standing"),
    attrgetter("gap", "gap_low", "gap_high"),
    "behind",
)


def forests(runs: Runs) -> list[Chart]:
    """Draw every row against the best with as many negatives, and against the baseline that was asked for.

    Where no two rows have as many, the baseline is drawn alone.
    """
    rows = [row for row in runs.rows if row.main]
    best = _forest_chart(runs, rows, "forest", _BEST)
    asked = sorted({row.baseline for row in rows if row.compared and (row.against or best is None)})
    title, ends = f"points against {listed(asked)}", attrgetter("difference", "diff_low", "diff_high")
    baseline = _Question(title, title, attrgetter("verdict"), ends, "difference")
    other = _forest_chart(runs, rows, "forest-baseline" if best else "forest", baseline) if asked else None
    return [chart for chart in (best, other) if chart is not None]


def _forest_chart(runs: Runs, rows: Sequence[VerdictRow], kind: str, question: _Question) -> Chart | None:
    """Draw differences with intervals, beside columns of numbers; None where no row has any."""
    if all(math.isnan(question.ends(row)[0]) for row in rows):
        return None
    lines = list[VerdictRow | str]()
    for loss in runs.losses:
        of_loss = sorted((row for row in rows if row.loss == loss), key=lambda row: runs.strategies.index(row.strategy))
        lines += [f"under {loss}"] * (len(runs.losses) > 1)
        lines += [row for block in equally_many(of_loss).values() for row in block]
    name, first, columns = label_of(runs.main), rows[0], _forest_columns(runs, question)
    words = [question.verdict(row) for row in rows]
    counts = {word: words.count(word) for word in VERDICTS if word in words}
    about = {"metric": name, "size": runs.size, "level": 100 * (1 - first.alpha), "margin": in_points(first.margin)}
    about |= {"negatives": "Negatives: per query and step. " * (len(columns) > 3)}
    about |= {"counts": ", ".join(f"{count} {word}" for word, count in counts.items())}
    legend = tuple((marker, color, word) for word, (color, marker) in VERDICTS.items() if word in counts)
    panel = Panel("", partial(_forest, lines, question, columns), 0.2 * len(lines) + 0.3)
    epochs = sorted({group.configs[0].train.epochs or 0 for group in runs.groups})
    trained = f" after {' or '.join(map(str, epochs))} epochs"
    where = f" ({runs.where})" * bool(runs.where.removesuffix(f"{epochs[0]} epochs"))
    title = f"{name}{trained}: {question.title}{where}"
    return Chart(f"{kind}{runs.suffix}", title, READ["forest"].format(**about), (panel,), 1, legend, full=True)


def _block(row: VerdictRow) -> tuple[str, str]:
    """Return what rows must share to be compared: the loss and the number of negatives."""
    return row.loss, negatives_text(row.negatives)


_Column = tuple[str, int, int, Callable[[VerdictRow], str]]  # title, its right edge in wide, in narrow figures, text


def _forest_columns(runs: Runs, question: _Question) -> list[_Column]:
    """Return the columns beside the forest; those with right edge 0 in narrow figures are left out there."""
    shares = {(group.labels["strategy"], group.labels["loss"]): group for group in runs.groups}

    def rate(row: VerdictRow) -> str:
        group = shares.get((row.strategy, row.loss))
        values = group.values("behaviour", "false_negative_rate_draws") if group else []
        return percent(float(np.mean(values)), 2) if values else "-"

    columns: list[_Column] = [
        (f"{label_of(runs.main).removeprefix('average ')} %", 50, 35, lambda row: percent(row.mean, 1)),
        (question.column, 160, 0, lambda row: signed(*question.ends(row))),
        ("FN %", 200, 65, rate),
    ]
    if len({negatives_text(row.negatives) for row in runs.rows}) > 1:
        columns.append(("negatives", 255, 110, lambda row: negatives_text(row.negatives)))
    return columns


def _forest(lines: Sequence[VerdictRow | str], question: _Question, columns: Sequence[_Column], axes: "Axes") -> None:
    """Draw lines from the top: each loss's name, if given, above its rows. The best of a block is bold."""
    rows = [line for line in lines if not isinstance(line, str)]
    margin = 100 * rows[0].margin
    ends = [100 * end for row in rows for end in question.ends(row)[1:] if not math.isnan(end)] + [margin, -margin]
    room = 0.05 * (max(ends) - min(ends))
    means = {_block(one): [row.mean for row in rows if _block(row) == _block(one)] for one in rows}
    best = {block: max(several) for block, several in means.items() if len(several) > 1}
    whole = axes.get_figure(root=True)
    small = whole is not None and whole.get_figwidth() < 6
    beside = axes.get_yaxis_transform()
    shown = [(title, near if small else far, text) for title, far, near, text in columns if near or not small]

    def write(text: str, y: float, end: int, **style: Any) -> None:
        axes.annotate(text, (1, y), (end, 0), beside, "offset points", ha="right", va="center", **style)

    axes.axvspan(-margin, margin, color=GREY, alpha=0.12, linewidth=0)
    axes.axvline(0, color=GREY, linewidth=1)
    for title, end, _ in shown:
        write(title, -1, end, color=GREY, fontsize=8)
    for y, row in enumerate(lines):
        if isinstance(row, str):
            axes.text(-0.01, y, row, transform=beside, ha="right", va="center", color=GREY, fontstyle="italic")
            continue
        before = lines[y - 1] if y else ""
        if not isinstance(before, str) and _block(before) != _block(row):
            axes.axhline(y - 0.5, color=GREY, linewidth=0.5, linestyle=":")
        color, marker = VERDICTS.get(question.verdict(row), (GREY, "o"))
        for title, end, text in shown:
            weight = "bold" if title == columns[0][0] and row.mean == best.get(_block(row)) else "normal"
            tint = color if title == question.column else "black"
            write(text(row), y, end, fontsize=8, weight=weight, color=tint)
        middle, low, high = (100 * each for each in question.ends(row))
        if question.verdict(row) in ("best", "highest"):
            middle = low = high = 0.0
        if not math.isnan(middle):
            axes.plot([low, high], [y, y], color=color, linewidth=1.6)
            axes.plot([middle], [y], marker, color=color, markersize=5.5)
    named = {y: row for y, row in enumerate(lines) if not isinstance(row, str)}
    baseline = [" (baseline)" * (row.verdict == "baseline" and question is not _BEST) for row in named.values()]
    axes.set_yticks(list(named), [row.marked_label + more for row, more in zip(named.values(), baseline, strict=True)])
    axes.set(ylim=(len(lines) - 0.4, -1.4), xlim=(min(ends) - room, max(ends) + room))
    axes.set_xlabel(question.axis)
    axes.xaxis.set_inverted(question is _BEST)  # the better, the further to the right
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


# --- against the epoch -------------------------------------------------------------------------------------------

Line = tuple[str, int, list[float], np.ndarray, list[float]]  # name, colour, x, values [seeds, x], marked x


def _lines(lines: Sequence[Line], ylabel: str, xlabel: str, axes: "Axes") -> None:
    """Draw means over seeds with a band from the lowest to the highest, and markers at the marked x values."""
    for name, index, x, values, marked in lines:
        style = line_style(index)
        places = [i for i, value in enumerate(x) if value in marked]
        (drawn,) = axes.plot(x, values.mean(0), label=name, **style)
        if places:
            drawn.set(marker="o", markevery=places)
        if len(values) > 1:
            axes.fill_between(x, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.locator_params(axis="x", integer=True)
    label_ends(axes, [(values.mean(0)[-1], name, line_style(index)["color"]) for name, index, _, values, _ in lines])


def _lines_of(runs: Runs, line_of: Callable[[CellGroup], Line]) -> dict[str, list[Line]]:
    """Return each loss with the lines of its groups that have a point."""
    lines = {loss: [line for line in map(line_of, groups) if line[2]] for loss, groups in runs.by_loss()}
    return {loss: own for loss, own in lines.items() if own}


def _epoch_chart(key: str, title: str, text: str, by_loss: Mapping[str, Sequence[Line]], ylabel: str) -> Chart | None:
    """Draw a panel for each loss, with the names at the ends of the lines; None without a line."""
    panels = tuple(
        Panel(loss * (len(by_loss) > 1), partial(_lines, lines, ylabel, "epochs trained"), tall_enough(len(lines)))
        for loss, lines in by_loss.items()
    )
    return Chart(key, title, text, panels, direct=True) if panels else None


def _seeds(runs: Runs) -> str:
    several = any(len(group.runs) > 1 for group in runs.groups)
    return "mean over seeds, with a band from the lowest to the highest seed" if several else "one seed"


def _at(epochs: Sequence[int]) -> str:
    """'after each epoch', 'after every 10 epochs', or 'after 0, 1 and 7 epochs'."""
    steps = {after - before for before, after in itertools.pairwise(epochs)}
    if len(epochs) > 2 and len(steps) == 1:
        return "after each epoch" if steps == {1} else f"after every {steps.pop()} epochs"
    return f"after {listed([str(epoch) for epoch in epochs], len(epochs))} epochs"


def training(runs: Runs) -> Chart | None:
    """Draw the metric against the epoch, with a marker where pools were refreshed, as in QuRe fig. 4."""
    name = label_of(runs.main)
    split = "reported split" if runs.groups[0].configs[0].eval.reported else "part of train held out for development"

    def line_of(group: CellGroup) -> Line:
        epochs, _, values = group.curve(runs.main)
        marked = [float(epoch) for epoch in group.results[0]["refresh_epochs"] if epoch]
        return group.labels["strategy"], runs.index(group), [float(e) for e in epochs], 100 * values, marked

    lines = _lines_of(runs, line_of)
    seen = sorted({int(x) for each in lines.values() for _, _, epochs, _, _ in each for x in epochs})
    text = READ["training"].format(metric=name, split=split, epochs=_at(seen), size=runs.size, seeds=_seeds(runs))
    drawn = any(epoch in marked for each in lines.values() for _, _, epochs, _, marked in each for epoch in epochs)
    text += READ["refreshed"] * drawn + "."
    return _epoch_chart(f"training{runs.suffix}", f"{name} against the epoch", text, lines, f"{name} (%)")


def _at_refreshes(runs: Runs, name: str, scale: float = 1, *, redefined: bool = False) -> dict[str, list[Line]]:
    """Return a number of the strategies' behaviour against the epoch, of all or of those that redefine their pools."""

    def line_of(group: CellGroup) -> Line:
        results = group.results if group.results[0]["refresh_epochs"] or not redefined else ()
        rows = (row for result in results for row in result["behaviour_by_refresh"] if row.get(name) is not None)
        at = together(rows, lambda row: int(row["epoch"]))
        x = [float(epoch) for epoch in sorted(at)]
        values = np.array([[float(np.mean([scale * row[name] for row in at[epoch]])) for epoch in sorted(at)]])
        return group.labels["strategy"], runs.index(group), x, values, x

    return _lines_of(runs, line_of)


def false_negatives(runs: Runs) -> Chart | None:
    """Draw the false-negative rate of the draws at each refresh; None if only targets are known to be relevant."""
    lines = _at_refreshes(runs, "false_negative_rate_draws", 100)
    title, key = "False negatives among the draws", f"false-negatives{runs.suffix}"
    return _epoch_chart(key, title, READ["false_negatives"], lines, "false negatives (%)")


def pool_sizes(runs: Runs) -> Chart | None:
    """Draw the mean size of the pools at each refresh (QuRe fig. 5, DQE-CIR fig. 7); None if none is redefined."""
    lines, title = _at_refreshes(runs, "pool_size", redefined=True), "Size of the pools over training"
    return _epoch_chart(f"pool-sizes{runs.suffix}", title, READ["pool_sizes"], lines, "images in a pool")


def score_curves(runs: Runs) -> Chart | None:
    """Draw sorted scores before training and after the warm-up (QuRe fig. 7-8); None if no run mined pools."""
    panels = []
    for loss, groups in runs.by_loss():
        warm = [group for group in groups if (group.runs[0].path / file_name("warm")).exists()]
        untrained = {run.config.seed: run for group in warm for run in group.runs}  # the same model for all strategies
        curves = {("before training", "start"): [*untrained.values()]} if warm else {}
        curves |= {(group.labels["strategy"], "warm"): [*group.runs] for group in warm}
        lines, alike = dict[bytes, Line](), dict[bytes, list[str]]()
        for (name, moment), folders in curves.items():
            files = (run.path / file_name(moment) for run in folders)
            read = [Curves.load(file) for file in files if file.exists()]
            size = min((len(curve.scores) for curve in read), default=0)
            if not size:
                continue
            values = np.stack([curve.scores[:size] for curve in read])
            x = [float(place + 1) for place in spaced(int(min(c.length.min() for c in read)))]
            drops = np.sort(np.concatenate([curve.drops[(curve.drops >= 0).all(1)] for curve in read]), axis=1) + 1
            marked = [x[int(np.abs(np.array(x) - drop).argmin())] for drop in np.median(drops, axis=0)]
            names = alike.setdefault(values.tobytes(), [])
            names.append(name)
            shown = names[: 2 if len(", ".join(names[:2])) < 30 else 1]
            title = ", ".join(shown) + f" and {len(names) - len(shown)} more" * (len(names) > len(shown))
            lines[values.tobytes()] = (title, list(alike).index(values.tobytes()), x, values, marked)
        if lines:
            draw = partial(_lines, [*lines.values()], "score", "rank")
            panels.append(Panel(loss * (len(runs.losses) > 1), draw, tall_enough(len(lines))))
    key, title = f"score-curves{runs.suffix}", "Scores by rank before and after the warm-up"
    text = READ["score_curves"].format(seeds=_seeds(runs))
    return Chart(key, title, text, tuple(panels), direct=True) if panels else None
