"""The matrix of systems and negatives, and the decomposition of each system's gain over the plain system.

The corners between a system and the plain one take each factor (negatives, objective, architecture) from one or the
other. A factor's own term is what it adds alone to the plain system; an interaction is what factors add
together beyond each alone; a Shapley share is a factor's own term and an equal part of its interactions. Own terms and
interactions sum to the gain, and so do the shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from negbench.analysis.differences import factorial
from negbench.analysis.leader import by_negatives
from negbench.analysis.verdicts import Rules, VerdictRow, VerdictTable
from negbench.analysis.words import bracket, label_of, listed, percent, signed

SIGNS = {"better": "▲", "worse": "▼", "equal": "=", "undecided": "?"}
READ_SIGNS = "▲ better, ▼ worse, = equal within the margin, ? undecided"


@dataclass(frozen=True)
class Gain:
    """One part of a system's gain over the plain system, in the unit of the metric.

    `kind`: "corner" (`part` names the factors taken from the system, `value` is a mean), "gain" (all of it), "own term"
    and "share" (of the factor `part`), or "interaction" (of the factors in `part`). The intervals of a system's parts
    are simultaneous; a corner has no interval.
    """

    system: str
    kind: str
    part: str
    value: float
    low: float
    high: float
    p_adjusted: float


def gains_of(
    tables: Sequence[VerdictTable], corners: Mapping[str, Sequence[Mapping[str, Any]]], rules: Rules
) -> list[Gain]:
    """Decompose the gain of every system whose corners are all finished.

    A system's own architecture has another backbone label, so tables are looked up by their system alone.

    Args:
        tables: of the corners; a table's label `system` is its corner's label.
        corners: system -> its corners, each {"factors": [...], "label": its cells' label `system`}.
        rules: for the level alpha.
    """
    gains = []
    values = {t.labels["system"]: next(iter(t.values[t.main].values())) for t in tables if t.values.get(t.main)}
    for system, all_corners in corners.items():
        cells = {frozenset(c["factors"]): values[c["label"]] for c in all_corners if c["label"] in values}
        if len(cells) < len(all_corners) or len({each.seeds for each in cells.values()}) > 1:
            continue
        parts = factorial(cells, alpha=rules.alpha)
        named = [("gain", "all", parts.total)]
        named += [("own term", term[0], effect) for term, effect in parts.terms.items() if len(term) == 1]
        named += [("interaction", " and ".join(t), effect) for t, effect in parts.terms.items() if len(t) > 1]
        named += [("share", factor, effect) for factor, effect in parts.shares.items()]
        for factors, each in sorted(cells.items(), key=lambda cell: (len(cell[0]), sorted(cell[0]))):
            name = " + ".join(sorted(factors)) or "plain"
            gains.append(Gain(system, "corner", name, each.mean, np.nan, np.nan, np.nan))
        gains += [
            Gain(system, kind, part, e.value, e.interval.low, e.interval.high, e.p_adjusted) for kind, part, e in named
        ]
    return gains


# --- tables ------------------------------------------------------------------------------------------------------


def matrix_frame(rows: Sequence[VerdictRow]) -> pd.DataFrame:
    """Build [strategy x system]: the difference to the system's own negatives with its sign; for these, the mean."""
    shown = {(row.strategy, row.system): _cell(row) for row in rows}
    columns = list(dict.fromkeys(row.system for row in rows))
    strategies = list(dict.fromkeys(row.strategy for row in sorted(rows, key=lambda row: row.strategy)))
    return pd.DataFrame(
        [{"strategy": name, **{column: shown.get((name, column), "-") for column in columns}} for name in strategies]
    )


def _cell(row: VerdictRow) -> str:
    if not row.compared:
        return f"{percent(row.mean)} own" if row.verdict == "baseline" else "-"
    return f"{signed(row.difference, row.diff_low, row.diff_high)} {SIGNS[row.verdict]}"


def corners_frame(gains: Sequence[Gain]) -> pd.DataFrame:
    """Build one row per corner: the factors taken from the system, and the mean."""
    rows = [gain for gain in gains if gain.kind == "corner"]
    return pd.DataFrame(
        [{"system": gain.system, "from the system": gain.part, "mean %": percent(gain.value, 2)} for gain in rows]
    )


def parts_frame(gains: Sequence[Gain]) -> pd.DataFrame:
    """Build one row per part of a system's gain: a factor's own term beside its share, and interactions."""
    by_key = {(g.system, g.kind, g.part): g for g in gains}
    shown = []
    for gain in gains:
        if gain.kind in ("corner", "share"):
            continue
        share = by_key.get((gain.system, "share", gain.part))
        part = {"gain": "all", "interaction": f"interaction of {gain.part}"}.get(gain.kind, gain.part)
        text = signed(gain.value, gain.low, gain.high)
        line = {"part": part, "own term": text if gain.kind != "gain" else "-"}
        whole = gain if gain.kind == "gain" else share
        line["Shapley share"] = "-" if whole is None else signed(whole.value, whole.low, whole.high)
        shown.append({"system": gain.system, **line})
    return pd.DataFrame(shown)


# --- words -------------------------------------------------------------------------------------------------------


def systems_answer(rows: Sequence[VerdictRow], gains: Sequence[Gain]) -> list[str]:
    """Write a line per system on the effect of other negatives, then a line per system on the parts of its gain."""
    lines = []
    for name in dict.fromkeys(row.system for row in rows):
        system_rows = [row for row in by_negatives(rows) if row.system == name]
        own = next((row for row in system_rows if row.verdict == "baseline"), None)
        if own is None:
            lines.append(f"{name}: no finished run with its own negatives to compare with.")
            continue
        text = f"{name}: {label_of(own.metric)} {percent(own.mean)} % with its own negatives ({own.strategy})"
        for verdict in SIGNS:
            names = [
                f"{row.strategy} {signed(row.difference, row.diff_low, row.diff_high)}"
                if verdict in ("better", "worse")
                else row.strategy
                for row in system_rows
                if row.verdict == verdict
            ]
            text += f"; {verdict} with {listed(names, 9)}" if names else ""
        lines.append(f"{text}.")
    for gain in (gain for gain in gains if gain.kind == "gain"):
        parts = [g for g in gains if g.system == gain.system]
        effects = [f"{g.part} alone {_points(g)}" for g in parts if g.kind == "own term"]
        effects += [f"the interaction of {g.part} {_points(g)}" for g in parts if g.kind == "interaction"]
        lines.append(f"{gain.system} against the plain system: {_points(gain)} points; {', '.join(effects)}.")
    return lines


def _points(gain: Gain) -> str:
    return f"{100 * gain.value:+.2f} {bracket(gain.low, gain.high)}"
