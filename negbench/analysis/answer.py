"""A comparison's answer in words: who is best or shares first place, who loses and by how much, what is undecided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from negbench.analysis.leader import equally_many, group_key, negatives_text, negatives_words, row_key
from negbench.analysis.regime_card import in_words, last_card
from negbench.analysis.verdicts import OVER_ALL, PLACE, VerdictRow
from negbench.analysis.words import bracket, label_of, listed, percent, signed
from negbench.display import duration
from negbench.grid.comparison import Group

_SATURATED = 0.95  # where even the last strategy is above this, the metric can hardly separate them
_ENOUGH_SEEDS = 3
_NAMED = 4  # most strategies named in a list


def answer(groups: Sequence[Group], rows: Sequence[VerdictRow]) -> list[str]:
    """Write the answer: first places (over all first), undecided pairs, details, what the intervals cover, the regime.

    Args:
        groups: of a comparison.
        rows: their verdicts.
    """
    main = [row for row in rows if row.main]
    tables: dict[tuple[str, ...], list[VerdictRow]] = {}
    for row in sorted(main, key=lambda row: OVER_ALL not in row.place):
        tables.setdefault(row.place, []).append(row)
    orders = [(_prefix(place, list(tables)), _order(table)) for place, table in tables.items()]
    first = [prefix + lines[0] for prefix, lines in orders]
    more = [prefix + line for prefix, lines in orders for line in lines[1:]]
    if price := open_pairs(groups, [row for row in main if OVER_ALL not in row.place]):
        first = [f"{first[0]} {price}."] if len(first) == 1 else [*first, f"{price}."]
    return [*first, *more, *_sure(main), *_saturated(main), *_regime(groups)]


def _prefix(place: Sequence[str], places: Sequence[Sequence[str]]) -> str:
    """Return the labels that distinguish this table: 'cirr, info-nce: '; '' for the only one."""
    varied = [index for index in range(len(PLACE)) if len({each[index] for each in places}) > 1]
    return ", ".join(dict.fromkeys(place[index] for index in varied if place[index])) + ": " * bool(varied)


def _order(rows: Sequence[VerdictRow]) -> list[str]:
    """Describe a table: first place and the others' losses in a line, then details, then other numbers of negatives."""
    blocks = equally_many(rows)
    (count, usual), *others = blocks.items()
    names = {row.strategy for row in usual}
    ranked = sorted(usual, key=lambda row: -row.mean)
    first = [row for row in ranked if not names & set(row.beaten_by)]
    losers = [row for row in ranked if names & set(row.beaten_by)]
    where, best = f"{label_of(rows[0].metric)} with {negatives_words(count)} per query and step", ranked[0]
    if len(ranked) == 1:
        text = f"{where}: only {_mean(best)}; nothing to compare it with"
    elif len(first) == 1:
        text = f"{where}: {_mean(first[0])} is best"
    else:
        leaders = listed([row.strategy for row in first], _NAMED)
        text = f"{where}: {leaders} share first place ({_range([row.mean for row in first])} %)"
    if losers:
        lost = listed([row.strategy for row in losers], _NAMED)
        text += f"; {lost} lose{'s' * (len(losers) == 1)} {_range([best.mean - row.mean for row in losers])} points"
    text += "."
    above = max((row for _, theirs in others for row in theirs), key=lambda row: row.mean, default=best)
    if above.mean > best.mean:
        more = negatives_words(negatives_text(above.negatives))
        text += f" With {more}, {above.strategy} reaches {percent(above.mean)} %."
    lines = [text, *_among(best, first[1:])]
    if losers:
        behind = ", ".join(_loss(row, best) for row in losers[:_NAMED])
        behind += f" and {len(losers) - _NAMED} more" * (len(losers) > _NAMED)
        lines.append(f"Behind {best.strategy}: {behind}.")
    for other, theirs in others:
        top = sorted(theirs, key=lambda row: -row.mean)[:_NAMED]
        lines.append(f"With {negatives_words(other)}: {', '.join(map(_against, top))}.")
    return lines


def _range(values: Sequence[float]) -> str:
    """'7.0 to 8.2' in percent; '7.0' where both ends print alike."""
    return " to ".join(dict.fromkeys((percent(min(values)), percent(max(values)))))


