"""A map's answer: at every point the strategy that is ahead, by how much and how surely; lines, crossings, a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console

from negbench import statistics
from negbench.analysis.verdicts import negatives_of
from negbench.analysis.words import label_of, listed, signed
from negbench.display import Grid
from negbench.files import atomic_write, read_json, write_json
from negbench.grid.comparison import Group, groups_of
from negbench.grid.map import Design, Dial, point_label
from negbench.report.charts import Chart, Panel, line_style, png, words_room
from negbench.report.page import Note, Page, Section, Table, write_page, write_text
from negbench.report.swap import records
from negbench.report.views import shown
from negbench.scoring.stored import Values, values_of
from negbench.tracking import Tracker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Place = tuple[Any, ...]  # one value of every dial

_SEED = 0x3A9  # of the resamples: the same runs give the same intervals
_RESAMPLES = 2000  # of a crossing
FILE = "answer.json"
WORLDS = "worlds.json"  # for `negbench advise`
_CELL_COLUMNS = ["point", "strategy", "negatives", "target_first", "band_start_top"]


@dataclass(frozen=True)
class Standing:
    """One strategy at one point; means in the unit of the metric, differences to the best strategy of the point.

    `low` and `high` hold for all strategies' means of the point at once; `behind`, the best mean minus this one, has
    `behind_low` and `behind_high`, which hold for all pairs of the point at once. `letters`: two strategies share one
    exactly where neither beats the other. `target_first` and `band_start_top` are of the regime card at the end.
    """

    point: str
    strategy: str
    mean: float
    low: float
    high: float
    letters: str
    behind: float
    behind_low: float
    behind_high: float
    negatives: float
    seeds: int
    queries: int
    target_first: float
    band_start_top: float


@dataclass(frozen=True)
class Crossing:
    """Where `after` overtakes `before` along a dial, at fixed values of the others (`where`).

    `at` is where the lines between the measured values cross; [low, high] the middle 95 % of the crossings of resampled
    seeds and queries, `share` how many of these have one. Decided: `before` beats `after` at a lower value and is
    beaten at a higher one, each for all pairs of its point at once.
    """

    dial: str
    where: str
    before: str
    after: str
    at: float
    low: float
    high: float
    share: float
    decided: bool


@dataclass(frozen=True)
class MapResults:
    """What a map says, for one metric."""

    metric: str
    design: Design
    standings: tuple[Standing, ...]
    crossings: tuple[Crossing, ...]

    @property
    def strategies(self) -> list[str]:
        """By name: one order and one colour in every figure."""
        return sorted({each.strategy for each in self.standings})

    def at(self, place: Place) -> list[Standing]:
        """Strategies of a point, the best first; none where no cell of it is finished."""
        label = point_label(self.dials, place)
        return sorted((each for each in self.standings if each.point == label), key=lambda each: -each.mean)

    @property
    def dials(self) -> tuple[Dial, ...]:
        """Of the design."""
        return self.design.dials

    @property
    def places(self) -> tuple[Place, ...]:
        """All points, in order."""
        return self.design.points


def unbeaten(point: Sequence[Standing]) -> list[str]:
    """The best strategy of a point and all that share a letter with it, the best first."""
    return [each.strategy for each in point if set(each.letters) & set(point[0].letters)]


# --- reading -----------------------------------------------------------------------------------------------------


def results_of(runs: Path, name: str, *, alpha: float = 0.05) -> MapResults:
    """Read the finished cells of a map.

    Args:
        runs: runs folder.
        name: of the map.
        alpha: level; intervals and letters hold for all strategies of a point at once.

    Raises:
        RunError: no finished cell, or ranks of other queries at one point.
    """
    design, groups = Design.read(runs / name), groups_of(runs, name)
    metric = str(groups[0].results[0]["main_metric"])
    tables: dict[str, dict[str, Values]] = {}
    facts: dict[tuple[str, str], tuple[float, ...]] = {}
    queries: dict[str, tuple[str, ...]] = {}
    for group in groups:
        point, strategy = group.labels["point"], group.labels["strategy"]
        dataset = group.labels["dataset"]
        found = values_of(group.runs, [metric], queries.get(dataset, ())).get(metric)
        if found is not None:
            queries[dataset] = found.queries
            tables.setdefault(point, {})[strategy] = found
            cards = [group.values("regime", key) for key in ("target_first", "band_start_top")]
            facts[point, strategy] = (
                negatives_of(group),
                *(float(np.mean(card)) if card else math.nan for card in cards),
            )
    every = {point: _shared(table) for point, table in tables.items()}
    tested = {point: _pairs(table, alpha) for point, table in every.items() if table}
    standings = [
        standing for point, pairs in tested.items() for standing in _standings(point, every[point], pairs, facts, alpha)
    ]
    crossings = _crossings(design.dials, every, tested) if design.whole else []
    return MapResults(metric, design, tuple(standings), tuple(crossings))


def _shared(table: Mapping[str, Values]) -> dict[str, Values]:
    """The values of the seeds that all strategies of a point have."""
    common = sorted(set.intersection(*(set(mine.seeds) for mine in table.values())))
    if not common:
        return {}
    return {
        name: Values(mine.values[[mine.seeds.index(seed) for seed in common]], tuple(common), mine.strata)
        for name, mine in sorted(table.items())
    }


def _pairs(table: Mapping[str, Values], alpha: float) -> statistics.Pairs:
    values, strata = {name: mine.values for name, mine in table.items()}, next(iter(table.values())).strata
    return statistics.pairs(values, generator=np.random.default_rng(_SEED), strata=strata, alpha=alpha)


def _standings(
    point: str,
    table: Mapping[str, Values],
    pairs: statistics.Pairs,
    facts: Mapping[tuple[str, str], tuple[float, ...]],
    alpha: float,
) -> list[Standing]:
    strata = next(iter(table.values())).strata
    means = statistics.summarise_table(
        {name: mine.values for name, mine in table.items()},
        generator=np.random.default_rng(_SEED),
        strata=strata,
        level=1 - alpha,
    )
    best, letters = max(means, key=lambda name: means[name].mean), pairs.letters()
    found = []
    for name, mean in means.items():
        gap = None if name == best else pairs.of(best, name)
        found.append(
            Standing(
                point,
                name,
                mean.mean,
                mean.interval.low,
                mean.interval.high,
                letters[name],
                0.0 if gap is None else gap.value,
                math.nan if gap is None else gap.interval.low,
                math.nan if gap is None else gap.interval.high,
                facts[point, name][0],
                mean.seeds,
                mean.queries,
                *facts[point, name][1:],
            )
        )
    return found


def worlds_of(runs: Path, name: str, results: MapResults) -> dict[str, Any]:
    """The map as the table that `negbench advise` reads: each point's regime cards, and who was how far behind."""
    by_point: dict[str, list[Group]] = {}
    for group in groups_of(runs, name):
        by_point.setdefault(group.labels["point"], []).append(group)
    worlds = []
    for place in results.places:
        point = results.at(place)
        if not point:
            continue
        members = by_point[point[0].point]
        found = [result for group in members for result in group.results]
        queries = float(members[0].runs[0].manifest["dataset"]["train_queries"])
        cards = {
            "untrained": _mean_card([result["regime_by_refresh"][0] for result in found], queries),
            "trained": _mean_card([result["regime"] for result in found], queries),
        }
        worlds.append(
            {
                "dials": {dial.name: value for dial, value in zip(results.dials, place, strict=True)},
                "cards": cards,
                "behind": {each.strategy: round(each.behind, 5) for each in sorted(point, key=lambda e: e.strategy)},
                "unbeaten": sorted(unbeaten(point)),
            }
        )
    size = results.standings[0]
    return {"metric": results.metric, "seeds": size.seeds, "queries": size.queries, "worlds": worlds}


