"""Published defaults and equal tuning side by side: numbers, verdicts, what tuning gains and what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from negbench.analysis.differences import differences
from negbench.analysis.leader import equally_many, negatives_text, negatives_words
from negbench.analysis.verdicts import VerdictRow, VerdictTable
from negbench.analysis.words import label_of, listed, percent, signed
from negbench.grid.comparison import KEY
from negbench.grid.tuning import Tuning

DEFAULT, TUNED = "default", "tuned"  # values of the axis `settings`


@dataclass(frozen=True)
class TuningGain:
    """Tuned minus default of one strategy, in the unit of the metric; intervals are simultaneous in a table.

    NaN if the default was kept, there was nothing to tune, or no seed has both.
    """

    strategy: str
    loss: str
    backbone: str
    dataset: str
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class TunedRow:
    """A strategy at both settings: `default` and `tuned` are rows of two tables, each with its own baseline."""

    default: VerdictRow
    tuned: VerdictRow | None
    tuning: Tuning
    gain: TuningGain


def tunings_of(document: Mapping[str, Any]) -> tuple[int, list[Tuning]]:
    """Return the number of trials per strategy and the searches from comparison.json; (0, []) without any."""
    kept = document.get("tuned") or {"trials": 0, "tunings": []}
    return int(kept["trials"]), [Tuning(**{**each, "knobs": tuple(each["knobs"])}) for each in kept["tunings"]]


def tuning_gains(tables: Sequence[VerdictTable], tunings: Sequence[Tuning], alpha: float) -> list[TuningGain]:
    """Test the gain of every tuned strategy; Bonferroni correction within one data set, loss and backbone."""
    axes = ("settings", *KEY[1:])
    by_place = {tuple(table.labels.get(axis, "") for axis in axes): table for table in tables}
    gains = []
    for tuning in tunings:
        strategy, *place = (tuning.labels[axis] for axis in KEY)
        tests = sum(bool(each.found) for each in tunings if [each.labels[axis] for axis in KEY[1:]] == place)
        pair = {}
        for settings in (DEFAULT, TUNED):
            table = by_place.get((settings, *place))
            values = None if table is None else table.values[table.main].get(strategy)
            if values is not None:
                pair[settings] = values
        ends = (math.nan, math.nan, math.nan)
        if tuning.found and len(pair) == 2:
            test = differences(pair, DEFAULT, alpha=alpha / tests).against.get(TUNED)
            if test is not None:
                ends = (test.value, test.interval.low, test.interval.high)
        loss, backbone, dataset = place
        gains.append(TuningGain(strategy, loss, backbone, dataset, *ends))
    return gains


def tuned_rows(rows: Sequence[VerdictRow], tunings: Sequence[Tuning], gains: Sequence[TuningGain]) -> list[TunedRow]:
    """Build one row per strategy that has a search, in the order of the default table."""
    searched = {tuple(each.labels[axis] for axis in KEY): each for each in tunings}
    gained = {tuple(getattr(gain, axis) for axis in KEY): gain for gain in gains}
    named = {(row.settings, *(getattr(row, axis) for axis in KEY)): row for row in rows if row.main}
    return [
        TunedRow(row, named.get((TUNED, *key)), searched[key], gained[key])
        for (settings, *rest), row in named.items()
        if settings == DEFAULT and (key := tuple(rest)) in searched and key in gained
    ]


def tuned_frame(rows: Sequence[TunedRow]) -> pd.DataFrame:
    """Put both tables side by side, in percent and points."""
    shown = []
    for row in rows:
        line: dict[str, object] = {axis: getattr(row.default, axis) for axis in KEY}
        for title, side in (("at defaults", row.default), ("tuned", row.tuned)):
            line[f"{label_of(row.default.metric)} {title}"] = "-" if side is None else percent(side.mean, 2)
            line[f"{title}: difference"] = (
                "-" if side is None else signed(side.difference, side.diff_low, side.diff_high)
            )
            line[f"{title}: verdict"] = "-" if side is None else side.verdict
        line["tuning gains"] = signed(row.gain.value, row.gain.low, row.gain.high)
        line |= {"found": _found(row.tuning), "negatives": negatives_text(row.default.negatives)}
        shown.append(line | {"trials": row.tuning.trials, "tuning s": f"{row.tuning.seconds:.1f}"})
    return pd.DataFrame(shown)


def _found(tuning: Tuning) -> str:
    if not tuning.study:
        return "nothing to tune"
    if tuning.error:
        return f"FAILED: {tuning.error}"
    values = ((key.split(".")[-1], value) for key, value in (tuning.found or {}).items())
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values) or "the default"


def tuned_answer(budget: int, rows: Sequence[TunedRow]) -> list[str]:
    """Say who is best or shares first place before and after tuning, what tuning gained, and what it cost."""
    lines = []
    tables: dict[tuple[str, ...], list[TunedRow]] = {}
    for row in rows:
        tables.setdefault((row.default.dataset, row.default.loss, row.default.backbone), []).append(row)
    for place, table in tables.items():
        first = next(iter(equally_many([row.default for row in table]).values()))
        names = {row.strategy for row in first}
        both = first, [row.tuned for row in table if row.tuned is not None and row.tuned.strategy in names]
        unbeaten = [
            listed([row.strategy for row in sorted(each, key=lambda r: -r.mean) if not names & set(row.beaten_by)], 9)
            for each in both
        ]
        count = negatives_words(negatives_text(first[0].negatives))
        lines.append(
            f"{', '.join(place)}: "
            * (len(tables) > 1)
            + f"First place at published defaults: {unbeaten[0]}; after {budget} trials each: {unbeaten[1]} "
            f"(strategies with {count})."
        )
    gains = sorted((row.gain for row in rows if not math.isnan(row.gain.value)), key=lambda gain: -gain.value)
    if gains:
        shown = [f"{gain.strategy} {signed(gain.value, gain.low, gain.high)}" for gain in gains[:6]]
        lines.append(f"Tuning gains, in points on the reported split: {', '.join(shown)}.")
    spent, trials = sum(row.tuning.seconds for row in rows), sum(row.tuning.trials for row in rows)
    lines.append(f"Tuning cost {trials} trials and {spent:,.0f} s of computing, besides the runs of both tables.")
    return lines
