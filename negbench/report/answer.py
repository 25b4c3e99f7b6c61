"""What a comparison answers, in words: who is not beaten, by how much, how sure, in which regime."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from negbench.grid.comparison import Group
from negbench.report.leader import equally_many
from negbench.report.verdicts import Row
from negbench.report.words import bracket, label_of, listed, percent

_SATURATED = 0.95  # where even the last strategy is above this, the metric can hardly tell them apart
_ENOUGH_SEEDS = 5


def answers(groups: Sequence[Group], rows: Sequence[Row]) -> dict[str, list[str]]:
    """Data set -> sentences: one for each backbone and loss, then how sure they are, then the regime.

    Args:
        groups: of a comparison.
        rows: their statistics; a data set without any has no answer.
    """
    found = {}
    for dataset in sorted({row.dataset for row in rows if row.main}):
        main = [row for row in rows if row.main and row.dataset == dataset]
        mine = [group for group in groups if group.labels["dataset"] == dataset]
        several = len({row.backbone for row in main}) > 1
        lines = []
        for backbone, loss in dict.fromkeys((row.backbone, row.loss) for row in main):
            table = [row for row in main if (row.backbone, row.loss) == (backbone, loss)]
            lines.append(_verdict(table, f"{backbone}, {loss}" if several else loss))
        found[dataset] = [*lines, *_sure(main), *_saturated(main), *_regime(mine)]
    return found


def _verdict(rows: Sequence[Row], where: str) -> str:
    """Of one backbone and loss: at equal negatives, who is not beaten, and the best one against the baseline."""
    parts = []
    for negatives, mine in equally_many(rows).items():
        names = {row.strategy for row in mine}
        best = max(mine, key=lambda row: row.mean)
        count = f"at {negatives} negative{'s' * (negatives != '1')} per query and step"
        if len(mine) == 1:
            parts.append(f"{count} {best.strategy} stands alone{_against(best)}")
            continue
        unbeaten = [r.strategy for r in sorted(mine, key=lambda r: -r.mean) if not names & set(r.beaten_by)]
        if len(unbeaten) == len(mine):
            told = f"none of {len(mine)} strategies is shown to beat another; the highest mean has {best.strategy}"
        elif len(unbeaten) == 1:
            told = f"{unbeaten[0]} alone is not beaten by any other of {len(mine)} strategies"
        else:
            told = f"{listed(unbeaten)} are not beaten by any other of {len(mine)} strategies; the highest mean has "
            told += best.strategy
        parts.append(f"{count} {told}{_against(best)}")
    text = "; ".join(parts)
    return f"{where}: {text}."


def _against(row: Row) -> str:
    """Mean and difference to the baseline, in brackets."""
    mean = f"{label_of(row.metric)} {percent(row.mean)} %"
    if not row.compared:
        return f" ({mean}{', the baseline' if row.verdict == 'baseline' else ''})"
    points = f"{100 * row.difference:+.2f} points {bracket(row.diff_low, row.diff_high)} against {row.baseline}"
    return f" ({mean}, {points}: {row.verdict})"


def _sure(rows: Sequence[Row]) -> list[str]:
    """How sure: what the intervals cover, and whether there are too few seeds to tell."""
    first, seeds = rows[0], max(row.seeds for row in rows)
    compared = [row for row in rows if row.compared]
    if not compared:
        return []
    level = f"{100 * (1 - first.alpha):g} %"
    if seeds == 1:
        told = f"One seed: the intervals ({level}) are of these very models on other queries, not of the strategies; "
        return [f"{told}{_ENOUGH_SEEDS} seeds would tell."]
    told = f"The intervals of a table hold all at once in {level} of repetitions, over seeds and queries."
    unclear = [row for row in compared if row.verdict == "underpowered"]
    if seeds < _ENOUGH_SEEDS and 2 * len(unclear) >= len(compared):
        smallest = min(row.minimum_detectable for row in compared)
        told += f" {seeds} seeds cannot tell: the smallest difference they would show is about "
        told += f"{percent(smallest)} points; use {_ENOUGH_SEEDS}."
    return [told]


def _saturated(rows: Sequence[Row]) -> list[str]:
    last = min(row.mean for row in rows)
    if last < _SATURATED:
        return []
    name = label_of(rows[0].metric)
    return [f"{name} is saturated (the last strategy has {percent(last)} %): choose a stricter one with --metric."]


def _regime(groups: Sequence[Group]) -> list[str]:
    """Where the runs stand, as far as their statistics know."""
    known = []
    ranks = [value for group in groups for value in group.values("behaviour", "target_rank_median")]
    corpora = [size for group in groups for run in group.runs for size in _corpus(run.manifest)]
    if ranks and corpora:
        known.append(f"the training target's median rank is {np.median(ranks):.0f} of {np.median(corpora):,.0f}")
    everyone = [group for group in groups if group.labels["strategy"].split("(")[0] == "all-corpus"]
    rates = [value for group in everyone for value in group.values("behaviour", "false_negative_rate_draws")]
    if rates and not math.isnan(np.mean(rates)):
        known.append(f"{percent(float(np.mean(rates)), 2)} % of random negatives are false")
    return [f"Regime: {'; '.join(known)}. The answer is about this regime."] if known else []


def _corpus(manifest: dict[str, dict[str, dict[str, int]]]) -> list[int]:
    return list(manifest.get("dataset", {}).get("corpus", {}).values())