def _mean_card(cards: Sequence[Mapping[str, float | None]], queries: float) -> dict[str, float | None]:
    """Means over runs of what is known; null where no run knows it."""
    found: dict[str, float | None] = {"train_queries": queries}
    for key in cards[0]:
        known = [value for card in cards if (value := card.get(key)) is not None and math.isfinite(value)]
        if key not in ("epoch", "queries"):
            found[key] = float(f"{np.mean(known):.5g}") if known else None
    return found


# --- crossings -----------------------------------------------------------------------------------------------------


def _crossings(
    dials: Sequence[Dial], tables: Mapping[str, Mapping[str, Values]], tested: Mapping[str, statistics.Pairs]
) -> list[Crossing]:
    """All changes of order along numeric dials."""
    found = []
    for axis, dial in enumerate(dials):
        if not dial.numeric or len(dial.values) < 2:
            continue
        others = [[None] if i == axis else list(other.values) for i, other in enumerate(dials)]
        for fixed in product(*others):
            along = [(value, point_label(dials, _at(fixed, axis, value))) for value in sorted(dial.values)]
            along = [(value, label) for value, label in along if label in tested]
            rest = [(d, v) for i, (d, v) in enumerate(zip(dials, fixed, strict=True)) if i != axis]
            where = point_label([d for d, _ in rest], [v for _, v in rest])
            found += _along(dial, where, along, tables, tested)
    return found


