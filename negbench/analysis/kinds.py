"""What was trained against and what went wrong, by kind of judged negative: shares with intervals."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from negbench.analysis import statistics
from negbench.analysis.words import percent
from negbench.grid.comparison import CellGroup
from negbench.metrics.mistakes import CUT, KINDS
from negbench.scoring.stored import values_of

_NAMED = 4  # strategies in a sentence


class KindShares(NamedTuple):
    """One kind of judged negatives of one strategy: its share of the draws (nan for rules whose draws are not counted),
    of random draws, and of the first ten images of the scored split.
    """

    kind: str
    drawn: statistics.Share
    random: float
    left: statistics.Share


def kind_shares(group: CellGroup) -> list[KindShares]:
    """Return the shares of every kind that the group's data know; nothing where none is judged."""
    known = {f"{kind}/wrong_at_{CUT}": kind for kind in KINDS}
    metrics = [name for name in known if all(name in result.get("mistakes", {}) for result in group.results)]
    shares = []
    for name, values in values_of(group.runs, metrics).items() if metrics else ():
        drawn, random = (group.values("behaviour", f"{what}_{known[name]}") for what in ("draws", "random"))
        design = statistics.Design(values.strata, values.clusters, values.nested)
        left = statistics.summarise(statistics.ValueTable({name: values.values}, design))[name]
        ends = statistics.Share(left.mean, left.interval.low, left.interval.high)
        shares.append(
            KindShares(known[name], statistics.over_seeds(drawn or [math.nan]), max(random, default=0.0), ends)
        )
    return shares


def kinds_answer(groups: Iterable[CellGroup]) -> list[str]:
    """Say what strategies draw of the kind that they confuse most with right answers, in one sentence."""
    parts = dict[str, str]()
    for group in groups:
        if (name := group.labels["strategy"]) not in parts and (shares := kind_shares(group)):
            most = max(shares, key=lambda share: share.left.mean)
            drawn = f"{name} draws {percent(most.drawn.mean)} % {most.kind} negatives"
            left = f"{percent(most.left.mean)} % of its first ten are such"
            parts[name] = f"{drawn} (random draws: {percent(most.random)} %), and {left}"
    return [f"{'; '.join([*parts.values()][:_NAMED])}."] if parts else []
