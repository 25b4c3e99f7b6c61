"""What was trained against and what went wrong, by kind of judged negative: shares with intervals."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from negbench.analysis import statistics
from negbench.analysis.frame import first_run, folders_of, known_numbers, mean_of, shared_value
from negbench.analysis.verdict_record import TABLE_AXES
from negbench.analysis.words import join_names, percent, span
from negbench.metrics.fixed import CUT, KINDS
from negbench.scoring.values import values_of

_NAMED = 4  # strategies in a sentence


class KindShares(NamedTuple):
    """One kind of judged negatives of one strategy: its share of the draws (nan for rules whose draws are not counted),
    of random draws, and of the first ten images of the scored split.
    """

    kind: str
    drawn: statistics.Share
    random: float
    left: statistics.Share


def known_kinds(group: pd.DataFrame) -> dict[str, str]:
    """Return metric -> kind of judged negatives that the group's data know; nothing where none is judged."""
    metrics = {f"{kind}/wrong_at_{CUT}": kind for kind in KINDS}
    mistakes = [run.result.get("mistakes", {}) for run in group["stored"]]
    return {metric: kind for metric, kind in metrics.items() if all(metric in of_run for of_run in mistakes)}


def kind_shares(group: pd.DataFrame) -> list[KindShares]:
    """Return the shares of every kind of `known_kinds`."""
    kinds = known_kinds(group)
    if not kinds:
        return []
    shares = []
    for name, values in values_of(folders_of(group), kinds).items():
        drawn = known_numbers(group, f"behaviour/draws_{kinds[name]}")
        random = known_numbers(group, f"behaviour/random_{kinds[name]}")
        design = statistics.Design(values.strata, values.clusters, values.nested)
        left = statistics.summarise(statistics.ValueTable({name: values.values}, design))[name]
        ends = statistics.Share(left.mean, left.interval.low, left.interval.high)
        share = statistics.over_seeds(drawn or [math.nan])
        shares.append(KindShares(kinds[name], share, max(random, default=0.0), ends))
    return shares


def kinds_answer(groups: Sequence[pd.DataFrame]) -> list[str]:
    """Say which kind is most often confused with right answers, and how much of it strategies draw, in one sentence.

    It is about the first table whose data know kinds; what distinguishes it from the others stands in brackets.
    """
    judged = next((cells for cells in groups if known_kinds(cells)), None)
    if judged is None:
        return []
    table = _same_table(groups, judged)
    by_strategy: dict[str, dict[str, KindShares]] = {}
    for cells in table:
        by_strategy[shared_value(cells, "strategy")] = {shares.kind: shares for shares in kind_shares(cells)}
    every = [shares for of_strategy in by_strategy.values() for shares in of_strategy.values()]
    kind = max(every, key=lambda shares: shares.left.mean).kind  # of the most mistakes
    of_kind = {name: of_strategy[kind] for name, of_strategy in by_strategy.items() if kind in of_strategy}
    left = span(shares.left.mean for shares in of_kind.values())
    drawn = []
    for name, shares in of_kind.items():
        if not math.isnan(shares.drawn.mean):
            drawn.append(f"{percent(shares.drawn.mean)} % of the draws of {name}")
    random = max(shares.random for shares in of_kind.values())
    drawn = [*drawn[:_NAMED], f"{percent(random)} % of random draws"]
    where = _of_table(judged, groups)
    said = f"Among the first ten images{where} {left} % are {kind} negatives, the most frequent mistake"
    return [f"{said}; they are {join_names(drawn)}."]


def draws_answer(groups: Sequence[pd.DataFrame]) -> list[str]:
    """Say in one line who draws nearest the top of the ranking, who furthest from it, and whose draws are most false.

    It is about the first table alone, and about what its runs recorded; [] where they recorded neither.
    """
    if not groups:
        return []
    table = _same_table(groups, groups[0])
    ranks = _by_strategy(table, "behaviour/draw_rank_median")
    false = _by_strategy(table, "behaviour/false_negative_rate_draws")
    parts = []
    if ranks:
        corpora = list(first_run(groups[0]).manifest["dataset"]["corpus"].values())
        of_all = f" of {corpora[0]:,}" if len(corpora) == 1 else ""
        names = list(ranks)
        rank = f"median rank {ranks[names[0]]:,.0f}{of_all}"
        if len(names) == 1:
            parts.append(f"{names[0]} draws from {rank}")
        else:
            furthest = f"{names[-1]} furthest from it ({ranks[names[-1]]:,.0f})"
            parts.append(f"{names[0]} draws nearest the top of the ranking ({rank}) and {furthest}")
    if false:
        most = max(false, key=lambda name: false[name])
        if percent(false[most]) != percent(0.0):
            said = f"{percent(false[most])} % of the draws of {most} are false negatives"
            if len(false) > 1:
                said += ", the largest share"
            parts.append(said)
    if not parts:
        return []
    return [f"Draws{_of_table(groups[0], groups)}: {'; '.join(parts)}."]


def _of_table(cells: pd.DataFrame, groups: Sequence[pd.DataFrame]) -> str:
    """Return, in brackets, what distinguishes the table of these cells from the others; "" if it is the only one."""
    named = []
    for axis in TABLE_AXES:
        value = shared_value(cells, axis)
        if value and len({shared_value(others, axis) for others in groups}) > 1:
            named.append(f"{value} epochs" if axis == "epochs" else value)
    return f" ({', '.join(named)})" if named else ""


def _by_strategy(groups: Sequence[pd.DataFrame], column: str) -> dict[str, float]:
    """Return strategy -> mean of a column, the lowest first, of the strategies that recorded it."""
    means = {}
    for cells in groups:
        mean = mean_of(cells, column)
        if not math.isnan(mean):
            means[shared_value(cells, "strategy")] = mean
    return dict(sorted(means.items(), key=lambda item: item[1]))


def _same_table(groups: Sequence[pd.DataFrame], first: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the groups that differ from the first one in no axis of a table."""
    place = [shared_value(first, axis) for axis in TABLE_AXES]
    return [cells for cells in groups if [shared_value(cells, axis) for axis in TABLE_AXES] == place]