def _at(fixed: Place, axis: int, value: Any) -> Place:
    return (*fixed[:axis], value, *fixed[axis + 1 :])


def _along(
    dial: Dial,
    where: str,
    along: Sequence[tuple[float, str]],
    tables: Mapping[str, Mapping[str, Values]],
    tested: Mapping[str, statistics.Pairs],
) -> list[Crossing]:
    names = set.intersection(*(set(tables[label]) for _, label in along)) if along else set()
    x, back = scale_of([value for value, _ in along])
    found = []
    for first, second in combinations(sorted(names), 2):
        gaps = [tested[label].of(first, second) for _, label in along]
        at = _zero(x, np.array([[gap.value for gap in gaps]]))[0]
        if math.isnan(at):
            continue
        drawn = np.stack([_resampled(tables[label][first], tables[label][second]) for _, label in along], axis=1)
        zeros = _zero(x, drawn)
        known = zeros[~np.isnan(zeros)]
        low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (math.nan, math.nan)
        rises = gaps[0].value < 0 or (gaps[0].value == 0 and gaps[-1].value > 0)
        before, after = (second, first) if rises else (first, second)
        signs = [1 if gap.interval.low > 0 else -1 if gap.interval.high < 0 else 0 for gap in gaps]
        decided = [sign for sign in signs if sign]
        changed = any(one != other for one, other in pairwise(decided))
        ends = (float(back(low)), float(back(high)))
        share = len(known) / len(zeros)
        found.append(Crossing(dial.name, where, before, after, float(back(at)), *ends, share, changed))
    return found


