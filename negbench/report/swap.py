"""The swap matrix as a table and a figure, and what each system's gain over the plain one is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from negbench import statistics
from negbench.analysis.verdicts import negatives_of
from negbench.analysis.words import bracket, label_of, listed, markdown, signed
from negbench.display import Grid
from negbench.files import atomic_write, intact, read_json, write_json
from negbench.grid.comparison import Group, groups_of
from negbench.grid.swap import Matrix
from negbench.report.charts import Chart, heat, png
from negbench.report.page import Note, Page, Section, Table, write_page, write_text
from negbench.report.views import shown
from negbench.scoring.stored import Values, values_of
from negbench.tracking import Tracker

SIGNS = {"better": "▲", "worse": "▼", "tied": "=", "underpowered": "?"}
_SEED = 0x5A4A  # of the resamples: the same runs give the same intervals


Place = tuple[str, str]  # system, strategy


@dataclass(frozen=True)
class Swapped:
    """One strategy in one system; differences to the system's own negatives in the unit of the metric."""

    system: str
    strategy: str
    own: bool
    negatives: float  # per query and step
    mean: float
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_adjusted: float = math.nan
    detectable: float = math.nan
    verdict: str = "own"


@dataclass(frozen=True)
class Gain:
    """One part of a system's gain over the plain system, in the unit of the metric."""

    system: str
    part: str  # "total", a factor (its share), or "a x b" (what they add together beyond each alone)
    value: float
    low: float
    high: float
    p_adjusted: float


@dataclass(frozen=True)
class Results:
    """What a swap matrix says, for one metric."""

    metric: str
    seeds: int
    queries: int
    cells: tuple[Swapped, ...]
    gains: tuple[Gain, ...]

    def frame(self) -> pd.DataFrame:
        """[strategy x system] the difference with its sign, 'own' where the negatives are the system's."""
        systems = list(dict.fromkeys(cell.system for cell in self.cells))
        strategies = list(dict.fromkeys(cell.strategy for cell in self.cells))
        shown = {
            (cell.strategy, cell.system): f"{100 * cell.mean:.1f} own"
            if cell.own
            else f"{signed(cell.difference, cell.low, cell.high)} {SIGNS[cell.verdict]}"
            for cell in self.cells
        }
        rows = [{"strategy": s, **{system: shown.get((s, system), "-") for system in systems}} for s in strategies]
        return pd.DataFrame(rows)

    def decomposition(self) -> pd.DataFrame:
        """One row a part of a system's gain."""
        return pd.DataFrame(
            [
                {
                    "system": gain.system,
                    "part": gain.part,
                    "points": f"{100 * gain.value:+.1f}",
                    "interval": bracket(gain.low, gain.high),
                }
                for gain in self.gains
            ]
        )


def results_of(runs: Path, name: str, matrix: Matrix, *, alpha: float = 0.05, margin: float = 0.005) -> Results:
    """Read the finished cells of a swap matrix.

    Args:
        runs: runs folder.
        name: of its comparison.
        matrix: as planned.
        alpha: level; intervals of one system's row hold for all its strategies at once, as do those of its parts.
        margin: differences within it do not matter, in the unit of the metric.

    Raises:
        RunError: no finished cell, or ranks of other queries.
    """
    groups = groups_of(runs, name)
    metric, queries = str(groups[0].results[0]["main_metric"]), tuple[str, ...]()
    found: dict[Place, Values] = {}
    for group in groups:
        mine = values_of(group.runs, [metric], queries).get(metric)
        if mine is not None:
            found[group.labels["system"], group.labels["strategy"]], queries = mine, mine.queries
    of = {(group.labels["system"], group.labels["strategy"]): group for group in groups}
    cells = [cell for system in matrix.systems for cell in _row(system, matrix.own[system], of, found, alpha, margin)]
    gains = [gain for system, corners in matrix.corners.items() for gain in _gains(system, corners, found, alpha)]
    shape = next(iter(found.values())).values.shape
    return Results(metric, shape[0], shape[1], tuple(cells), tuple(gains))


