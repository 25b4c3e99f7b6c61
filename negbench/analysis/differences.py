"""The only interface from a comparison to the statistics: per-query values in, differences with intervals out.

Callers read `Differences`: means, differences to a baseline, and all pairs, each family with simultaneous intervals.
The generator is seeded with the values themselves, so the same cells give the same bytes.
"""

import hashlib
import math
import pickle
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from negbench.analysis import statistics
from negbench.analysis.setting_choice import Choices, draw_shortfalls
from negbench.grid.looks import Looks
from negbench.scoring.values import Values
from negbench.settings.options import PairsToDecide


@dataclass(frozen=True)
class Differences:
    """Test results of strategies that share a test, in the unit of their values.

    Attributes:
        means: strategy -> its mean with an interval for it alone.
        against: strategy -> its difference to the baseline, with simultaneous intervals; without the baseline, and
            without strategies that share no seed with it.
        pairs: all pairs that share a seed, with simultaneous intervals.
    """

    means: Mapping[str, statistics.Summary]
    against: Mapping[str, statistics.Difference]
    pairs: statistics.Pairs

    def highest_mean(self, among: Iterable[str]) -> str:
        """Return the strategy with the highest mean, as rounded where rows are stored; of equal ones, the first."""
        return max(among, key=lambda name: round(self.means[name].mean, 10))

    def rivals(self, among: Collection[str], out: Collection[str] = ()) -> list[str]:
        """Return the strategies that can be first among these: none of these beats them, and they are not `out`."""
        rivals = {*among}
        return [name for name in among if name not in out and rivals.isdisjoint(self.pairs.beaten_by[name])]

    def behind_at_most(self, name: str, others: Iterable[str]) -> float:
        """Return by how much the best of the others can be ahead of a strategy: the highest end of their intervals."""
        highest = []
        for other in others:
            if other == name:
                continue
            difference = self.pairs.of(other, name)
            highest.append(math.inf if difference is None else difference.interval.high)
        return max(highest, default=-math.inf)

    def find_undecided(
        self,
        pairs: PairsToDecide,
        baseline: str | None,
        negatives: Mapping[str, float],
        out: Collection[str] = (),
        *,
        margin: float = 0.01,
    ) -> dict[tuple[str, str], statistics.Difference]:
        """Return the undecided ones among the pairs to decide.

        With `best`, those are the pairs between the rivals for first place of a block, unless one of them is decided to
        be first within the margin: none of the others can be further ahead of it (Even-Dar et al., Journal of Machine
        Learning Research 7, 2006, stop at such an epsilon-optimal arm).

        Args:
            pairs: which pairs are to be decided.
            baseline: of the pairs with it.
            negatives: strategy -> their number; a block are the strategies with equally many.
            out: strategies that cannot be best, whatever their mean.
            margin: a lead up to this does not matter, in the unit of the values.
        """
        family = dict(self.pairs.differences)
        if pairs == "baseline":
            family = {(name, baseline or ""): difference for name, difference in self.against.items()}
        elif pairs == "best":
            contested: set[frozenset[str]] = set()
            for count in {*negatives.values()}:
                block = [name for name in negatives if negatives[name] == count]
                rivals = self.rivals(block, out)
                if not any(self.behind_at_most(name, rivals) <= margin for name in rivals):
                    contested |= {frozenset(pair) for pair in combinations(rivals, 2)}
            family = {pair: difference for pair, difference in family.items() if frozenset(pair) in contested}
        return {pair: difference for pair, difference in family.items() if difference.verdict == "undecided"}

    def after(self, before: "Differences") -> "Differences":
        """Return these differences, but keep those of `before` that were decided or have gained no seeds."""
        pairs = {}
        for pair, difference in self.pairs.differences.items():
            pairs[pair] = _keep_decided(before.pairs.differences.get(pair), difference)
        against = {}
        for name, difference in self.against.items():
            against[name] = _keep_decided(before.against.get(name), difference)
        return Differences(self.means, against, replace(self.pairs, differences=pairs))


def _keep_decided(old: statistics.Difference | None, new: statistics.Difference) -> statistics.Difference:
    """Return the earlier difference if it is decided or the new one has no more seeds."""
    if old is None:
        return new
    if old.verdict == "undecided" and new.seeds > old.seeds:
        return new
    return old


