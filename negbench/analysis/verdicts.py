"""Verdicts of a comparison: each strategy's mean, and its difference to a baseline and to the best, per metric.

Strategies share a test within one table: one data set, loss and backbone, and one system, point of the dials and kind
of settings where a comparison has these axes. Several data sets or backbones add tables "over all" of the same
statistics. All results depend on the cells and the rules alone.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from negbench.analysis.collapse import Ends, ends_of
from negbench.analysis.differences import Differences, differences_by_look
from negbench.analysis.frame import config_of, facts_of, first_run, folders_of, key_of, mean_of, shared_value
from negbench.analysis.prices import more_seeds
from negbench.analysis.setting_choice import Choices, SettingChoice
from negbench.analysis.statistics import Difference
from negbench.analysis.stored_trials import StoredTrials
from negbench.analysis.verdict_record import TABLE_AXES, Estimate, Verdict
from negbench.errors import UnknownNameError
from negbench.grid.axis import OWN_STRATEGY, GroupKey
from negbench.grid.looks import Looks
from negbench.machine.grouping import group_by
from negbench.metrics.names import find_metric
from negbench.metrics.part_name import whole_name
from negbench.scoring.values import KnownQueries, Values, values_of

DEFAULT_BASELINES = ("in-batch", "all-corpus")  # the first one present; else the first strategy
OVER_ALL = "over all"  # instead of a data set or a backbone


@dataclass(frozen=True)
class Rules:
    """How strategies are compared.

    Args:
        baseline: label or name of the strategy that all others are compared with; None: the batch alone where others
            stand beside it (`batch_alone`), else in-batch, else all-corpus, else the first.
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
        if self.metric is not None:
            for names in metrics:
                self.main_metric(names[0], names)

    def main_metric(self, default: str, metrics: Sequence[str]) -> str:
        """Return the metric that verdicts are about: the requested one, of these or of the ranks, else the default.

        Raises:
            UnknownNameError: no metric has this name, or is printed so in tables.
        """
        if self.metric is None:
            return default
        metric = find_metric(self.metric, metrics)
        if metric is None:
            raise UnknownNameError("--metric", self.metric, [*metrics, "R@K", "MRR", "nDCG@K"])
        return metric

    def choose(self, plugins: Mapping[str, str]) -> str | None:
        """Choose the baseline among these strategies (label -> plug-in); None if the requested one is not there."""
        if self.baseline is not None:
            return label_for(self.baseline, plugins)
        batch = batch_alone(plugins)
        if batch is not None:
            return batch
        for name in DEFAULT_BASELINES:
            for label, plugin in plugins.items():
                if plugin == name:
                    return label
        return next(iter(plugins), None)


def batch_alone(plugins: Mapping[str, str]) -> str | None:
    """Return the batch strategy beside which others stand, as 'in-batch' for 'in-batch+qure'; None if there is none.

    Args:
        plugins: label -> plug-in of every strategy.
    """
    for label, plugin in plugins.items():
        if any(other.startswith(f"{plugin}+") for other in plugins.values()):
            return label
    return None


def beside_batch(rows: Sequence[Verdict]) -> bool:
    """Whether the strategies of every table of these rows stand beside the batch alone, which is their baseline."""
    tables = group_by(rows, lambda row: row.table_key)
    for members in tables.values():
        plugins = {row.strategy: str(row.facts.get("plugin", row.strategy)) for row in members}
        batch = batch_alone(plugins)
        if batch is None or members[0].baseline != batch:
            return False
    return bool(tables)