def _row(
    system: str, own: str, of: Mapping[Place, Group], found: Mapping[Place, Values], alpha: float, margin: float
) -> list[Swapped]:
    mine = {strategy: values for (where, strategy), values in found.items() if where == system}
    if own not in mine:
        return []
    tests = statistics.compare_table(
        {strategy: values.values for strategy, values in mine.items()},
        own,
        generator=np.random.default_rng(_SEED),
        strata=mine[own].strata,
        seeds={strategy: values.seeds for strategy, values in mine.items()},
        margin=margin,
        alpha=alpha,
    )
    tested = {test.name: test for test in tests}
    cells = []
    for strategy in sorted(mine):
        group, test = of[system, strategy], tested.get(strategy)
        count, mean = negatives_of(group), float(np.mean(group.values("metrics", group.results[0]["main_metric"])))
        cell = Swapped(system, strategy, test is None, count, mean)
        if test is not None:
            tested_by = (test.difference, test.interval.low, test.interval.high, test.p_adjusted)
            cell = Swapped(system, strategy, False, count, mean, *tested_by, test.minimum_detectable, test.verdict)
        cells.append(cell)
    return cells


def _gains(
    system: str, corners: Mapping[frozenset[str], str], found: Mapping[Place, Values], alpha: float
) -> list[Gain]:
    by_label = {label: values for (label, _), values in found.items()}
    cells = {factors: by_label[label] for factors, label in corners.items() if label in by_label}
    if len(cells) < len(corners) or len({values.seeds for values in cells.values()}) > 1:
        return []
    parts = statistics.factorial(
        {factors: values.values for factors, values in cells.items()},
        generator=np.random.default_rng(_SEED),
        strata=next(iter(cells.values())).strata,
        alpha=alpha,
    )
    shown = {"total": parts.total, **parts.shares}
    shown |= {" x ".join(term): effect for term, effect in parts.terms.items() if len(term) > 1}
    return [Gain(system, part, e.value, e.interval.low, e.interval.high, e.p_adjusted) for part, e in shown.items()]


# --- words, figure, files ------------------------------------------------------------------------------------------


def answer(results: Results) -> list[str]:
    """A line for each system: what other negatives do to it, and what its gain is made of."""
    lines = []
    for system in dict.fromkeys(cell.system for cell in results.cells):
        row = [cell for cell in results.cells if cell.system == system]
        own = next(cell for cell in row if cell.own)
        text = f"{system}: {label_of(results.metric)} {100 * own.mean:.1f} with its own negatives ({own.strategy})"
        for verdict, words in (("better", "better with"), ("worse", "worse with"), ("tied", "the same with")):
            names = [cell.strategy for cell in row if cell.verdict == verdict]
            text += f"; {words} {listed(names)}" if names else ""
        unclear = sum(cell.verdict == "underpowered" for cell in row)
        lines.append(text + (f"; {unclear} that {results.seeds} seeds cannot tell" if unclear else ""))
    for system in dict.fromkeys(gain.system for gain in results.gains):
        parts = [gain for gain in results.gains if gain.system == system]
        total, *rest = parts
        text = f"{system} against plain: {signed(total.value, total.low, total.high)} points, of it "
        lines.append(
            text + ", ".join(f"{g.part} {signed(g.value, g.low, g.high)}" for g in rest if " x " not in g.part)
        )
    return lines


def figure(results: Results) -> Chart:
    """Systems x strategies: the difference to the system's own negatives."""
    systems = list(dict.fromkeys(cell.system for cell in results.cells))
    strategies = list(dict.fromkeys(cell.strategy for cell in results.cells))
    drawn: dict[tuple[int, ...], tuple[float, str]] = {}
    for cell in results.cells:
        place = (strategies.index(cell.strategy), systems.index(cell.system))
        text = "own" if cell.own else f"{100 * cell.difference:+.1f} {SIGNS[cell.verdict]}"
        drawn[place] = (0.0 if cell.own else cell.difference, text)
    text = (
        f"Difference in {label_of(results.metric)} (points) to each system with its own negatives, {results.seeds} "
        f"seeds, {results.queries} queries; ▲ better, ▼ worse, = within the margin, ? not decided; blue is above 0, "
        "orange below."
    )
    return Chart(
        "swap",
        "Every system with every strategy's negatives",
        text,
        (heat(strategies, systems, drawn, differences=True),),
        1,
    )


