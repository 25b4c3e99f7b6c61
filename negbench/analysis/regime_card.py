"""The regime card in tables and in words; docs/regimes.md explains its numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from negbench.analysis.frame import shared_value
from negbench.analysis.words import number, span

RegimeCard = Mapping[str, Any]  # numbers by the names of `negbench.mining.regime.Regime`, None where unknown


def last_regime_cards(group: pd.DataFrame) -> list[RegimeCard]:
    """Return the cards of the last refresh of the runs that have one."""
    results = [run.result for run in group["stored"]]
    return [dict(result["regime_by_refresh"][-1]) for result in results if result.get("regime_by_refresh")]


def last_cards(groups: Sequence[pd.DataFrame]) -> dict[str, list[RegimeCard]]:
    """Return data set -> the cards of all runs that have one, at their last refresh."""
    cards: dict[str, list[RegimeCard]] = {}
    for group in sorted(groups, key=lambda group: str(shared_value(group, "dataset"))):
        for card in last_regime_cards(group):
            cards.setdefault(shared_value(group, "dataset"), []).append(card)
    return cards


def first_share(cards: Sequence[RegimeCard]) -> str:
    """Return the share of training targets that rank first, in percent: '10.0 to 90.0'."""
    return _range(cards, "target_first")


def in_words(cards: Sequence[RegimeCard]) -> str:
    """Describe cards in one line; of several cards, the lowest to the highest value."""
    rank = _range(cards, "target_rank_median", 1, 0)
    images = _range(cards, "images", 1, 0)
    parts = [f"the training target's median rank is {rank} of {images}, and {first_share(cards)} % rank first"]
    start = f"in the top 5 % of the ranking for {_range(cards, 'band_start_top')} % of the queries"
    parts.append(f"QuRe's negatives (between the two steepest score drops below the target) would start {start}")
    if numbers_of(cards, "false_negatives"):
        random = _range(cards, "false_negatives", 100, 2)
        above = _range(cards, "false_negatives_above")
        parts.append(f"{random} % of random negatives are false, {above} % of those right above the target")
    else:
        parts.append("false negatives are unknown")
    if numbers_of(cards, "fit_gap"):
        parts.append(f"recall at 10 on train minus val is {_range(cards, 'fit_gap')} points")
    else:
        parts.append("the fit gap is unknown")
    return "; ".join(parts)


def _range(cards: Sequence[RegimeCard], field: str, factor: float = 100, digits: int = 1) -> str:
    values = [factor * value for value in numbers_of(cards, field)]
    return span(values, lambda value: number(value, digits)) if values else "-"


def numbers_of(cards: Sequence[RegimeCard], field: str) -> list[float]:
    """Return a number of the cards where it is known."""
    values = [card.get(field) for card in cards]
    return [value for value in values if value is not None and math.isfinite(value)]
