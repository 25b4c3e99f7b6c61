"""Verdicts of a comparison: each strategy's mean, and its difference to a baseline and to the best, per metric.

Strategies share a test within one table: one data set, loss and backbone, and one system, point of the dials and kind
of settings where a comparison has these axes. Several data sets or backbones add tables "over all" of the same
statistics. All results depend on the cells and the rules alone.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from negbench.analysis.collapse import Ends, ends_of
from negbench.analysis.differences import Differences, decided
from negbench.analysis.prices import more_seeds
from negbench.analysis.words import label_of
from negbench.errors import UnknownNameError
from negbench.grid.comparison import AXES, CellGroup, together
from negbench.grid.looks import Looks
from negbench.scoring.values import KnownQueries, Values, values_of
from negbench.settings.options import PairsToDecide

DEFAULT_BASELINES = ("in-batch", "all-corpus")  # the first one present; else the first strategy
OVER_ALL = "over all"  # in place of a data set or a backbone
FEW = 0.9  # of the number asked for: with fewer different images, a row is marked
TABLE_AXES = tuple(axis for axis in AXES if axis != "strategy")  # axes whose values a table's strategies share


@dataclass(frozen=True)
class Rules:
    """How strategies are compared.

    Args:
        baseline: label or name of the strategy that all others are compared with; None: in-batch, else all-corpus,
            else the first.
        margin: differences inside plus or minus this do not matter, in the unit of the metrics (0.01 = one point).
        alpha: level of the tests; intervals have the level 1 - alpha.
        metric: the one that verdicts are about, by name or as tables print it; None: the data set's main metric.
        looks: schedule of the looks at the cells, and which pairs are to be decided; None: one look.
    """

    baseline: str | None = None
    margin: float = 0.01
    alpha: float = 0.05
    metric: str | None = None
    looks: Looks | None = None

    def check(self, plugins: Mapping[str, str], metrics: Iterable[Sequence[str]] = ()) -> None:
        """Check baseline and metric before anything is computed.

        Args:
            plugins: label -> plug-in of every strategy.
            metrics: names of each data set's metrics.

        Raises:
            UnknownNameError: the baseline is none of the strategies, or a data set has no such metric.
        """
        if self.baseline is not None and label_for(self.baseline, plugins) is None:
            raise UnknownNameError("--baseline", self.baseline, sorted(plugins))
        for names in metrics if self.metric is not None else ():
            self.main(names[0], names)

    def main(self, default: str, metrics: Sequence[str]) -> str:
        """Return the metric that verdicts are about: the requested one of these, else the default.

        Raises:
            UnknownNameError: no metric has this name, or is printed so in tables.
        """
        if self.metric is None or self.metric in metrics:
            return self.metric or default
        printed = [m for m in metrics if self.metric in (label_of(m), label_of(m).removeprefix("average "))]
        if not printed:
            raise UnknownNameError("--metric", self.metric, list(metrics))
        return next((name for name in headline_metrics(metrics) if name in printed), printed[0])

    def choose(self, plugins: Mapping[str, str]) -> str | None:
        """Choose the baseline among these strategies (label -> plug-in); None if the requested one is not there."""
        if self.baseline is not None:
            return label_for(self.baseline, plugins)
        by_default = (label for name in DEFAULT_BASELINES for label, plugin in plugins.items() if plugin == name)
        return next(by_default, next(iter(plugins), None))


def label_for(name: str, plugins: Mapping[str, str]) -> str | None:
    """Return the label of this name, printed or as --strategies takes it, or a plug-in's only label; else None."""
    spelled = {label.replace("(", ":").replace(", ", ":").rstrip(")"): label for label in plugins}
    if name in plugins or name in spelled:
        return spelled.get(name, name)
    of_plugin = [label for label, plugin in plugins.items() if plugin == name]
    return of_plugin[0] if len(of_plugin) == 1 else None