def differences_by_look(
    values: Mapping[str, Values],
    baseline: str | None,
    looks: Looks | None,
    *,
    margin: float = 0.01,
    alpha: float = 0.05,
    key: str = "",
    choices: Choices | None = None,
) -> Differences:
    """Compute `differences`, look by look if there are looks; a pair that a look decides stays decided.

    Every look tests all pairs at its share of alpha. All intervals of all looks hold simultaneously in 1 - alpha of the
    repetitions, whatever was decided when. So do the returned ones: a decided pair keeps the interval of the look that
    decided it, an undecided pair has that of the last look at it.
    """
    if looks is None:
        return differences(values, baseline, margin=margin, alpha=alpha, key=key, choices=choices)
    latest = None
    cells_before = 0
    for count, alpha_part in zip(looks.counts, looks.shares, strict=True):
        values_at_look = {}
        for name, strategy_values in values.items():
            first_values = strategy_values.of_seeds(looks.seeds(count))
            if first_values.seeds:
                values_at_look[name] = first_values
        cells = sum(len(strategy_values.seeds) for strategy_values in values_at_look.values())
        if cells == cells_before:  # nothing new to look at
            continue
        base = baseline if baseline in values_at_look else None
        now = differences(
            values_at_look, base, margin=margin, alpha=alpha, alpha_part=alpha_part, key=key, choices=choices
        )
        latest = now if latest is None else now.after(latest)
        cells_before = cells
    assert latest is not None  # there is a value, so there is a look that sees it
    return latest


# the latest results by their inputs: each look replays all earlier ones, and the final verdicts all of them
_KNOWN: dict[bytes, Differences] = {}


def differences(
    values: Mapping[str, Values],
    baseline: str | None,
    *,
    margin: float = 0.01,
    alpha: float = 0.05,
    alpha_part: float = 1.0,
    key: str = "",
    choices: Choices | None = None,
) -> Differences:
    """Compute the differences between strategies, with simultaneous intervals, from their per-query values.

    Args:
        values: strategy -> values [S, Q], its seeds, and how queries were sampled; the same Q queries for all.
        baseline: the strategy that the others are compared with; None: none.
        margin: differences inside plus or minus this do not matter, in the unit of the values.
        alpha: level; intervals have the level 1 - alpha.
        alpha_part: the part of alpha that the simultaneous intervals spend.
        key: also seeds the generator, so that two tables of the same values can have different draws.
        choices: the trials by which learning rates were chosen, if they were; the intervals cover that choice.

    Raises:
        ValueError: a stratum with a single query.
    """
    inputs = hashlib.sha256(pickle.dumps((values, baseline, margin, alpha, alpha_part, key, choices))).digest()
    if inputs in _KNOWN:
        return _KNOWN[inputs]
    first = next(iter(values.values()))
    nested = any(strategy_values.nested for strategy_values in values.values())
    design = statistics.Design(first.strata, first.clusters, nested, alpha, margin, alpha_part=alpha_part)
    arrays = {name: strategy_values.values for name, strategy_values in values.items()}
    seeds = {name: strategy_values.seeds for name, strategy_values in values.items()}
    table = statistics.ValueTable(arrays, design, seeds)
    choices_here = {name: parts for name, parts in (choices or {}).items() if name in values}
    shortfalls = draw_shortfalls(choices_here, table.draws, key)
    pairs = statistics.pairs(table, table.generator(key), shortfalls)
    against: dict[str, statistics.Difference] = {}
    if baseline is not None and len(values) == 2:  # the only pair is the test against the baseline
        for name in values:
            test = pairs.of(name, baseline)
            if test is not None:
                against[name] = test
    elif baseline is not None:
        against = statistics.against(table, baseline, table.generator(key), shortfalls)
    if len(_KNOWN) == 256:
        _KNOWN.clear()
    _KNOWN[inputs] = Differences(statistics.summarise(table), against, pairs)
    return _KNOWN[inputs]


def difference(one: statistics.Seeded, other: statistics.Seeded, design: statistics.Design) -> statistics.Difference:
    """Test one minus the other, on the same seeds and queries, on its own."""
    table = statistics.ValueTable({"one": one, "other": other}, design)
    return statistics.against(table, "other", table.generator())["one"]