def _among(best: VerdictRow, rest: Sequence[VerdictRow]) -> list[str]:
    """Say which strategies that share first place are equal to the best, and which are undecided against it."""
    equal = [row.strategy for row in rest if row.to_best == "equal"]
    undecided = [row.strategy for row in rest if row.strategy not in equal]
    lines = [f"Equal to {best.strategy} within {100 * best.margin:g} points: {listed(equal, _NAMED)}."] if equal else []
    return [*lines, *([f"Undecided against {best.strategy}: {listed(undecided, _NAMED)}."] if undecided else [])]


def open_pairs(groups: Sequence[Group], rows: Sequence[VerdictRow]) -> str:
    """Say how many of the pairs to decide are undecided, and what deciding them costs; '' for none."""
    left = [row for row in rows if row.undecided]
    if not left:
        return ""
    count = len({(row.place, frozenset((row.strategy, other))) for row in left for other in row.undecided})
    text = f"{count} pair{'s are' if count > 1 else ' is'} undecided"
    prices = [row.more_seeds for row in left if row.more_seeds > 0]
    if prices:
        took = {group_key(group): sum(sum(r["seconds"].values()) for r in group.results) for group in groups}
        seconds = sum(row.more_seeds * took.get(row_key(row), 0) / row.seeds for row in left if row.more_seeds > 0)
        text += f": about {max(prices):.0f} more seed{'s' * (max(prices) > 1)}, {duration(seconds)} of computing"
    if any(row.more_seeds < 0 for row in left):
        text += f"{'; ' if prices else ', and '}some need more queries, not seeds"
    return text


def _loss(row: VerdictRow, best: VerdictRow) -> str:
    """Say by how much a strategy loses to the best with equally many negatives."""
    if math.isnan(row.gap):  # no seed in common
        return f"{row.strategy} by {100 * (best.mean - row.mean):.2f} points"
    return f"{row.strategy} by {100 * row.gap:.2f} {bracket(row.gap_low, row.gap_high)} points"


def _mean(row: VerdictRow) -> str:
    return f"{row.strategy} ({percent(row.mean)} %)"


def _against(row: VerdictRow) -> str:
    """Write a strategy's mean and its difference to the baseline."""
    if not row.compared:
        return f"{row.strategy} {percent(row.mean)} %" + " (the baseline)" * (row.verdict == "baseline")
    difference = signed(row.difference, row.diff_low, row.diff_high)
    return f"{row.strategy} {percent(row.mean)} % ({difference} against {row.baseline}: {row.verdict})"


def _sure(rows: Sequence[VerdictRow]) -> list[str]:
    """Count the verdicts against the baseline, and say what the intervals cover."""
    compared = [row for row in rows if row.compared]
    if not compared:
        return []
    seeds, level = max(row.seeds for row in rows), f"{100 * (1 - rows[0].alpha):g} %"
    words = ("better", "worse", "equal", "undecided")
    counts: Mapping[str, int] = {word: sum(row.verdict == word for row in compared) for word in words}
    text = f"Against the baseline: {', '.join(f'{n} {word}' for word, n in counts.items() if n)}. "
    if seeds == 1:
        text += f"One seed: the {level} intervals cover other queries for these trained models, not retraining; "
        return [f"{text}use {_ENOUGH_SEEDS} seeds."]
    covered = " or ".join(dict.fromkeys(row.covers for row in compared))
    return [f"{text}Simultaneous {level} intervals, valid for {covered} with these models, data and settings."]


def _saturated(rows: Sequence[VerdictRow]) -> list[str]:
    if not rows or min(row.mean for row in rows) < _SATURATED:
        return []
    name, last = label_of(rows[0].metric), percent(min(row.mean for row in rows))
    return [f"{name} is saturated (the last strategy has {last} %): choose a stricter one with --metric."]


def _regime(groups: Sequence[Group]) -> list[str]:
    """Describe the regime at the last refresh, per data set; nothing for more than three data sets."""
    names = sorted({group.labels["dataset"] for group in groups})
    lines = []
    for name in names if len(names) <= 3 else ():
        results = [result for group in groups if group.labels["dataset"] == name for result in group.results]
        cards = [last_card(result) for result in results if result.get("regime_by_refresh")]
        if cards:
            where = f" on {name}" * (len(names) > 1)
            lines.append(f"Regime{where}: {in_words(cards)}. The answer holds for this regime.")
    return lines