def scale_of(values: Sequence[float]) -> tuple[NDArray[np.float64], Callable[[Any], Any]]:
    """Where values lie on a dial's axis, and the way back: logarithms where all are above 0 and span a factor of 4."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) and x.min() > 0 and x.max() / x.min() >= 4:
        return np.log(x), np.exp
    return x, lambda place: place


def _zero(x: NDArray[np.float64], gaps: NDArray[np.float64]) -> NDArray[np.float64]:
    """[R] first place where each row of [R, V] changes its sign, by straight lines between the values; nan: nowhere."""
    changes = (np.sign(gaps[:, :-1]) * np.sign(gaps[:, 1:])) < 0
    first = changes.argmax(axis=1)
    rows = np.arange(len(gaps))
    left, right = gaps[rows, first], gaps[rows, first + 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        place = x[first] + (x[first + 1] - x[first]) * left / (left - right)
    return np.where(changes.any(axis=1), place, np.nan)


def _resampled(first: Values, second: Values) -> NDArray[np.float64]:
    """[R] mean differences under other seeds and queries, both drawn again; each stratum keeps its size.

    The seeds' part is stretched by sqrt(S / (S - 1)), which the bootstrap of S values lacks. The generator is the same
    for every pair and point, so that crossings of one map are comparable.
    """
    difference = first.values - second.values
    seeds, queries = difference.shape
    generator = np.random.default_rng(_SEED)
    strata = np.zeros(queries, dtype=int) if first.strata is None else np.unique(first.strata, return_inverse=True)[1]
    weights = np.zeros((_RESAMPLES, queries))
    labels = np.unique(strata)
    for label in labels:
        rows = np.flatnonzero(strata == label)
        drawn = generator.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=_RESAMPLES)
        weights[:, rows] = drawn / len(rows) / len(labels)
    by_seed = weights @ difference.T  # [R, S]
    chosen = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=_RESAMPLES) / seeds
    middle = by_seed.mean(axis=1)
    stretch = math.sqrt(seeds / (seeds - 1)) if seeds > 1 else 0.0
    return np.asarray(middle + stretch * ((by_seed * chosen).sum(axis=1) - middle), dtype=np.float64)


# --- words and figures -----------------------------------------------------------------------------------------------


def answer(results: MapResults) -> list[str]:
    """Who is ahead in how many points, and where the order changes."""
    points = [point for place in results.places if (point := results.at(place))]
    alone = [point[0].strategy for point in points if len(unbeaten(point)) == 1]
    size = points[0][0]
    counts = f"{label_of(results.metric)}, {size.seeds} seeds, {size.queries} queries a point"
    lines = [
        f"{len(points)} points ({counts}): one strategy beats all others in {len(alone)}, "
        f"in {len(points) - len(alone)} it is not decided between several."
    ]
    for name in sorted(set(alone), key=lambda each: -alone.count(each)):
        where = [point[0].point for point in points if unbeaten(point) == [name]]
        lines.append(
            f"{name} alone is ahead at {'; '.join(where[:4])}{f' and {len(where) - 4} more' * (len(where) > 4)}."
        )
    held = {name: sum(name in unbeaten(point) for point in points) for name in results.strategies}
    most = max(held.values())
    best = [name for name in results.strategies if held[name] == most]
    verb = "is" if len(best) == 1 else "are"
    lines.append(f"Never asked which world: {listed(best)} {verb} not beaten in {most} of {len(points)} points.")
    decided = [crossing for crossing in results.crossings if crossing.decided]
    lines += [_crossing_line(crossing) for crossing in decided[:6]]
    if not decided:
        lines.append("No two strategies change their order beyond doubt along a dial.")
    elif len(decided) > 6:
        lines.append(f"{len(decided) - 6} more changes of order are in crossings.csv.")
    return lines


def _crossing_line(crossing: Crossing) -> str:
    at = f" at {crossing.where}" if crossing.where else ""
    return (
        f"{crossing.after} overtakes {crossing.before} as {crossing.dial} grows beyond {crossing.at:.3g} "
        f"[{crossing.low:.3g}, {crossing.high:.3g}]{at}."
    )


def table_of(results: MapResults) -> pd.DataFrame:
    """One row a point: who is ahead, what the next is behind, who is not beaten, all means with their letters."""
    rows = []
    for place in results.places:
        point = results.at(place)
        if not point:
            continue
        best, second = point[0], point[1] if len(point) > 1 else None
        means = {each.strategy: f"{100 * each.mean:.1f} {each.letters}" for each in point}
        rows.append(
            {
                **{dial.name: str(value) for dial, value in zip(results.dials, place, strict=True)},
                "ahead": best.strategy,
                "next behind by": "-"
                if second is None
                else signed(second.behind, second.behind_low, second.behind_high),
                "not beaten": listed(unbeaten(point)),
                **{name: means.get(name, "-") for name in results.strategies},
            }
        )
    return pd.DataFrame(rows)


def crossings_frame(results: MapResults) -> pd.DataFrame:
    """One row a change of order, the decided ones first."""
    rows = sorted(results.crossings, key=lambda each: (not each.decided, each.dial, each.where))
    return pd.DataFrame(
        [
            {
                "dial": each.dial,
                "at": each.where or "-",
                "overtakes": f"{each.after} > {each.before}",
                "beyond": f"{each.at:.3g} [{each.low:.3g}, {each.high:.3g}]",
                "of resamples": f"{each.share:.0%}",
                "decided": "yes" if each.decided else "no",
            }
            for each in rows
        ]
    )


def figure(results: MapResults) -> Chart:
    """Two dials as a heat map of who is ahead; further dials as further panels."""
    across = results.dials[0]
    down = results.dials[1] if len(results.dials) > 1 else None
    panels = [
        Panel(
            point_label(results.dials[2:], rest),
            _winners(results, rest),
            0.42 * (len(down.values) if down else 1) + 0.1,
            words_room([f"{down.name} {value}" for value in down.values] if down else [""]),
        )
        for rest in product(*(dial.values for dial in results.dials[2:]))
    ]
    style = {name: line_style(index) for index, name in enumerate(results.strategies)}
    ahead = {results.at(place)[0].strategy for place in results.places if results.at(place)}
    legend = tuple(("▇", style[name]["color"], name) for name in results.strategies if name in ahead)
    size = results.standings[0]
    text = (
        f"The strategy with the highest {label_of(results.metric)} at every point, and by how many points it leads the "
        f"next ({size.seeds} seeds, {size.queries} queries a point). Hatched: others are not beaten by it."
    )
    title = f"Who is ahead, by {across.name}" + (f" and {down.name}" if down else "")
    return Chart("map", title, text, tuple(panels), 2, legend)


def _winners(results: MapResults, rest: Place) -> Callable[[Axes], None]:
    across = results.dials[0]
    down = results.dials[1] if len(results.dials) > 1 else None
    rows: Sequence[Any] = down.values if down else (None,)
    style = {name: line_style(index)["color"] for index, name in enumerate(results.strategies)}

    def draw(axes: Axes) -> None:
        for (y, row), (x, column) in product(enumerate(rows), enumerate(across.values)):
            point = results.at((column, *((row,) if down else ()), *rest))
            if not point:
                continue
            open_ = len(unbeaten(point)) > 1
            box = ([x - 0.48, x + 0.48], y - 0.46, y + 0.46)
            axes.fill_between(*box, color=style[point[0].strategy], linewidth=0, alpha=0.35 if open_ else 0.85)
            if open_:
                axes.fill_between(*box, facecolor="none", edgecolor=style[point[0].strategy], hatch="////", linewidth=0)
            text = point[0].strategy + (f"\n+{100 * point[1].behind:.1f}" if len(point) > 1 else "")
            axes.text(x, y, text, ha="center", va="center", color="#16202a", fontsize=7)
        axes.set_xticks(range(len(across.values)), [str(value) for value in across.values])
        axes.set_yticks(range(len(rows)), [f"{down.name} {value}" for value in rows] if down else [""])
        axes.set(xlim=(-0.5, len(across.values) - 0.5), ylim=(len(rows) - 0.5, -0.5), xlabel=across.name)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)

    return draw


def lines(results: MapResults, axis: int) -> Chart:
    """The metric of every strategy along one dial, a panel for each setting of the others."""
    dial = results.dials[axis]
    others = [[None] if i == axis else list(other.values) for i, other in enumerate(results.dials)]
    panels = []
    for fixed in product(*others):
        rest = [(d, v) for i, (d, v) in enumerate(zip(results.dials, fixed, strict=True)) if i != axis]
        title = point_label([d for d, _ in rest], [v for _, v in rest])
        panels.append(Panel(title, _drawn_lines(results, axis, fixed)))
    size = results.standings[0]
    text = (
        f"{label_of(results.metric)} (%) along {dial.name}; bars are 95 % intervals over seeds and queries, for all "
        f"strategies of a point at once ({size.seeds} seeds, {size.queries} queries)."
    )
    return Chart(f"along-{dial.name}", f"Along {dial.name}", text, tuple(panels), 3)


def _drawn_lines(results: MapResults, axis: int, fixed: Place) -> Callable[[Axes], None]:
    dial = results.dials[axis]
    places = list(range(len(dial.values)))

    def draw(axes: Axes) -> None:
        for index, name in enumerate(results.strategies):
            points = [
                (x, each)
                for x, value in enumerate(dial.values)
                for each in results.at(_at(fixed, axis, value))
                if each.strategy == name
            ]
            if points:
                x = [place + 0.06 * (index - len(results.strategies) / 2) for place, _ in points]
                y = [100 * each.mean for _, each in points]
                reach = [
                    [100 * (each.mean - each.low) for _, each in points],
                    [100 * (each.high - each.mean) for _, each in points],
                ]
                axes.errorbar(x, y, yerr=np.maximum(reach, 0), label=name, elinewidth=0.7, **line_style(index))
        axes.set_xticks(places, [str(value) for value in dial.values])
        axes.set(xlabel=dial.name, ylabel=label_of(results.metric))

    return draw


# --- files and page ----------------------------------------------------------------------------------------------


def finish(console: Console, runs: Path, name: str, tracking_uri: str | None, *, alpha: float = 0.05) -> None:
    """Print a map's tables, write them, the figures and the page into its folder, and give them to its MLflow run."""
    results, folder = results_of(runs, name, alpha=alpha), runs / name
    told = answer(results)
    written = [
        write_text(folder / "map.csv", pd.DataFrame([vars(each) for each in results.standings]).to_csv(index=False)),
        write_text(
            folder / "crossings.csv", pd.DataFrame([vars(each) for each in results.crossings]).to_csv(index=False)
        ),
    ]
    for chart in _charts(results):
        with atomic_write(folder / f"{chart.key}.png", "wb") as file:
            file.write(png(chart))
        written.append(folder / f"{chart.key}.png")
    write_json(folder / FILE, {"metric": results.metric, "answer": told})
    write_json(folder / WORLDS, worlds_of(runs, name, results))
    written += write_page(folder / "report", map_page(folder))[:1]
    seen = shown(groups_of(runs, name), (), "\n\n".join(told))
    Tracker.open(runs, tracking_uri).close_parent(folder / "mlflow.json", name, [], written, seen)
    title = f"{label_of(results.metric)} at every point; two strategies that share a letter are not told apart"
    words = (*(dial.name for dial in results.dials), "ahead", "not beaten")
    console.print(Grid(table_of(results), title, rest=str(folder / "map.csv"), words=words))
    console.print("\nanswer", style="bold")
    for line in told:
        console.print(line, highlight=False, markup=False)
    console.print(f"\nstored {folder}", highlight=False, soft_wrap=True)
    console.print(f"report {folder / 'report' / 'index.html'}", highlight=False, soft_wrap=True)


