"""What a comparison answers, in words: who is not beaten, by how much, how sure, in which regime."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import itemgetter

from negbench.analysis.leader import equally_many
from negbench.analysis.regime import in_words, last_card
from negbench.analysis.verdicts import VerdictRow
from negbench.analysis.words import label_of, listed, percent, signed
from negbench.grid.comparison import Group

_SATURATED = 0.95  # where even the last strategy is above this, the metric can hardly tell them apart
_ENOUGH_SEEDS = 5
_OTHERS = 4  # strategies with other numbers of negatives that are named


def answers(groups: Sequence[Group], rows: Sequence[VerdictRow]) -> dict[str, list[str]]:
    """Data set -> sentences: the answer, one for each backbone and loss, how sure they are, the regime.

    Args:
        groups: of a comparison.
        rows: their statistics; a data set without any has no answer.
    """
    found = {}
    for dataset in sorted({row.dataset for row in rows if row.main}):
        main = [row for row in rows if row.main and row.dataset == dataset]
        mine = [group for group in groups if group.labels["dataset"] == dataset]
        several = len({row.backbone for row in main}) > 1
        tables: dict[str, list[VerdictRow]] = {}
        for row in main:
            tables.setdefault(f"{row.backbone}, {row.loss}" if several else row.loss, []).append(row)
        lines = [_overall(list(tables.values())), *(f"{name}: {_verdict(table)}" for name, table in tables.items())]
        found[dataset] = [*lines, *_sure(main), *_saturated(main), *_regime(mine)]
    return found


def _first_block(rows: Sequence[VerdictRow]) -> tuple[str, list[VerdictRow], list[str]]:
    """The most usual number of negatives, its rows, and the strategies that none of them beats, the best first."""
    negatives, mine = next(iter(equally_many(rows).items()))
    names = {row.strategy for row in mine}
    ranked = sorted(mine, key=lambda row: -row.mean)
    return negatives, ranked, [row.strategy for row in ranked if not names & set(row.beaten_by)]


def _negatives(count: str) -> str:
    """'1 negative', '62.9 negatives'."""
    return f"{count} negative{'s' * (count != '1')}"


def _overall(tables: Sequence[Sequence[VerdictRow]]) -> str:
    """Who is not beaten, under every loss and backbone."""
    blocks = [_first_block(rows) for rows in tables]
    negatives, ranked, first = blocks[0]
    always = [name for name in first if all(name in unbeaten for _, _, unbeaten in blocks)]
    count = f"{len(ranked)} strategies with {_negatives(negatives)} per query and step"
    where = ", under any loss" if len(tables) > 1 else ""
    if len(ranked) == 1:
        return (
            f"{ranked[0].strategy} alone has {_negatives(negatives)} per query and step: nothing equal to compare with."
        )
    if not always:
        return f"Of {count}, each is beaten by another under some loss."
    if len(always) == len(ranked):
        return f"Of {count}, none is shown to beat another{where}."
    return f"Of {count}, {listed(always, 9)} {'are' if len(always) > 1 else 'is'} beaten by none of the others{where}."


def _verdict(rows: Sequence[VerdictRow]) -> str:
    """Of one backbone and loss: the best of those not beaten against the baseline, then other numbers of negatives."""
    _, ranked, unbeaten = _first_block(rows)
    others = [(count, row) for count, mine in list(equally_many(rows).items())[1:] for row in mine][:_OTHERS]
    text = f"highest {label_of(rows[0].metric)}: {_against(ranked[0])}"
    if 1 < len(unbeaten) < len(ranked):
        text += f"; not beaten either: {listed([name for name in unbeaten if name != ranked[0].strategy])}"
    for count, same in itertools.groupby(others, key=itemgetter(0)):
        text += f". With {_negatives(count)}: {', '.join(_against(row) for _, row in same)}"
    return f"{text}."


def _against(row: VerdictRow) -> str:
    """Mean and difference to the baseline."""
    mean = f"{row.strategy} {percent(row.mean)} %"
    if not row.compared:
        return f"{mean} (the baseline)" if row.verdict == "baseline" else mean
    return f"{mean} ({signed(row.difference, row.diff_low, row.diff_high)} against {row.baseline}: {row.verdict})"


def _sure(rows: Sequence[VerdictRow]) -> list[str]:
    """How sure: what the intervals cover, and whether there are too few seeds to tell."""
    first, seeds = rows[0], max(row.seeds for row in rows)
    compared = [row for row in rows if row.compared]
    if not compared:
        return []
    level = f"{100 * (1 - first.alpha):g} %"
    counts = {
        word: sum(row.verdict == word for row in compared) for word in ("better", "worse", "tied", "underpowered")
    }
    told = f"Against the baseline, in points: {', '.join(f'{n} {word}' for word, n in counts.items() if n)}. "
    if seeds == 1:
        told += f"One seed: the intervals ({level}) are of these very models on other queries, not of the strategies; "
        return [f"{told}{_ENOUGH_SEEDS} seeds would tell."]
    told += f"The intervals of a table hold all at once in {level} of repetitions, over seeds and queries."
    if seeds < _ENOUGH_SEEDS and 2 * counts["underpowered"] >= len(compared):
        smallest = min(row.minimum_detectable for row in compared)
        told += f" {seeds} seeds cannot tell: the smallest difference they would show is about "
        told += f"{percent(smallest)} points; use {_ENOUGH_SEEDS}."
    return [told]


def _saturated(rows: Sequence[VerdictRow]) -> list[str]:
    last = min(row.mean for row in rows)
    if last < _SATURATED:
        return []
    name = label_of(rows[0].metric)
    return [f"{name} is saturated (the last strategy has {percent(last)} %): choose a stricter one with --metric."]


def _regime(groups: Sequence[Group]) -> list[str]:
    """Where the runs stood at their last refresh."""
    cards = [last_card(result) for group in groups for result in group.results if result.get("regime_by_refresh")]
    return [f"Regime: {in_words(cards)}. The answer is about this regime."] if cards else []