@dataclass(frozen=True)
class VerdictRow:
    """One strategy on one metric. Numbers are in the unit of the metric; NaN if there is nothing to compare.

    Attributes:
        dataset, loss, backbone: of the table.
        strategy: the row's.
        metric, main: the metric, and whether it is the one of the verdicts.
        mean, sd, low, high: over seeds: the mean, its deviation, the ends of its interval.
        seeds, queries: how many of each there are.
        baseline: the strategy compared with.
        verdict: on the difference to the baseline, a `negbench.analysis.statistics.Verdict`; 'baseline'; or 'not
            compared': no seed in common with it, or no baseline.
        beaten_by: strategies that beat it.
        rank_low, rank_high: the ranks that the table's pairs allow; 1 is best.
        behind, behind_low, behind_high: the best strategy's mean minus this one's, and its interval.
        gap, gap_low, gap_high: the same to the best one with equally many negatives.
        standing: verdict against that one: 'best' (ahead of all others with as many), 'highest', 'worse', 'equal',
            'undecided', 'collapsed', 'only' (no other has as many) or 'not compared'.
        negatives: number asked for per query and step.
        distinct: how many different images these are.
        against: whether tables show the difference to the baseline.
        baseline_negatives: the baseline's `negatives`.
        difference, diff_low, diff_high: mean minus the baseline's, and its interval.
        p_adjusted: p-value of the difference, adjusted for the family of tests.
        minimum_detectable: smallest difference that these seeds and queries would detect.
        paired_seeds: seeds in common with the baseline.
        margin: differences within it count as equal.
        alpha: significance level.
        system, point, settings, epochs: of the table; '' if the comparison has no such axis.
        undecided: strategies against which it is undecided, among the pairs to decide.
        more_seeds: how many more decide all of these; -1: no number would; NaN: one seed, or none to decide.
        covers: what else the intervals cover, such as other seeds.
        collapsed: number of its runs that collapsed.
        lowest, highest: ends of its seeds' means.
        identical: strategies whose runs score exactly alike.
        unmoved: whether all of its runs score as the untrained model does (`negbench.analysis.collapse`).
        facts: typed columns of its cells: `plugin`; `num_negatives`, `own` and a column per dial, where they are axes.
    """

    dataset: str
    loss: str
    backbone: str
    strategy: str
    metric: str
    main: bool
    mean: float
    sd: float
    low: float
    high: float
    seeds: int
    queries: int
    baseline: str
    verdict: str
    beaten_by: tuple[str, ...] = ()
    rank_low: int = 0
    rank_high: int = 0
    behind: float = math.nan
    behind_low: float = math.nan
    behind_high: float = math.nan
    gap: float = math.nan
    gap_low: float = math.nan
    gap_high: float = math.nan
    standing: str = "not compared"
    negatives: float = math.nan
    distinct: float = math.nan
    against: bool = False
    baseline_negatives: float = math.nan
    difference: float = math.nan
    diff_low: float = math.nan
    diff_high: float = math.nan
    p_adjusted: float = math.nan
    minimum_detectable: float = math.nan
    paired_seeds: int = 0
    margin: float = math.nan
    alpha: float = math.nan
    system: str = ""
    point: str = ""
    settings: str = ""
    epochs: str = ""
    undecided: tuple[str, ...] = ()
    more_seeds: float = math.nan
    covers: str = ""
    collapsed: int = 0
    lowest: float = math.nan
    highest: float = math.nan
    identical: tuple[str, ...] = ()
    unmoved: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def compared(self) -> bool:
        """Whether there is a difference to a baseline."""
        return not math.isnan(self.difference)

    @property
    def table_key(self) -> tuple[str, ...]:
        """Labels that identify its table: its values of `TABLE_AXES`."""
        return tuple(getattr(self, axis) for axis in TABLE_AXES)

    @property
    def where(self) -> str:
        """Its point on the dials, with its training budget and its number of negatives where these are axes, too."""
        also = {"epochs": self.epochs, "num_negatives": self.facts.get("num_negatives", "")}
        return ", ".join([self.point, *(f"{name}={value}" for name, value in also.items() if value)])

    @property
    def ranks(self) -> str:
        """'1-3', or '2' where the pairs leave one rank."""
        return f"{self.rank_low}" + f"-{self.rank_high}" * (self.rank_high > self.rank_low)

    @property
    def marked_label(self) -> str:
        """The strategy, marked if it trains against fewer than 90 % as many different images as were asked for.

        So is a tuned one of which trials failed.
        """
        marks = [f"{self.distinct:.3g} distinct"] * (self.distinct < FEW * self.negatives)
        if failed := self.facts.get("failed_trials"):
            marks.append(f"{failed} trials failed")
        return self.strategy + f" ({', '.join(marks)})" * bool(marks)

    def plain(self) -> dict[str, Any]:
        """Return the fields and facts for JSON and CSV: rounded to 10 decimals, NaN for infinity."""
        flat = asdict(self)
        flat |= flat.pop("facts")
        numbers = {key: value for key, value in flat.items() if isinstance(value, float)}
        return flat | {k: math.nan if math.isinf(v) else round(v, 10) + 0.0 for k, v in numbers.items()}  # no -0.0

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Read what `plain` wrote as JSON, where a gap is null; a column that is no field is a fact."""
        names = {each.name for each in fields(cls)}
        known: dict[str, Any] = {k: math.nan if v is None else v for k, v in stored.items() if k in names}
        known |= {name: tuple(known.get(name, ())) for name in ("beaten_by", "undecided", "identical")}
        return cls(**known, facts={k: v for k, v in stored.items() if k not in names})


@dataclass(frozen=True, eq=False)
class VerdictTable:
    """Strategies that are tested together.

    Attributes:
        labels: axis -> value that all its strategies have in common.
        main: the metric that verdicts are about.
        values: metric -> strategy -> per-query values.
        negatives: strategy -> negatives per query and step, as asked for.
        distinct: strategy -> how many different images these are.
        facts: strategy -> typed columns of its cells.
        ends: strategy -> how its runs ended on the main metric.
    """

    labels: Mapping[str, str]
    main: str
    values: Mapping[str, Mapping[str, Values]]
    negatives: Mapping[str, float] = field(default_factory=dict)
    distinct: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ends: Mapping[str, Ends] = field(default_factory=dict)

    @property
    def table_key(self) -> tuple[str, ...]:
        """As `VerdictRow.table_key`."""
        return tuple(self.labels.get(axis, "") for axis in TABLE_AXES)

    def baseline(self, rules: Rules) -> str | None:
        """Return the strategy that the others are compared with: a system's own, or that of the rules.

        None if it has no finished cell.
        """
        facts = {name: self.facts.get(name, {}) for name in self.values.get(self.main, {})}
        if any("own" in each for each in facts.values()):
            return next((name for name, each in facts.items() if each["own"]), None)
        return rules.choose({name: str(each.get("plugin", name)) for name, each in facts.items()})


# --- reading -----------------------------------------------------------------------------------------------------


def headline_metrics(metrics: Sequence[str]) -> list[str]:
    """Return the averages if a benchmark has groups, else the metrics over all queries."""
    averaged = [name for name in metrics if name.startswith("average/")]
    return averaged or [name for name in metrics if "/" not in name] or list(metrics)


def negatives_of(group: CellGroup) -> float:
    """Return the negatives per query and step: the number asked for, or those of a whole batch, averaged over the runs.

    A whole batch counts its other members, times the slots that are corrupted; a union counts draws and members. NaN if
    no run records them.
    """
    asked, negatives = group.configs[0].train.num_negatives, group.values("negatives_per_query")
    if asked is not None and "+" not in group.configs[0].strategy.name:
        return float(asked)
    return float(np.mean(negatives)) if negatives else math.nan


def distinct_of(group: CellGroup) -> float:
    """Return the different images per query and step, averaged over refreshes and runs; of a batch, its members.

    Runs record those drawn; a union's members come on top.
    """
    drawn, config = group.values("behaviour", "distinct"), group.configs[0]
    members = negatives_of(group) - config.train.draws if drawn and "+" in config.strategy.name else 0.0
    numbers = drawn or group.values("negatives_per_query")
    return float(np.mean(numbers)) + members if numbers else math.nan


def rounded(negatives: float) -> float:
    """Round so that a smaller last batch makes no difference."""
    return math.inf if math.isnan(negatives) else float(round(negatives)) if negatives >= 1 else round(negatives, 1)


def tables_of(groups: Sequence[CellGroup], rules: Rules = Rules(), *, main_only: bool = False) -> list[VerdictTable]:
    """Read per-query values of all groups on the headline metrics, the one that verdicts are about first.

    Args:
        groups: of a comparison.
        rules: name that metric.
        main_only: leave the other headline metrics out.

    Raises:
        UnknownNameError: a data set has no such metric.
        RunError: two runs of one data set whose stored ranks are of different queries.
    """
    tables = []
    by_place = together(groups, lambda group: tuple(group.labels.get(axis, "") for axis in TABLE_AXES))
    seen: dict[str, KnownQueries] = {}
    for place, members in sorted(by_place.items()):
        labels = {axis: value for axis, value in zip(TABLE_AXES, place, strict=True) if value}
        result, dataset = members[0].results[0], labels["dataset"]
        main = rules.main(result["main_metric"], list(result["metrics"]))
        metrics = list(dict.fromkeys([main, *([] if main_only else headline_metrics(list(result["metrics"])))]))
        values: dict[str, dict[str, Values]] = {}
        for group in sorted(members, key=lambda g: g.labels["strategy"]):
            for name, metric_values in values_of(group.runs, metrics, seen.setdefault(dataset, {})).items():
                values.setdefault(name, {})[group.labels["strategy"]] = metric_values
        negatives = {group.labels["strategy"]: negatives_of(group) for group in members}
        different = {group.labels["strategy"]: distinct_of(group) for group in members}
        facts = {group.labels["strategy"]: {"plugin": group.plugin, **group.facts} for group in members}
        tables.append(VerdictTable(labels, main, values, negatives, different, facts, ends_of(members, main)))
    return tables


def over_all(tables: Sequence[VerdictTable]) -> list[VerdictTable]:
    """Join the main metrics of tables that differ only in data set or backbone into one table, with equal weights.

    It has the strategies and seeds that all of them share; a row of values is one seed on all queries of all data sets.
    """
    joined = [_joined(members) for members in alike_but(("dataset", "backbone"), tables) if len(members) > 1]
    return [table for table in joined if table is not None]


def alike_but(axes: Collection[str], tables: Sequence[VerdictTable]) -> list[list[VerdictTable]]:
    """Group tables that differ in these axes only."""
    rest = [axis for axis in TABLE_AXES if axis not in axes]
    return list(together(tables, lambda table: tuple(table.labels.get(axis, "") for axis in rest)).values())


def _joined(tables: Sequence[VerdictTable]) -> VerdictTable | None:
    parts = [table.values.get(table.main, {}) for table in tables]
    values: dict[str, Values] = {}
    for name in parts[0]:
        by_part = [part[name] for part in parts if name in part]
        seeds = sorted(set.intersection(*(set(each.seeds) for each in by_part)))
        if len(by_part) == len(parts) and seeds:
            values[name] = side_by_side(by_part, seeds, [table.labels["dataset"] for table in tables])
    if not values:
        return None
    values_of_axis = {axis: {table.labels[axis] for table in tables} for axis in tables[0].labels}
    labels = {axis: OVER_ALL if len(each) > 1 else each.pop() for axis, each in values_of_axis.items()}
    metric = " and ".join(dict.fromkeys(table.main for table in tables))
    negatives, distinct = (
        {name: float(np.mean([of_table.get(name, math.nan) for of_table in each])) for name in values}
        for each in ([table.negatives for table in tables], [table.distinct for table in tables])
    )
    facts = {  # of the first data set that has them
        name: {key: fact for table in reversed(tables) for key, fact in table.facts.get(name, {}).items()}
        for name in tables[0].facts
    }
    return VerdictTable(labels, metric, {metric: values}, negatives, distinct, facts, _joined_ends(tables, values))


def _joined_ends(tables: Sequence[VerdictTable], values: Mapping[str, Values]) -> dict[str, Ends]:
    """Return how each strategy's runs ended over all tables: a seed collapsed if it did in any of them."""
    joined = {}
    for name, kept in values.items():
        ends = [table.ends.get(name, Ends()) for table in tables]
        fallen = frozenset[int]().union(*(each.collapsed for each in ends)) & {*kept.seeds}
        same = set.intersection(*({*each.identical} for each in ends))
        joined[name] = Ends(fallen, tuple(sorted(same)), all(each.unmoved for each in ends))
    return joined