def _charts(results: MapResults) -> list[Chart]:
    """The map, and a chart along each dial; none of a sample, whose points lie apart."""
    if not results.design.whole:
        return []
    along = [lines(results, axis) for axis, dial in enumerate(results.dials) if len(dial.values) > 1]
    return [figure(results), *along]


def map_page(folder: Path) -> Page:
    """The page of a finished map, from what `finish` wrote into its folder.

    Raises:
        NegbenchError: the files are missing or damaged.
    """
    kept, design = read_json(folder / FILE), Design.read(folder)
    standings = [Standing(**row) for row in records(folder / "map.csv")]
    crossings = [Crossing(**{**row, "where": _text(row["where"])}) for row in records(folder / "crossings.csv")]
    results = MapResults(kept["metric"], design, tuple(standings), tuple(crossings))
    size = f"{standings[0].seeds} seeds, {standings[0].queries} queries a point"
    told = "two strategies that share a letter are not told apart; intervals hold for all pairs of a point at once"
    counts = pd.DataFrame([vars(each) for each in standings])[_CELL_COLUMNS].round(3)
    changes, charts = crossings_frame(results), _charts(results)
    points = Table("points", "All points", table_of(results), told)
    sections = [
        Section("map", "Who is ahead where", "", (*charts[:1], points)),
        Section("lines", "Along the dials", "", tuple(charts[1:])),
        Section(
            "crossings",
            "Where the order changes",
            "",
            (Table("crossings", "Crossings", changes, size),) if len(changes) else (Note("No order changes."),),
        ),
        Section(
            "cells", "Negatives, and the regime at the end", "", (Table("cells", "Cells", counts, size),), folded=True
        ),
    ]
    return Page(
        title=f"negbench: {folder.name}",
        subtitle="Which negatives are best in which world: dials moved one at a time, all else held fixed.",
        answer=tuple(kept["answer"]),
        sections=tuple(section for section in sections if section.parts),
        facts=(
            ("size", size),
            ("metric", label_of(results.metric)),
            *((dial.key, ", ".join(map(str, dial.values))) for dial in design.dials),
        ),
    )


def _text(value: Any) -> str:
    return "" if isinstance(value, float) else str(value)  # an empty field of a CSV file
