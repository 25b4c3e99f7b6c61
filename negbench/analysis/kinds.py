"""What was trained against and what went wrong, by kind of judged negative: shares with intervals."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from negbench.analysis import statistics
from negbench.analysis.verdicts import TABLE_AXES
from negbench.analysis.words import listed, percent, span
from negbench.grid.comparison import CellGroup
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


def known_kinds(group: CellGroup) -> dict[str, str]:
    """Return metric -> kind of judged negatives that the group's data know; nothing where none is judged."""
    metrics = {f"{kind}/wrong_at_{CUT}": kind for kind in KINDS}
    return {k: v for k, v in metrics.items() if all(k in result.get("mistakes", {}) for result in group.results)}


def kind_shares(group: CellGroup) -> list[KindShares]:
    """Return the shares of every kind of `known_kinds`."""
    known, shares = known_kinds(group), list[KindShares]()
    for name, values in values_of(group.runs, known).items() if known else ():
        drawn, random = (group.values("behaviour", f"{what}_{known[name]}") for what in ("draws", "random"))
        design = statistics.Design(values.strata, values.clusters, values.nested)
        left = statistics.summarise(statistics.ValueTable({name: values.values}, design))[name]
        ends = statistics.Share(left.mean, left.interval.low, left.interval.high)
        own = statistics.over_seeds(drawn or [math.nan])
        shares.append(KindShares(known[name], own, max(random, default=0.0), ends))
    return shares


def kinds_answer(groups: Sequence[CellGroup]) -> list[str]:
    """Say which kind is most often confused with right answers, and how much of it strategies draw, in one sentence.

    It is about the first table whose data know kinds; what distinguishes it from the others stands in brackets.
    """
    place = {id(group): tuple(group.labels.get(axis, "") for axis in TABLE_AXES) for group in groups}
    first = next((place[id(group)] for group in groups if known_kinds(group)), None)
    if first is None:
        return []
    here = [group for group in groups if place[id(group)] == first]
    of = {group.labels["strategy"]: {share.kind: share for share in kind_shares(group)} for group in here}
    kind = max((each for own in of.values() for each in own.values()), key=lambda each: each.left.mean).kind
    own = {name: shares[kind] for name, shares in of.items() if kind in shares}
    left = span(each.left.mean for each in own.values())
    drawn = [f"{percent(e.drawn.mean)} % of the draws of {name}" for name, e in own.items() if e.drawn.mean >= 0]
    drawn = [*drawn[:_NAMED], f"{percent(max(each.random for each in own.values()))} % of random draws"]
    varied = [
        value + " epochs" * (axis == "epochs")
        for axis, value, *others in zip(TABLE_AXES, first, *place.values(), strict=True)
        if value and len({*others}) > 1
    ]
    where = f" ({', '.join(varied)})" * bool(varied)
    said = f"Among the first ten images{where} {left} % are {kind} negatives, the most frequent mistake"
    return [f"{said}; they are {listed(drawn)}."]