def side_by_side(tables: Sequence[Values], seeds: Sequence[int], datasets: Sequence[str]) -> Values:
    """Concatenate data sets, each (data set, stratum) a stratum of its own, scaled so that all tables weigh the same.

    Tables of one data set (other backbones) have the same queries, which vary together: each query's values are summed.
    A mean is the unweighted mean over strata: a data set with k of all K strata is scaled by K / (tables * k).
    """
    names = list(dict.fromkeys(datasets))
    parts = [tables[datasets.index(name)] for name in names]
    strata = [np.zeros(each.values.shape[1], dtype="U1") if each.strata is None else each.strata for each in parts]
    counts = [len(np.unique(each)) for each in strata]
    rows = [each.values[[each.seeds.index(seed) for seed in seeds]] for each in tables]
    sums = [np.sum([row for row, own in zip(rows, datasets, strict=True) if own == name], axis=0) for name in names]
    scaled = [sum(counts) / (len(tables) * count) * values for count, values in zip(counts, sums, strict=True)]
    named = [np.arange(each.values.shape[1]) if each.clusters is None else each.clusters for each in parts]
    clusters = _apart(named) if any(each.clusters is not None for each in parts) else None
    nested = all(each.nested for each in parts)
    return Values(np.concatenate(scaled, axis=1), tuple(seeds), _apart(strata), clusters=clusters, nested=nested)


