"""Over several tables (data sets, backbones, losses): which strategy is ahead overall, how surely, by which measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console

from negbench.analysis import measures
from negbench.analysis.selection import Selected, curve_of, selection, selection_answer, selection_frame
from negbench.analysis.verdicts import Rules
from negbench.analysis.words import listed
from negbench.display import Grid
from negbench.errors import RunError
from negbench.files import atomic_write, read_json, write_json
from negbench.grid.comparison import AXES, Group, groups_of
from negbench.report.charts import GREY, Chart, Panel, heat, line_style, png, words_room
from negbench.report.page import Note, Page, Section, Table, write_page, write_text
from negbench.report.swap import records

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = "aggregate.json"
_SEED = 0xA66  # of the resamples: the same runs give the same intervals
_RESAMPLES = 2000
_PART = 20  # resamples at a time
_FEW = 5  # tables below which ranks and Elo can hardly tell
_THRESHOLDS = np.linspace(-0.5, 1.5, 81)

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tables:
    """Scores [K, S, T] of the strategies that all tables have, on the seeds that all have.

    `tables` and `strategies` name the axes, `metrics` the main metric of each table; `notes` say what was left out.
    """

    strategies: tuple[str, ...]
    tables: tuple[str, ...]
    metrics: tuple[str, ...]
    scores: Array
    groups: Mapping[str, Mapping[str, Group]]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Overall:
    """One strategy over all tables, the highest Elo first.

    `iqm`: interquartile mean of the scaled scores (0: each table's worst strategy, 1: its best), with the interval that
    other seeds on these tables would give; `percent_iqm` of the metric itself. `elo` and its interval under other
    tables. `win_rate`: mean share of won games. `rank`: average; strategies that share one of `letters` are not told
    apart by Nemenyi's test.
    """

    strategy: str
    iqm: float
    iqm_low: float
    iqm_high: float
    percent_iqm: float
    elo: float
    elo_low: float
    elo_high: float
    win_rate: float
    rank: float
    letters: str


@dataclass(frozen=True)
class Duel:
    """Two strategies: probability that a run of the first scores above one of the second, and its share of games."""

    first: str
    second: str
    improvement: float
    low: float
    high: float
    wins: float


@dataclass(frozen=True)
class Above:
    """A point of a performance profile: share of a strategy's runs above a scaled score, with its interval."""

    strategy: str
    threshold: float
    share: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Aggregate:
    """What `results_of` found; `facts` holds sizes, the baseline, Friedman's p and the critical difference."""

    overall: tuple[Overall, ...]
    duels: tuple[Duel, ...]
    profile: tuple[Above, ...]
    selection: tuple[Selected, ...]
    facts: dict[str, Any]

    @property
    def strategies(self) -> list[str]:
        """By name: one colour in every figure."""
        return sorted(each.strategy for each in self.overall)


# --- reading -----------------------------------------------------------------------------------------------------


def tables_of(runs: Path, names: Sequence[str]) -> Tables:
    """The tables of these comparisons (or maps, a table each point), each (data set, backbone, loss) once.

    Raises:
        RunError: no such comparison, one place of a table computed twice, or too little in common to aggregate.
    """
    found: dict[str, dict[str, Group]] = {}
    origin: dict[tuple[str, str], str] = {}
    every = [(name, group) for name in dict.fromkeys(names) for group in groups_of(runs, name)]
    axes = [axis for axis in AXES if axis != "strategy" and len({group.labels.get(axis) for _, group in every}) > 1]
    if all("point" in group.labels for _, group in every) and len(set(names)) == 1:
        axes = ["point"]  # a point of a map is a data set of its own
    for name, group in every:
        table = ", ".join(group.labels[axis] for axis in axes if axis in group.labels) or group.labels["dataset"]
        strategy = group.labels["strategy"]
        other = found.setdefault(table, {}).setdefault(strategy, group)
        known = origin.setdefault((table, strategy), name)
        if [run.manifest["hash"] for run in other.runs] != [run.manifest["hash"] for run in group.runs]:
            raise RunError(
                f"{strategy} on {table} is in '{known}' and in '{name}' with other runs: aggregate one of them"
            )
    common = sorted(set.intersection(*(set(mine) for mine in found.values())))
    left = sorted({name for mine in found.values() for name in mine} - set(common))
    notes = [f"left out, not in every table: {', '.join(left)}"] if left else []
    if len(common) < 2 or len(found) < 2:
        raise RunError(
            f"{len(found)} tables have {len(common)} strategies in common: an aggregate needs at least 2 of each; "
            "name comparisons on several data sets or backbones"
        )
    values, metrics = [], []
    for mine in found.values():
        metric = str(mine[common[0]].results[0]["main_metric"])
        metrics.append(metric)
        by_seed = [{run.config.seed: run.result["metrics"][metric] for run in mine[name].runs} for name in common]
        shared = sorted(set.intersection(*map(set, by_seed)))
        values.append([[own[seed] for seed in shared] for own in by_seed])
    seeds = min(len(table[0]) for table in values)
    if seeds == 0:
        raise RunError("the strategies of a table have no seed in common: compute the missing cells first")
    if seeds < max(len(group.runs) for mine in found.values() for group in mine.values()):
        notes.append(f"the first {seeds} seeds that all strategies have are used of each table")
    scores = np.stack([np.array([own[:seeds] for own in table], dtype=np.float64) for table in values], axis=-1)
    return Tables(tuple(common), tuple(found), tuple(metrics), scores, found, tuple(notes))


def results_of(tables: Tables, rules: Rules, baseline: str) -> Aggregate:
    """All measures of the tables; `baseline` anchors Elo."""
    scores, names, alpha = tables.scores, tables.strategies, rules.alpha
    generator = np.random.default_rng(_SEED)
    own, won, ranks = measures.scaled(scores), measures.wins(scores), measures.table_ranks(scores)
    drawn = measures.resampled_seeds(own, _RESAMPLES, generator)

    def ends(of: Callable[[Array], Array]) -> tuple[Array, Array]:
        """Under other seeds; unknown with one. In parts: pairs of runs are many."""
        parts = np.array_split(drawn, max(1, len(drawn) // _PART))
        low, high = measures.middle(np.concatenate([of(part) for part in parts]), alpha)
        return (low, high) if scores.shape[1] > 1 else (np.full_like(low, np.nan), np.full_like(high, np.nan))

    games, anchor = measures.resampled_tables(won, _RESAMPLES // 4, generator), names.index(baseline)
    columns = {
        "iqm": measures.interquartile_mean(own),
        **_two("iqm", ends(measures.interquartile_mean)),
        "percent_iqm": measures.interquartile_mean(scores),
        "elo": measures.elo(won.sum(axis=0), anchor),
        **_two("elo", measures.middle(measures.elo(games, anchor, tolerance=1e-6), alpha)),
        "win_rate": measures.win_rates(won.mean(axis=0)),
        "rank": ranks.mean(axis=0),
    }
    letters = measures.rank_pairs(names, ranks, alpha).letters()
    rows = [{key: float(column[k]) for key, column in columns.items()} for k in range(len(names))]
    overall = [Overall(strategy=name, letters=letters[name], **row) for name, row in zip(names, rows, strict=True)]
    curves = {
        table: {name: [curve_of(run, metric) for run in mine[name].runs] for name in names}
        for (table, mine), metric in zip(tables.groups.items(), tables.metrics, strict=True)
    }
    facts = {
        "tables": list(tables.tables),
        "metrics": list(tables.metrics),
        "seeds": scores.shape[1],
        "baseline": baseline,
        "alpha": alpha,
        "friedman": measures.friedman(ranks),
        "critical_difference": measures.critical_difference(len(names), len(tables.tables), alpha),
        "notes": list(tables.notes),
    }
    return Aggregate(
        tuple(sorted(overall, key=lambda each: (-each.elo, each.strategy))),
        tuple(_duels(scores, won, names, ends(measures.improvement))),  # a table's own scale moves no order
        tuple(_profile(own, names, ends(lambda each: measures.profile(each, _THRESHOLDS)))),
        tuple(selection(curves)),
        facts,
    )


def _two(name: str, ends: tuple[Array, Array]) -> dict[str, Array]:
    return {f"{name}_low": ends[0], f"{name}_high": ends[1]}


def _duels(scores: Array, won: Array, names: Sequence[str], ends: tuple[Array, Array]) -> Iterator[Duel]:
    found, mean = measures.improvement(scores), won.mean(axis=0)
    for i, j in permutations(range(len(names)), 2):
        values = (float(array[i, j]) for array in (found, *ends, mean))
        yield Duel(names[i], names[j], *values)


def _profile(own: Array, names: Sequence[str], ends: tuple[Array, Array]) -> Iterator[Above]:
    share = measures.profile(own, _THRESHOLDS)
    for (k, name), (n, threshold) in product(enumerate(names), enumerate(_THRESHOLDS)):
        yield Above(name, float(threshold), *(float(array[k, n]) for array in (share, *ends)))


# --- words -------------------------------------------------------------------------------------------------------


def answer(found: Aggregate) -> list[str]:
    """Who is first by which measure, what the ranks can tell apart, what another rule of selection would change."""
    facts, tables = found.facts, len(found.facts["tables"])
    best = max(found.overall, key=lambda each: each.iqm)
    first = found.overall[0]
    alike = [each.strategy for each in sorted(found.overall, key=lambda e: e.rank)]
    top = min(found.overall, key=lambda each: each.rank)
    alike = [name for name in alike if set(_letters(found, name)) & set(top.letters)]
    level = f"{100 * (1 - facts['alpha']):g} %"
    others = listed([name for name in alike if name != top.strategy], 9) or "none"
    lines = [
        f"{len(found.overall)} strategies on {tables} tables, {facts['seeds']} seeds: {best.strategy} has the highest "
        f"interquartile mean, {best.iqm:.2f} {_ends(best.iqm_low, best.iqm_high)} on each table's scale from its worst "
        f"(0) to its best strategy (1); {level} under other seeds.",
        f"Elo: {', '.join(map(_rating, found.overall[:3]))} ({level} under other tables; {facts['baseline']} is 1000); "
        f"{first.strategy} wins {first.win_rate:.0%} of its games, seed by seed.",
        f"Average ranks: {top.strategy} {top.rank:.2f}; not told apart from it (critical difference "
        f"{facts['critical_difference']:.2f}, Nemenyi): {others}; Friedman's p {_p(facts['friedman'])}.",
    ]
    if tables < _FEW:
        lines.append(f"{tables} tables are few: ranks and Elo say little below about {_FEW}.")
    return [*lines, *selection_answer(found.selection)]


def _rating(each: Overall) -> str:
    fixed = math.isclose(each.elo_low, each.elo_high)
    return f"{each.strategy} {each.elo:.0f}" + f" {_ends(each.elo_low, each.elo_high, 0)}" * (not fixed)


def _letters(found: Aggregate, name: str) -> str:
    return next(each.letters for each in found.overall if each.strategy == name)


def _ends(low: float, high: float, digits: int = 2) -> str:
    return "" if math.isnan(low) else f"[{low:.{digits}f}, {high:.{digits}f}]"


def _p(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else "<0.001" if value < 0.001 else f"{value:.3f}"


def overall_frame(found: Aggregate) -> pd.DataFrame:
    """One row a strategy, the highest Elo first."""
    return pd.DataFrame(
        [
            {
                "strategy": each.strategy,
                "Elo": f"{each.elo:.0f} {_ends(each.elo_low, each.elo_high, 0)}",
                "win rate %": f"{100 * each.win_rate:.1f}",
                "IQM scaled": f"{each.iqm:.3f} {_ends(each.iqm_low, each.iqm_high, 3)}",
                "IQM %": f"{100 * each.percent_iqm:.2f}",
                "average rank": f"{each.rank:.2f} {each.letters}",
            }
            for each in found.overall
        ]
    )


def duels_frame(found: Aggregate) -> pd.DataFrame:
    """All pairs, the surest improvement first."""
    rows = sorted(found.duels, key=lambda each: (-each.improvement, each.first, each.second))
    return pd.DataFrame(
        [
            {
                "strategy": each.first,
                "against": each.second,
                "probability of improvement": f"{each.improvement:.3f} {_ends(each.low, each.high, 3)}",
                "wins %": f"{100 * each.wins:.1f}",
            }
            for each in rows
        ]
    )


# --- figures -----------------------------------------------------------------------------------------------------


def charts_of(found: Aggregate) -> list[Chart]:
    """Ranks, Elo and interquartile means, the profile, and who wins against whom."""
    facts = found.facts
    size = f"{len(facts['tables'])} tables, {facts['seeds']} seeds"
    order = [each.strategy for each in found.overall]
    won: dict[tuple[int, ...], tuple[float, str]] = {
        (order.index(each.first), order.index(each.second)): (each.wins, f"{100 * each.wins:.0f}")
        for each in found.duels
    }
    level = f"{100 * (1 - facts['alpha']):g} %"
    return [
        Chart(
            "ranks",
            "Average ranks and the critical difference",
            f"Average rank over {size}, 1 is best; a bar joins strategies that Nemenyi's test does not tell apart (all "
            f"pairs at once, level {facts['alpha']:g}; Friedman's p {_p(facts['friedman'])}).",
            (Panel("", _ranks_drawn(found), 0.75 + 0.16 * len(order), 0.2, 0.2),),
            1,
        ),
        Chart(
            "overall",
            "Elo and interquartile mean",
            f"Elo with {facts['baseline']} at 1000, intervals ({level}) under other tables; interquartile mean of "
            f"scaled scores, intervals under other seeds ({size}).",
            (
                Panel("Elo", _bars(found, "elo"), 0.2 * len(order) + 0.2, words_room(order)),
                Panel("IQM, scaled", _bars(found, "iqm"), 0.2 * len(order) + 0.2, words_room(order)),
            ),
            2,
        ),
        Chart(
            "profile",
            "Performance profile",
            f"Share of runs above a score, on each table's scale from its worst (0) to its best strategy (1); bands: "
            f"{level} under other seeds ({size}).",
            (Panel("", _profile_drawn(found)),),
            1,
        ),
        Chart(
            "wins",
            "Who wins against whom",
            f"Share of games (%) that the row's strategy wins against the column's, seed by seed ({size}).",
            (heat(order, order, won),),
            1,
        ),
    ]


def _ranks_drawn(found: Aggregate) -> Callable[[Axes], None]:
    """Demsar's diagram: names below an axis of ranks, the better half on the left, bars that join what is alike."""
    order = sorted(found.overall, key=lambda each: each.rank)
    letters = sorted({letter for each in order for letter in each.letters})
    groups = [[each.rank for each in order if letter in each.letters] for letter in letters]
    joined = [ranks for ranks in groups if len(ranks) > 1]
    left = (len(order) + 1) // 2

    def draw(axes: Axes) -> None:
        wide, floor = len(order), 0.35 + 0.25 * len(joined)
        for index, ranks in enumerate(joined):
            axes.plot([min(ranks) - 0.04, max(ranks) + 0.04], [0.3 + 0.25 * index] * 2, color=GREY, linewidth=3)
        for index, each in enumerate(order):
            deep = floor + 0.4 * (index + 1 if index < left else wide - index)
            end, side = (0.6, "left") if index < left else (wide + 0.4, "right")
            axes.plot([each.rank, each.rank, end], [0, deep, deep], color=GREY, linewidth=0.8)
            axes.text(end, deep - 0.05, f"{each.strategy} {each.rank:.2f}", ha=side, va="bottom", fontsize=8)
        for rank in range(1, wide + 1):
            axes.text(rank, -0.08, str(rank), ha="center", va="bottom", fontsize=8)
        reach = found.facts["critical_difference"]
        axes.plot([1, min(1 + reach, wide + 0.4)], [-0.75, -0.75], color=GREY, linewidth=1.5)
        axes.text(1, -0.8, f"critical difference {reach:.2f}", ha="left", va="bottom", fontsize=8)
        axes.plot([1, wide], [0, 0], color=GREY, linewidth=0.8)
        axes.set(xticks=[], yticks=[], xlim=(0.5, wide + 0.5), ylim=(floor + 0.4 * left + 0.2, -1.2))
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)

    return draw


def _bars(found: Aggregate, name: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for y, each in enumerate(found.overall):
            value, low, high = (getattr(each, f"{name}{end}") for end in ("", "_low", "_high"))
            style = line_style(found.strategies.index(each.strategy))["color"]
            if not math.isnan(low):
                axes.plot([low, high], [y, y], color=style, linewidth=1.6)
            axes.plot([value], [y], "o", color=style)
        axes.set_yticks(range(len(found.overall)), [each.strategy for each in found.overall])
        axes.set(ylim=(len(found.overall) - 0.5, -0.5))
        axes.grid(visible=False, axis="y")

    return draw


def _profile_drawn(found: Aggregate) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for index, name in enumerate(found.strategies):
            mine = [each for each in found.profile if each.strategy == name]
            x, style = [each.threshold for each in mine], line_style(index)
            axes.plot(x, [each.share for each in mine], label=name, **style)
            if not math.isnan(mine[0].low):
                ends = [each.low for each in mine], [each.high for each in mine]
                axes.fill_between(x, *ends, color=style["color"], alpha=0.12, linewidth=0)
        axes.set(xlabel="scaled score", ylabel="share of runs above", ylim=(-0.02, 1.02))

    return draw


# --- files and page ----------------------------------------------------------------------------------------------

_FILES = {"overall": Overall, "duels": Duel, "profile": Above, "selection": Selected}


def finish(console: Console, runs: Path, names: Sequence[str], name: str, rules: Rules) -> None:
    """Aggregate comparisons; print the answer and tables, and write csv, md, png and the page into a folder of its own.

    Raises:
        RunError: as `tables_of`, or a folder that holds something else.
        UnknownNameError: a baseline that is not in every table.
    """
    folder = runs / name
    if folder.exists() and not (folder / FILE).exists():
        raise RunError(f"{folder} is there already, and is no aggregate: give another --name")
    tables = tables_of(runs, names)
    rules.check(tables.strategies)
    found = results_of(tables, rules, rules.choose(tables.strategies) or tables.strategies[0])
    lines = answer(found)
    for key in _FILES:
        frame = pd.DataFrame([vars(each) for each in getattr(found, key)])
        write_text(folder / f"{key}.csv", frame.to_csv(index=False))
    means = pd.DataFrame(
        tables.scores.mean(axis=1).T, index=pd.Index(tables.tables, name="table"), columns=tables.strategies
    )
    write_text(folder / "tables.csv", means.to_csv())
    write_json(folder / FILE, {**found.facts, "comparisons": list(names), "answer": lines})
    for chart in charts_of(found):
        with atomic_write(folder / f"{chart.key}.png", "wb") as file:
            file.write(png(chart))
    write_text(folder / "answer.md", "\n\n".join(lines) + "\n")
    page = write_page(folder / "report", aggregate_page(folder))[0]
    console.print("answer", style="bold")
    for line in (*lines, *(f"note: {note}" for note in tables.notes)):
        console.print(line, highlight=False, markup=False)
    title = f"\n{name}: over {len(tables.tables)} tables; strategies that share a letter are not told apart by rank"
    console.print(Grid(overall_frame(found), title, rest=str(folder / "overall.csv")))
    title = "epoch chosen by another rule: percent, mean over tables (mean rank)"
    console.print(Grid(selection_frame(found.selection), title, rest=str(folder / "selection.csv")))
    console.print(f"\nstored {folder}\nreport {page}", highlight=False, soft_wrap=True)


def aggregate_page(folder: Path) -> Page:
    """The page of an aggregate, from what `finish` wrote into its folder.

    Raises:
        NegbenchError: the files are missing or damaged.
    """
    kept = read_json(folder / FILE)
    read: dict[str, Any] = {
        key: tuple(kind(**row) for row in records(folder / f"{key}.csv")) for key, kind in _FILES.items()
    }
    found = Aggregate(**read, facts={k: v for k, v in kept.items() if k not in ("answer", "comparisons")})
    ranks, overall, profile, won = charts_of(found)
    means = pd.read_csv(folder / "tables.csv")
    shown = means.assign(**{name: (100 * means[name]).map("{:.2f}".format) for name in means.columns[1:]})
    about = "Elo: a game is a table, won by the share of its seeds; win rate: mean over the other strategies; IQM: "
    about += "interquartile mean over seeds and tables; strategies that share a letter are not told apart by rank."
    rules = "`last`: the last epoch; `dev`: the best on a part of train; `val`: each run's best on the reported split "
    rules += "itself; `oracle`: the best epoch of the best seed. Percent, mean over tables, and the mean rank."
    sections = (
        Section("overall", "Overall", "", (Table("overall", "Over all tables", overall_frame(found), about), overall)),
        Section("ranks", "Ranks", "", (ranks,)),
        Section("profile", "Performance profile", "", (profile,)),
        Section("duels", "Pairs", "", (won, Table("duels", "All pairs", duels_frame(found))), folded=True),
        Section(
            "selection", "Rule of selection", rules,
            (Table("selection", "Which epoch is reported", selection_frame(found.selection)),),
        ),
        Section("tables", "The tables", "", (Table("tables", "Means, percent", shown),), folded=True),
    )  # fmt: skip
    notes = tuple(Note(note) for note in kept["notes"])
    return Page(
        title=f"negbench: {folder.name}",
        subtitle="Which negatives are best over several data sets and backbones, each strategy in every table.",
        answer=tuple(kept["answer"]),
        sections=(*sections, *((Section("notes", "What is left out", "", notes),) if notes else ())),
        facts=(
            ("comparisons", ", ".join(kept["comparisons"])),
            ("tables", "; ".join(kept["tables"])),
            ("metrics", ", ".join(dict.fromkeys(kept["metrics"]))),
            ("seeds", str(kept["seeds"])),
        ),
    )