def plugins_of(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return strategy -> its plug-in, from strategy -> what its runs have in common."""
    return {name: str(columns.get("plugin", name)) for name, columns in facts.items()}


def second_cutoff(metric: str) -> str | None:
    """Return R@1 for R@10, and R@10 for R@1, of the same queries; None for another metric.

    Example:
        >>> second_cutoff("average/recall_at_10"), second_cutoff("recall_at_1"), second_cutoff("mrr_at_10")
        ('average/recall_at_1', 'recall_at_10', None)
    """
    others = {"recall_at_1": "recall_at_10", "recall_at_10": "recall_at_1"}
    prefix, slash, name = metric.rpartition("/")
    return f"{prefix}{slash}{others[name]}" if name in others else None


def label_for(name: str, plugins: Mapping[str, str]) -> str | None:
    """Return the label of this name, printed or as --strategies takes it, or a plug-in's only label; else None."""
    spelled = {label.replace("(", ":").replace(", ", ":").rstrip(")"): label for label in plugins}
    if name in plugins or name in spelled:
        return spelled.get(name, name)
    labels = [label for label, plugin in plugins.items() if plugin == name]
    return labels[0] if len(labels) == 1 else None


@dataclass(frozen=True, eq=False)
class VerdictTable:
    """Strategies that are tested together.

    Attributes:
        labels: axis -> value that all its strategies have in common.
        main_metric: the one that verdicts are about.
        values: metric -> strategy -> per-query values.
        negatives: strategy -> negatives per query and step, as asked for.
        distinct: strategy -> how many different images these are.
        facts: strategy -> typed columns of its cells.
        ends: strategy -> how its runs ended on the main metric.
        choices: metric -> strategy -> the trials that chose its learning rates, where it chose its own.
    """

    labels: Mapping[str, str]
    main_metric: str
    values: Mapping[str, Mapping[str, Values]]
    negatives: Mapping[str, float] = field(default_factory=dict)
    distinct: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ends: Mapping[str, Ends] = field(default_factory=dict)
    choices: Mapping[str, Choices] = field(default_factory=dict)

    @property
    def table_key(self) -> tuple[str, ...]:
        """As `Verdict.table_key`."""
        return tuple(self.labels.get(axis, "") for axis in TABLE_AXES)

    def baseline(self, rules: Rules) -> str | None:
        """Return the strategy that the others are compared with: a system's own, or that of the rules.

        None if it has no finished cell.
        """
        facts = {name: self.facts.get(name, {}) for name in self.values.get(self.main_metric, {})}
        if any(OWN_STRATEGY in fact for fact in facts.values()):
            return next((name for name, fact in facts.items() if fact[OWN_STRATEGY]), None)
        return rules.choose(self.plugins)

    @property
    def plugins(self) -> dict[str, str]:
        """Strategy -> its plug-in."""
        return plugins_of({name: self.facts.get(name, {}) for name in self.values.get(self.main_metric, {})})


# --- reading -----------------------------------------------------------------------------------------------------


def tables_of(
    groups: Sequence[pd.DataFrame],
    rules: Rules = Rules(),
    trials: Mapping[GroupKey, StoredTrials] | None = None,
    *,
    main_only: bool = False,
) -> list[VerdictTable]:
    """Read per-query values of all groups on the headline metrics, the one that verdicts are about first.

    Args:
        groups: of a comparison.
        rules: name that metric.
        trials: of the groups that chose their own learning rates.
        main_only: leave the other headline metrics out.

    Raises:
        UnknownNameError: a data set has no such metric.
        RunError: two runs of one data set whose stored ranks are of different queries.
    """

    def table_labels(group: pd.DataFrame) -> tuple[str, ...]:
        return tuple(shared_value(group, axis) for axis in TABLE_AXES)

    groups_by_table = group_by(groups, table_labels)
    queries_by_dataset: dict[str, KnownQueries] = {}
    tables = []
    for axis_values, members in sorted(groups_by_table.items()):
        labels = {axis: value for axis, value in zip(TABLE_AXES, axis_values, strict=True) if value}
        queries = queries_by_dataset.setdefault(labels["dataset"], {})
        tables.append(_read_table(labels, members, rules, trials or {}, queries, main_only=main_only))
    return tables


def _read_table(
    labels: Mapping[str, str],
    groups: Sequence[pd.DataFrame],
    rules: Rules,
    trials: Mapping[GroupKey, StoredTrials],
    queries: KnownQueries,
    *,
    main_only: bool,
) -> VerdictTable:
    """Read the per-query values of one table.

    Args:
        labels: axis -> value that all its groups share.
        groups: one for each strategy.
        rules: name the main metric.
        trials: of the groups that chose their own learning rates.
        queries: of the table's data set, as `values_of` takes them.
        main_only: leave the other headline metrics out.
    """
    all_metrics = list(first_run(groups[0]).result["metrics"])
    main = rules.main_metric(shared_value(groups[0], "main_metric"), all_metrics)
    by_strategy = {shared_value(group, "strategy"): group for group in groups}
    facts = {strategy: facts_of(group) for strategy, group in by_strategy.items()}
    metrics = [main]
    if not main_only:
        metrics = _metrics_to_test(main, all_metrics, beside=batch_alone(plugins_of(facts)) is not None)
    values: dict[str, dict[str, Values]] = {}
    for strategy, group in sorted(by_strategy.items()):
        for metric, strategy_values in values_of(folders_of(group), metrics, queries).items():
            values.setdefault(metric, {})[strategy] = strategy_values
    return VerdictTable(
        labels,
        main,
        values,
        negatives={strategy: negatives_of(group) for strategy, group in by_strategy.items()},
        distinct={strategy: distinct_of(group) for strategy, group in by_strategy.items()},
        facts=facts,
        ends=ends_of(groups, main),
        choices=_choices_of(by_strategy, metrics, trials),
    )


def _metrics_to_test(main: str, metrics: Sequence[str], *, beside: bool) -> list[str]:
    """Return the main metric, then the other headline metrics; of strategies `beside` the batch also R@1 or R@10."""
    names = [main, *headline_metrics(metrics)]
    second = second_cutoff(main)
    if second is not None and beside:
        names.append(second)  # from the ranks, where the data set does not declare it
    return list(dict.fromkeys(names))


def headline_metrics(metrics: Sequence[str]) -> list[str]:
    """Return the averages if a benchmark has gallery groups, else the metrics over all queries."""
    averages = [name for name in metrics if name.startswith("average/")]
    over_all_queries = [name for name in metrics if "/" not in name]
    return averages or over_all_queries or list(metrics)


def _choices_of(
    groups: Mapping[str, pd.DataFrame], metrics: Sequence[str], trials: Mapping[GroupKey, StoredTrials]
) -> dict[str, dict[str, tuple[SettingChoice, ...]]]:
    """Read metric -> strategy -> the trials that chose its learning rate."""
    choices: dict[str, dict[str, tuple[SettingChoice, ...]]] = {}
    dev_queries: KnownQueries = {}  # the same for all strategies of a table
    for strategy, group in sorted(groups.items()):
        stored_trials = trials.get(key_of(group))
        if stored_trials is not None:
            for metric, choice in stored_trials.choices(metrics, dev_queries).items():
                choices.setdefault(metric, {})[strategy] = (choice,)
    return choices


def negatives_of(group: pd.DataFrame) -> float:
    """Return the negatives per query and step: the number asked for, or those of a whole batch, averaged over the runs.

    A whole batch counts its other members, times the slots that are corrupted; a union counts draws and members. NaN if
    no run records them.
    """
    config = config_of(group)
    if config.train.num_negatives is not None and "+" not in config.strategy.name:
        return float(config.train.num_negatives)
    return mean_of(group, "negatives_per_query")


def distinct_of(group: pd.DataFrame) -> float:
    """Return the different images per query and step, averaged over refreshes and runs; of a batch, its members.

    Runs record those drawn; a union's members come on top.
    """
    distinct_draws = mean_of(group, "behaviour/distinct")
    if math.isnan(distinct_draws):
        return mean_of(group, "negatives_per_query")
    config = config_of(group)
    if "+" in config.strategy.name:
        return distinct_draws + (negatives_of(group) - config.train.draws)
    return distinct_draws


def join_over_all(tables: Sequence[VerdictTable]) -> list[VerdictTable]:
    """Join the main metrics of tables that differ only in data set or backbone into one table, with equal weights.

    It has the strategies and seeds that all of them share; a row of values is one seed on all queries of all data sets.
    """
    tables_over_all = []
    for members in group_over(("dataset", "backbone"), tables):
        table = _join_tables(members) if len(members) > 1 else None
        if table is not None:
            tables_over_all.append(table)
    return tables_over_all


def group_over(axes: Collection[str], tables: Sequence[VerdictTable]) -> list[list[VerdictTable]]:
    """Group tables that differ in these axes only."""
    other_axes = [axis for axis in TABLE_AXES if axis not in axes]

    def values_of_others(table: VerdictTable) -> tuple[str, ...]:
        return tuple(table.labels.get(axis, "") for axis in other_axes)

    return list(group_by(tables, values_of_others).values())


def _join_tables(tables: Sequence[VerdictTable]) -> VerdictTable | None:
    """Return one table of these; None if they share no strategy with a seed in common."""
    values = _join_values(tables)
    if not values:
        return None
    labels = {}
    for axis in tables[0].labels:
        axis_values = {table.labels[axis] for table in tables}
        labels[axis] = OVER_ALL if len(axis_values) > 1 else axis_values.pop()
    facts: dict[str, dict[str, Any]] = {name: {} for name in tables[0].facts}
    for name, merged in facts.items():
        for table in reversed(tables):  # the first table that has a fact decides it
            merged.update(table.facts.get(name, {}))
    negatives = {}
    distinct = {}
    ends = {}
    for name in values:
        negatives[name] = float(np.mean([table.negatives.get(name, math.nan) for table in tables]))
        distinct[name] = float(np.mean([table.distinct.get(name, math.nan) for table in tables]))
        ends[name] = _join_ends([table.ends.get(name, Ends()) for table in tables], values[name])
    metric = " and ".join(dict.fromkeys(table.main_metric for table in tables))
    choices = join_choices([table.choices.get(table.main_metric, {}) for table in tables])
    return VerdictTable(
        labels,
        metric,
        {metric: values},
        negatives=negatives,
        distinct=distinct,
        facts=facts,
        ends=ends,
        choices={metric: choices},
    )


def _join_values(tables: Sequence[VerdictTable]) -> dict[str, Values]:
    """Return the values, side by side, of the strategies that stand in all tables, at the seeds that all have."""
    parts = [table.values.get(table.main_metric, {}) for table in tables]
    datasets = [table.labels["dataset"] for table in tables]
    values_by_strategy: dict[str, Values] = {}
    for name in parts[0]:
        if not all(name in part for part in parts):
            continue
        strategy_values = [part[name] for part in parts]
        seeds = set(strategy_values[0].seeds)
        for values in strategy_values:
            seeds &= set(values.seeds)
        if seeds:
            values_by_strategy[name] = concatenate_values(strategy_values, sorted(seeds), datasets)
    return values_by_strategy


def join_choices(tables: Sequence[Choices]) -> dict[str, tuple[SettingChoice, ...]]:
    """Return the choices of the strategies that all these tables know, as those of a mean over the tables."""
    choices = {}
    for name in tables[0]:
        if all(name in table for table in tables):
            choices[name] = tuple(choice for table in tables for choice in table[name])
    return choices


def _join_ends(ends: Sequence[Ends], values: Values) -> Ends:
    """Return how a strategy's runs ended over several tables: a seed collapsed if it did in any of them."""
    collapsed = frozenset[int]().union(*(end.collapsed for end in ends)) & {*values.seeds}
    identical = set.intersection(*({*end.identical} for end in ends))
    return Ends(collapsed, tuple(sorted(identical)), all(end.unmoved for end in ends))


def concatenate_values(tables: Sequence[Values], seeds: Sequence[int], datasets: Sequence[str]) -> Values:
    """Concatenate data sets, each (data set, stratum) a stratum of its own, scaled so that all tables weigh the same.

    Tables of one data set (other backbones) have the same queries, which vary together: each query's values are summed.
    A mean is the unweighted mean over strata: a data set with k of all K strata is scaled by K / (tables * k).
    """
    by_dataset: dict[str, list[Values]] = {}
    for table, dataset in zip(tables, datasets, strict=True):
        by_dataset.setdefault(dataset, []).append(table)
    sums = []
    strata: list[NDArray[Any]] = []
    clusters: list[NDArray[Any]] = []
    for members in by_dataset.values():
        first = members[0]  # the others are of the same queries
        queries = first.values.shape[1]
        strata.append(np.zeros(queries, dtype="U1") if first.strata is None else first.strata)
        clusters.append(np.arange(queries) if first.clusters is None else first.clusters)
        sums.append(np.sum([_rows_of_seeds(member, seeds) for member in members], axis=0))
    stratum_counts = [len(np.unique(labels)) for labels in strata]
    scaled_values = []
    for values, count in zip(sums, stratum_counts, strict=True):
        weight = sum(stratum_counts) / (len(tables) * count)
        scaled_values.append(weight * values)
    firsts = [members[0] for members in by_dataset.values()]
    has_clusters = any(first.clusters is not None for first in firsts)
    return Values(
        np.concatenate(scaled_values, axis=1),
        tuple(seeds),
        _number_labels(strata),
        clusters=_number_labels(clusters) if has_clusters else None,
        nested=all(first.nested for first in firsts),
    )


def _rows_of_seeds(values: Values, seeds: Sequence[int]) -> NDArray[np.float64]:
    """[S, Q] values of these seeds."""
    return values.values[[values.seeds.index(seed) for seed in seeds]]


def _number_labels(parts: Sequence[NDArray[Any]]) -> NDArray[np.str_]:
    """Concatenate the labels of all parts, each behind the number of its part: '0/shirt', '1/shirt'."""
    labels: list[str] = []
    for number, part in enumerate(parts):
        labels += [f"{number}/{label}" for label in part]
    return np.array(labels)


# --- judging -----------------------------------------------------------------------------------------------------


def verdicts_of(table: VerdictTable, rules: Rules, key: str | None = None) -> list[Verdict]:
    """Test one table: a verdict per metric and strategy.

    A metric whose values cannot be tested (a gallery group with a single query) has no verdicts.

    Args:
        table: of strategies that are tested together.
        rules: how they are compared.
        key: seeds the intervals [default: `seed_text` of the table and the metric].
    """
    verdicts: list[Verdict] = []
    baseline = table.baseline(rules)
    for metric, values in table.values.items():
        text = seed_text(table.table_key, metric) if key is None else key
        try:
            tests = differences_by_look(
                values,
                baseline,
                rules.looks,
                margin=rules.margin,
                alpha=rules.alpha,
                key=text,
                choices=table.choices.get(metric),
            )
        except ValueError:  # the only cause left in a table that was read here: too few queries in a stratum
            continue
        verdicts += _verdicts(table, metric, tests, baseline, rules)
    return verdicts


def seed_text(table_key: Sequence[str], metric: str) -> str:
    """Return the text that seeds the intervals of a table, with its values. It is frozen: another one moves intervals.

    An axis that is not used is no part of it, so that one that is added later moves no interval. Nor is what the
    name of a data set says of missing images.
    """
    whole = [whole_name(value)[0] for value in table_key if value]
    return "/".join([*whole, metric])


def _verdicts(
    table: VerdictTable, metric: str, tests: Differences, baseline: str | None, rules: Rules
) -> Iterator[Verdict]:
    """Build the verdict on each strategy from the tests of one metric."""
    counts = {name: round_negatives(table.negatives.get(name, math.nan)) for name in tests.means}
    collapsed = [name for name, ends in table.ends.items() if ends.collapsed]
    baseline_asked = _asks_for_baseline(table, rules)
    if rules.looks is not None:
        pairs = rules.looks.pairs
    else:
        pairs = "baseline" if baseline_asked else "best"
    undecided = tests.find_undecided(pairs, baseline, counts, collapsed, margin=rules.margin)
    ranks = tests.pairs.ranks()
    highest_of_table = tests.highest_mean(counts)
    all_values = table.values[metric]
    for name, mean in tests.means.items():
        block = [other for other in counts if counts[other] == counts[name]]
        rivals = tests.rivals(block, collapsed)  # who was beaten may have a higher mean, of fewer seeds
        highest_of_block = tests.highest_mean(rivals or block)
        against = tests.against.get(name)
        open_tests = _open_tests(undecided, name)
        rank_low, rank_high = ranks[name]
        values = all_values[name]
        ends = table.ends.get(name, Ends()) if metric == table.main_metric else Ends()
        yield Verdict(
            **table.labels,
            strategy=name,
            metric=metric,
            main=metric == table.main_metric,
            mean=Estimate(mean.mean, mean.interval.low, mean.interval.high),
            sd=mean.sd,
            lowest=mean.lowest,
            highest=mean.highest,
            seeds=mean.seeds,
            queries=mean.queries,
            baseline=baseline or "",
            verdict=_verdict_on_baseline(name, baseline, against),
            against_baseline=_estimate(against, _count_common_seeds(all_values, name, baseline)),
            against_best=_compare_pair(tests, all_values, name, highest_of_block),
            against_highest=_compare_pair(tests, all_values, name, highest_of_table),
            standing=_standing(tests, name, highest_of_block, [other for other in block if other not in collapsed]),
            beaten_by=tests.pairs.beaten_by[name],
            rank_low=rank_low,
            rank_high=rank_high,
            negatives=table.negatives.get(name, math.nan),
            distinct=table.distinct.get(name, math.nan),
            baseline_asked=baseline_asked or pairs == "baseline",
            baseline_negatives=table.negatives.get(baseline or "", math.nan),
            minimum_detectable=math.nan if against is None else against.minimum_detectable,
            paired_seeds=0 if against is None else against.seeds,
            margin=rules.margin,
            alpha=rules.alpha,
            undecided=tuple(open_tests),
            more_seeds=_seeds_to_decide(open_tests.values(), rules.margin, nested=values.nested),
            covers=_covers(values),
            collapsed=len(ends.collapsed),
            identical=ends.identical,
            unmoved=ends.unmoved,
            facts=table.facts.get(name, {}),
        )


def _asks_for_baseline(table: VerdictTable, rules: Rules) -> bool:
    """Whether the question is a difference to a baseline: one is named, a system's own, or the batch alone."""
    has_system = any(OWN_STRATEGY in facts for facts in table.facts.values())
    return rules.baseline is not None or has_system or batch_alone(table.plugins) is not None


def _verdict_on_baseline(name: str, baseline: str | None, test: Difference | None) -> str:
    """Return the verdict on a strategy's difference to the baseline, 'baseline' or 'not compared'."""
    if name == baseline:
        return "baseline"
    return "not compared" if test is None else test.verdict


def _open_tests(undecided: Mapping[tuple[str, str], Difference], name: str) -> dict[str, Difference]:
    """Return other strategy -> its test against this one, of the undecided ones."""
    tests = {}
    for (one, other), test in undecided.items():
        if name == one:
            tests[other] = test
        elif name == other:
            tests[one] = test
    return tests


def _seeds_to_decide(tests: Iterable[Difference], margin: float, *, nested: bool) -> float:
    """Return how many more seeds decide all these tests; -1: no number would; NaN: one seed, or no test."""
    counts = [more_seeds(test, margin, nested=nested) for test in tests]
    if math.inf in counts:
        return -1.0
    return max(counts, default=math.nan)


def round_negatives(negatives: float) -> float:
    """Round so that a smaller last batch makes no difference."""
    if math.isnan(negatives):
        return math.inf
    return float(round(negatives)) if negatives >= 1 else round(negatives, 1)


def _count_common_seeds(values: Mapping[str, Values], name: str, other: str | None) -> int:
    """Return how many seeds two strategies have in common."""
    if other is None or other not in values:
        return 0
    return len({*values[name].seeds} & {*values[other].seeds})


def _estimate(test: Difference | None, seeds: int) -> Estimate | None:
    """Return a test's estimate, with its seeds if the strategies have more in common; None if nothing was compared."""
    if test is None:
        return None
    earlier = test.seeds if test.seeds < seeds else None
    return Estimate(test.value, test.interval.low, test.interval.high, test.p_adjusted, earlier)


def _compare_pair(tests: Differences, values: Mapping[str, Values], name: str, other: str) -> Estimate | None:
    """Return the estimate of a strategy's difference from another one; None if they were not compared."""
    return _estimate(tests.pairs.of(name, other), _count_common_seeds(values, name, other))


def _standing(tests: Differences, name: str, highest: str, block: Sequence[str]) -> str:
    """Return the verdict on a strategy against the highest of its block, whose collapsed strategies are left out."""
    if name not in block:
        return "collapsed"
    if name != highest:
        test = tests.pairs.of(name, highest)
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