def finish(console: Console, runs: Path, name: str, matrix: Matrix, tracking_uri: str | None) -> None:
    """Print a swap matrix's tables, write them and the figure into its folder, and give them to its MLflow run."""
    results, folder = results_of(runs, name, matrix), runs / name
    title = f"{label_of(results.metric)}: points against the system's own negatives, with simultaneous intervals"
    where = folder / "swap.csv"
    console.print(Grid(results.frame(), title, "▲ better ▼ worse = tied ? not decided", rest=str(where)))
    if results.gains:
        title = "what each system gains over the plain one, and from what (Shapley shares; a x b: interaction)"
        console.print(Grid(results.decomposition(), title, rest=str(folder / "decomposition.csv"), words=("part",)))
    lines = answer(results)
    written = [
        write_text(folder / "swap.csv", pd.DataFrame([vars(cell) for cell in results.cells]).to_csv(index=False)),
        write_text(
            folder / "decomposition.csv", pd.DataFrame([vars(gain) for gain in results.gains]).to_csv(index=False)
        ),
        write_text(folder / "swap.md", _markdown(results, matrix, lines)),
        folder / "swap.png",
    ]
    with atomic_write(folder / "swap.png", "wb") as file:
        file.write(png(figure(results)))
    undefined = [f"{cell.strategy} in {cell.system} is not defined: {cell.reason}" for cell in matrix.undefined]
    size = {"metric": results.metric, "seeds": results.seeds, "queries": results.queries}
    write_json(folder / "swap.json", {**size, "notes": [*undefined, *matrix.remarks], "answer": lines})
    written += write_page(folder / "report", swap_page(folder))[:1]
    seen = shown(groups_of(runs, name), (), "\n\n".join(lines))
    Tracker.open(runs, tracking_uri).close_parent(folder / "mlflow.json", name, [], written, seen)
    for line in undefined:
        console.print(f"note: {line}", style="yellow", highlight=False)
    console.print("\nanswer", style="bold")
    for line in lines:
        console.print(line, highlight=False, markup=False)
    console.print(f"\nstored {folder}", highlight=False, soft_wrap=True)
    console.print(f"report {folder / 'report' / 'index.html'}", highlight=False, soft_wrap=True)


def swap_page(folder: Path) -> Page:
    """The page of a finished swap matrix, from what `finish` wrote into its folder.

    Raises:
        NegbenchError: the files are missing or damaged.
    """
    kept = read_json(folder / "swap.json")
    results = Results(
        kept["metric"],
        kept["seeds"],
        kept["queries"],
        tuple(Swapped(**row) for row in records(folder / "swap.csv")),
        tuple(Gain(**row) for row in records(folder / "decomposition.csv")),
    )
    size = f"{results.seeds} seeds, {results.queries} queries"
    told = "▲ better, ▼ worse, = the same within the margin, ? not decided; intervals hold for a whole column at once"
    counts = pd.DataFrame([{**vars(cell), "mean": f"{100 * cell.mean:.2f}"} for cell in results.cells])
    counts = counts[["system", "strategy", "negatives", "mean", "verdict"]].round({"negatives": 1})
    parts: dict[str, tuple[Any, ...]] = {
        "matrix": (figure(results), Table("matrix", f"{label_of(results.metric)}, points", results.frame(), told)),
        "gains": (Table("decomposition", "Gain over the plain system", results.decomposition(), size),)
        * bool(results.gains),
        "cells": (Table("cells", "Negatives per query and step, and means", counts, size),),
        "notes": tuple(Note(line) for line in kept["notes"]),
    }
    titles = {
        "matrix": "What other negatives do to each system",
        "gains": "What each system's gain is made of",
        "cells": "All cells",
        "notes": "What is left out",
    }
    sections = tuple(
        Section(key, titles[key], "", shown, folded=key == "cells") for key, shown in parts.items() if shown
    )
    return Page(
        title=f"negbench: {folder.name}",
        subtitle="Every published system with its negatives replaced by every strategy's, all else untouched.",
        answer=tuple(kept["answer"]),
        sections=sections,
        facts=(("size", size), ("metric", label_of(results.metric))),
    )


def records(path: Path) -> list[dict[str, Any]]:
    """Rows of a CSV file; none where it has not even a heading."""
    with intact(path):
        rows = pd.read_csv(path).to_dict("records") if path.read_text(encoding="utf-8").strip() else []
    return [{str(key): value for key, value in row.items()} for row in rows]


def _markdown(results: Results, matrix: Matrix, lines: Sequence[str]) -> str:
    parts = ["\n\n".join(lines), markdown(results.frame()), markdown(results.decomposition())]
    if matrix.undefined:
        parts.append("\n".join(f"- {u.strategy} in {u.system}: {u.reason}" for u in matrix.undefined))
    return "\n\n".join([*parts, *matrix.remarks]) + "\n"
