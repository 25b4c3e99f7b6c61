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
    """Shares of one kind of judged negatives, of one strategy.

    Attributes:
        kind: of negatives.
        drawn: share of the draws; nan for rules whose draws are not counted.
        random: share of random draws.
        mistakes: share of the first ten images of the scored split.
    """

    kind: str
    drawn: statistics.MeanInterval
    random: float
    mistakes: statistics.MeanInterval


def known_kinds(group: pd.DataFrame) -> dict[str, str]:
    """Return metric -> kind of judged negatives that the group's data know; nothing where none is judged."""
    metrics = {f"{kind}/wrong_at_{CUT}": kind for kind in KINDS}
    for run in group["stored"]:
        mistakes = run.result.get("mistakes", {})
        metrics = {metric: kind for metric, kind in metrics.items() if metric in mistakes}
    return metrics


def kind_shares(group: pd.DataFrame) -> list[KindShares]:
    """Return the shares of every kind of `known_kinds`."""
    kinds = known_kinds(group)
    if not kinds:
        return []
    shares = []
    for name, values in values_of(folders_of(group), kinds).items():
        draws = known_numbers(group, f"behaviour/draws_{kinds[name]}")
        random_draws = known_numbers(group, f"behaviour/random_{kinds[name]}")
        design = statistics.Design(values.strata, values.clusters, values.nested)
        summary = statistics.summarise(statistics.ValueTable({name: values.values}, design))[name]
        kind = KindShares(
            kinds[name],
            drawn=statistics.mean_over_seeds(draws or [math.nan]),
            random=max(random_draws, default=0.0),
            mistakes=statistics.MeanInterval(summary.mean, summary.interval.low, summary.interval.high),
        )
        shares.append(kind)
    return shares


def kinds_answer(groups: Sequence[pd.DataFrame]) -> list[str]:
    """Say which kind is most often confused with right answers, and how much of it strategies draw, in one sentence.

    It is about the first table whose data know kinds; what distinguishes it from the others stands in brackets.
    """
    judged = next((cells for cells in groups if known_kinds(cells)), None)
    if judged is None:
        return []
    table = _same_table(groups, judged)
    all_shares: list[KindShares] = []
    by_kind: dict[str, dict[str, KindShares]] = {}  # kind -> strategy -> its shares
    for cells in table:
        for shares in kind_shares(cells):
            all_shares.append(shares)
            by_kind.setdefault(shares.kind, {})[shared_value(cells, "strategy")] = shares
    kind = max(all_shares, key=lambda shares: shares.mistakes.mean).kind  # of the most mistakes
    by_strategy = by_kind[kind]
    mistakes = span(shares.mistakes.mean for shares in by_strategy.values())
    parts = []
    for name, shares in by_strategy.items():
        if not math.isnan(shares.drawn.mean):
            parts.append(f"{percent(shares.drawn.mean)} % of the draws of {name}")
    random = max(shares.random for shares in by_strategy.values())
    parts = [*parts[:_NAMED], f"{percent(random)} % of random draws"]
    where = _of_table(judged, groups)
    text = f"Among the first ten images{where} {mistakes} % are {kind} negatives, the most frequent mistake"
    return [f"{text}; they are {join_names(parts)}."]


def draws_answer(groups: Sequence[pd.DataFrame]) -> list[str]:
    """Say in one line who draws nearest the top of the ranking, who furthest from it, and whose draws are most false.

    It is about the first table alone, and about what its runs recorded; [] where they recorded neither.
    """
    if not groups:
        return []
    table = _same_table(groups, groups[0])
    ranks = _by_strategy(table, "behaviour/draw_rank_median")
    false_shares = _by_strategy(table, "behaviour/false_negative_rate_draws")
    parts = []
    if ranks:
        corpora = list(first_run(groups[0]).manifest["dataset"]["corpus"].values())
        names = list(ranks)
        rank = f"median rank {ranks[names[0]]:,.0f}"
        if len(corpora) == 1:
            rank += f" of {corpora[0]:,}"
        if len(names) == 1:
            parts.append(f"{names[0]} draws from {rank}")
        else:
            furthest = f"{names[-1]} furthest from it ({ranks[names[-1]]:,.0f})"
            parts.append(f"{names[0]} draws nearest the top of the ranking ({rank}) and {furthest}")
    if false_shares:
        most = max(false_shares, key=lambda name: false_shares[name])
        if percent(false_shares[most]) != percent(0.0):
            text = f"{percent(false_shares[most])} % of the draws of {most} are false negatives"
            if len(false_shares) > 1:
                text += ", the largest share"
            parts.append(text)
    if not parts:
        return []
    return [f"Draws{_of_table(groups[0], groups)}: {'; '.join(parts)}."]


def _of_table(cells: pd.DataFrame, groups: Sequence[pd.DataFrame]) -> str:
    """Return, in brackets, what distinguishes the table of these cells from the others; "" if it is the only one."""
    labels = []
    for axis in TABLE_AXES:
        value = shared_value(cells, axis)
        if value and len({shared_value(others, axis) for others in groups}) > 1:
            labels.append(f"{value} epochs" if axis == "epochs" else value)
    return f" ({', '.join(labels)})" if labels else ""


def _by_strategy(groups: Sequence[pd.DataFrame], column: str) -> dict[str, float]:
    """Return strategy -> mean of a column, the lowest first, of the strategies that recorded it."""
    means = {}
    for cells in groups:
        mean = mean_of(cells, column)
        if not math.isnan(mean):
            means[shared_value(cells, "strategy")] = mean
    return {name: means[name] for name in sorted(means, key=lambda name: means[name])}


def _same_table(groups: Sequence[pd.DataFrame], first: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the groups that differ from the first one in no axis of a table."""
    return [cells for cells in groups if _table_labels(cells) == _table_labels(first)]


def _table_labels(cells: pd.DataFrame) -> list[str]:
    """Return the values of the axes that tell tables apart."""
    return [shared_value(cells, axis) for axis in TABLE_AXES]