def _apart(labels: Sequence[NDArray[Any]]) -> NDArray[np.str_]:
    """Concatenate the labels of all parts, made distinct between parts."""
    return np.concatenate([[f"{part}/{label}" for label in part_labels] for part, part_labels in enumerate(labels)])


# --- judging -----------------------------------------------------------------------------------------------------


def rows_of(table: VerdictTable, rules: Rules, key: str | None = None) -> list[VerdictRow]:
    """Test one table: a row per metric and strategy; `key` seeds the intervals [default: its place and the metric].

    A metric whose values cannot be tested (a gallery group with a single query) has no rows.
    """
    rows: list[VerdictRow] = []
    baseline = table.baseline(rules)
    for metric, values in table.values.items():
        # an axis that is not used is no part of the key, so that one that is added later moves no interval
        named = "/".join([*filter(None, table.table_key), metric]) if key is None else key
        try:
            tests = decided(values, baseline, rules.looks, margin=rules.margin, alpha=rules.alpha, key=named)
        except ValueError:  # the only cause left in a table that was read here: too few queries in a stratum
            continue
        rows += _rows(table, metric, tests, baseline, rules)
    return rows


def _rows(
    table: VerdictTable, metric: str, tests: Differences, baseline: str | None, rules: Rules
) -> Iterator[VerdictRow]:
    """Build the row of each strategy from the tests of one metric."""
    counts = {name: rounded(table.negatives.get(name, math.nan)) for name in tests.means}
    fallen = [name for name, ends in table.ends.items() if ends.collapsed]
    asked = rules.baseline is not None or any("own" in each for each in table.facts.values())
    pairs: PairsToDecide = rules.looks.pairs if rules.looks is not None else "baseline" if asked else "best"
    open_pairs = tests.undecided(pairs, baseline, counts, fallen, margin=rules.margin)
    ranks, highest = tests.pairs.ranks(), tests.best(counts)
    for name, mean in tests.means.items():
        against, (first, last) = tests.against.get(name), ranks[name]
        columns: dict[str, Any] = dict(table.labels)
        columns |= {"beaten_by": tests.pairs.beaten[name], "rank_low": first, "rank_high": last}
        block = [each for each in counts if counts[each] == counts[name]]
        best = tests.best(tests.rivals(block, fallen) or block)  # who was beaten may have a higher mean, of fewer seeds
        behind, gap = tests.pairs.of(highest, name), tests.pairs.of(best, name)
        for key, end, test in (("behind", "behind", behind), ("gap", "gap", gap), ("difference", "diff", against)):
            if test is not None:
                columns |= {key: test.value, f"{end}_low": test.interval.low, f"{end}_high": test.interval.high}
        columns["standing"] = _standing(tests, name, best, [each for each in block if each not in fallen])
        if against is not None:
            columns |= {"p_adjusted": against.p_adjusted, "minimum_detectable": against.minimum_detectable}
            columns["paired_seeds"] = against.seeds
        left = {pair: each for pair, each in open_pairs.items() if name in pair}
        prices = [more_seeds(each, rules.margin, nested=table.values[metric][name].nested) for each in left.values()]
        columns["undecided"] = tuple(a if b == name else b for a, b in left)
        columns["more_seeds"] = -1.0 if math.inf in prices else max(prices, default=math.nan)
        columns["covers"] = _covers(table.values[metric][name])
        columns |= {key: getattr(mean, key) for key in ("mean", "sd", "lowest", "highest", "seeds", "queries")}
        if (ends := table.ends.get(name)) is not None and metric == table.main:
            columns |= {"collapsed": len(ends.collapsed), "identical": ends.identical, "unmoved": ends.unmoved}
        yield VerdictRow(
            strategy=name,
            metric=metric,
            main=metric == table.main,
            low=mean.interval.low,
            high=mean.interval.high,
            baseline=baseline or "",
            verdict="baseline" if name == baseline else "not compared" if against is None else against.verdict,
            negatives=table.negatives.get(name, math.nan),
            distinct=table.distinct.get(name, math.nan),
            against=asked or pairs == "baseline",
            baseline_negatives=table.negatives.get(baseline or "", math.nan),
            margin=rules.margin,
            alpha=rules.alpha,
            facts=table.facts.get(name, {}),
            **columns,
        )


def _standing(tests: Differences, name: str, best: str, block: Sequence[str]) -> str:
    """Return the verdict on a strategy against the best with equally many negatives; `block` omits collapsed ones."""
    if name not in block:
        return "collapsed"
    if name != best:
        test = tests.pairs.of(name, best)
        return "not compared" if test is None else test.verdict
    others = [tests.pairs.of(name, other) for other in block if other != name]
    if not others:
        return "only"
    return "best" if all(test is not None and test.verdict == "better" for test in others) else "highest"


def _covers(values: Values) -> str:
    """Say what else the intervals cover: other seeds, queries, worlds."""
    if len(values.seeds) == 1:
        return "other queries"
    if values.nested:
        return "other seeds and other worlds (each with its own queries)"
    return "other seeds and " + ("other clusters of queries" if values.clusters is not None else "other queries")
