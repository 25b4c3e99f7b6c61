"""A comparison at published defaults and at equal tuning side by side: numbers, verdicts, gains and cost of tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import scipy
from rich.console import Console

from negbench import statistics
from negbench.analysis.leader import FOLDED, NEGATIVES, equally_many, negatives_text
from negbench.analysis.verdicts import VerdictRow
from negbench.analysis.words import label_of, listed, markdown, percent, signed
from negbench.display import Grid
from negbench.grid.comparison import KEY, Group, groups_of
from negbench.grid.tuning import SUFFIX, Tuning, read_tunings
from negbench.report.page import Note, Section, Table, write_text
from negbench.scoring.stored import values_of

_SEED = 0x7E5  # of the resamples: the same runs give the same intervals


@dataclass(frozen=True)
class TunedRow:
    """A strategy twice: `default` and `tuned` are rows of two tables, each with its own baseline.

    `gain`: tuned minus default in the unit of the metric, with an interval for all gains of the table at once
    (Bonferroni); NaN where the default was kept or there was nothing to tune.
    """

    default: VerdictRow
    tuned: VerdictRow | None
    tuning: Tuning
    gain: float = math.nan
    low: float = math.nan
    high: float = math.nan


def tuned_rows(
    runs: Path, name: str, rows: Sequence[VerdictRow], tuned: Sequence[VerdictRow]
) -> tuple[int, list[TunedRow]]:
    """The budget, and one row a strategy, in the order of the default table; nothing where nothing was tuned.

    Args:
        runs: runs folder.
        name: of the comparison at defaults.
        rows: its statistics.
        tuned: those of the comparison with the settings found.
    """
    budget, tunings = read_tunings(runs / name)
    if not tunings or not tuned:
        return budget, []
    groups = [{_place(group): group for group in groups_of(runs, each)} for each in (name, name + SUFFIX)]
    searched = {tuple(each.labels[key] for key in KEY): each for each in tunings}
    after = {tuple(getattr(row, key) for key in KEY): row for row in tuned if row.main}
    found = []
    for row in (row for row in rows if row.main):
        place = tuple(getattr(row, key) for key in KEY)
        if place not in searched:
            continue
        table = [each for each in tunings if each.found and [each.labels[key] for key in KEY[1:]] == list(place[1:])]
        gain = (math.nan, math.nan, math.nan)
        if searched[place].found and place in groups[1] and place in after:
            gain = _gain(groups[0][place], groups[1][place], row, len(table))
        found.append(TunedRow(row, after.get(place), searched[place], *gain))
    return budget, found


def _place(group: Group) -> tuple[str, ...]:
    return tuple(group.labels[key] for key in KEY)


def _gain(default: Group, tuned: Group, row: VerdictRow, tests: int) -> tuple[float, float, float]:
    """Tuned minus default on the seeds that both have."""
    before = values_of(default.runs, [row.metric]).get(row.metric)
    after = None if before is None else values_of(tuned.runs, [row.metric], before.queries).get(row.metric)
    if before is None or after is None or not set(before.seeds) & set(after.seeds):
        return math.nan, math.nan, math.nan
    (found,) = statistics.compare_table(
        {"default": before.values, "tuned": after.values},
        "default",
        generator=np.random.default_rng(_SEED),
        strata=before.strata,
        seeds={"default": before.seeds, "tuned": after.seeds},
        alpha=row.alpha / tests,
    )
    return found.difference, found.interval.low, found.interval.high


# --- words -------------------------------------------------------------------------------------------------------


def tuned_frame(rows: Sequence[TunedRow]) -> pd.DataFrame:
    """Both tables beside each other, percent and points."""
    shown = []
    for row in rows:
        line: dict[str, object] = {key: getattr(row.default, key) for key in KEY}
        for title, mine in (("at defaults", row.default), ("tuned", row.tuned)):
            line[f"{label_of(row.default.metric)} {title}"] = "-" if mine is None else percent(mine.mean, 2)
            line[f"{title}: difference"] = (
                "-" if mine is None else signed(mine.difference, mine.diff_low, mine.diff_high)
            )
            line[f"{title}: verdict"] = "-" if mine is None else mine.verdict
        line["tuning gains"] = signed(row.gain, row.low, row.high)
        line["found"] = _found(row.tuning)
        line[NEGATIVES] = negatives_text(row.default.negatives)
        shown.append(line | {"trials": row.tuning.trials, "tuning s": f"{row.tuning.seconds:.1f}"})
    return pd.DataFrame(shown)


def _found(tuning: Tuning) -> str:
    if not tuning.study:
        return "nothing to tune"
    if tuning.error:
        return f"FAILED: {tuning.error}"
    told = (f"{key.split('.')[-1]}={_short(value)}" for key, value in (tuning.found or {}).items())
    return ", ".join(told) or "the default"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def tuned_answer(budget: int, rows: Sequence[TunedRow]) -> list[str]:
    """Who is not beaten before and after, whether the order changes, what it cost."""
    lines = []
    tables: dict[tuple[str, ...], list[TunedRow]] = {}
    for row in rows:
        tables.setdefault((row.default.dataset, row.default.loss, row.default.backbone), []).append(row)
    for place, mine in tables.items():
        where = f"{', '.join(place)}: " if len(tables) > 1 else ""
        first = next(iter(equally_many([row.default for row in mine]).values()))
        names = {row.strategy for row in first}
        block = [row for row in mine if row.default.strategy in names and row.tuned is not None]
        both = [[row.default for row in block], [row.tuned for row in block if row.tuned is not None]]
        told = [
            listed([row.strategy for row in sorted(each, key=lambda r: -r.mean) if not names & set(row.beaten_by)], 9)
            for each in both
        ]
        tau = "-"
        if len(block) > 1:
            tau = f"{scipy.stats.kendalltau(*([row.mean for row in each] for each in both)).statistic:.2f}"
        lines.append(
            f"{where}not beaten at published defaults: {told[0]}; after {budget} trials each: {told[1]} "
            f"(strategies with {negatives_text(first[0].negatives)} negatives; Kendall's tau of the two orders {tau})."
        )
    gains = sorted((row for row in rows if not math.isnan(row.gain)), key=lambda row: -row.gain)
    if gains:
        told = [f"{row.default.strategy} {signed(row.gain, row.low, row.high)}" for row in gains[:6]]
        lines.append(f"Tuning gains, in points on the reported split: {', '.join(told)}.")
    kept = [row.default.strategy for row in rows if row.tuning.study and not row.tuning.found and not row.tuning.error]
    knobless = [row.default.strategy for row in rows if not row.tuning.study]
    for names_, what in ((kept, "best at its default"), (knobless, "nothing to tune")):
        if names_:
            lines.append(f"{what.capitalize()}: {listed(list(dict.fromkeys(names_)), 9)}.")
    spent = sum(row.tuning.seconds for row in rows)
    trials = sum(row.tuning.trials for row in rows)
    lines.append(f"Tuning cost {trials} trials and {spent:,.0f} s of computing beside the runs of both tables.")
    return lines


# --- files and page ----------------------------------------------------------------------------------------------

_TEXT = (
    "Every strategy that has knobs was given the same number of trials on a part of train, with a seed of its own; the "
    "reported split was not seen. Each side is a table of its own, against its own baseline; `tuning gains` is tuned "
    "minus default, with intervals for all gains of a table at once."
)


def tuned_section(runs: Path, name: str, rows: Sequence[VerdictRow], tuned: Sequence[VerdictRow]) -> Section | None:
    """Section of the page of a comparison; None where nothing was tuned. Arguments as `tuned_rows`."""
    budget, found = tuned_rows(runs, name, rows, tuned)
    if not found:
        return None
    answer = tuple(Note(line) for line in tuned_answer(budget, found))
    return Section(
        "tuned", "At equal tuning", _TEXT, (*answer, Table("tuned", f"{budget} trials", tuned_frame(found), "", FOLDED))
    )


def finish_tuned(
    console: Console, runs: Path, name: str, rows: Sequence[VerdictRow], tuned: Sequence[VerdictRow]
) -> None:
    """Print both tables side by side and write tuned.csv and tuned.md into the comparison's folder."""
    budget, found = tuned_rows(runs, name, rows, tuned)
    if not found:
        return
    frame, lines = tuned_frame(found), tuned_answer(budget, found)
    write_text(runs / name / "tuned.csv", frame.to_csv(index=False))
    write_text(runs / name / "tuned.md", "\n\n".join([*lines, markdown(frame)]))
    constant = [column for column in FOLDED if column in frame and frame[column].nunique() == 1]
    title = f"{name}: at published defaults and at equal tuning ({budget} trials each), percent and points"
    caption = ", ".join(f"{column} {frame[column].iloc[0]}" for column in constant)
    words = ("strategy", "at defaults: verdict", "tuned: verdict", "found")
    console.print(Grid(frame.drop(columns=constant), title, caption, str(runs / name / "tuned.csv"), words))
    for line in lines:
        console.print(line, highlight=False, markup=False)
