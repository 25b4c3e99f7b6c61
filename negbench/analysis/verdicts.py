"""Statistics of a comparison: every strategy's interval, and its verdict against a baseline, per metric.

Strategies are compared within one data set, loss and backbone; nothing else shares a test. All of it is a function of
the cells and the rules alone: each test draws from a generator that its own values seed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from negbench import statistics
from negbench.analysis.words import label_of
from negbench.contracts import check_option
from negbench.errors import UnknownNameError
from negbench.grid.comparison import Group
from negbench.scoring.stored import Values, values_of

Array = NDArray[np.float64]

DEFAULT_BASELINES = ("in-batch", "all-corpus")  # the first that is there; else the first strategy
_EFFECTS = (0.01, 0.02)  # at which the power is simulated
_WORK = 2_000_000  # simulations times queries of a calibration: a second or two on a slow core


@dataclass(frozen=True)
class Rules:
    """How strategies are compared.

    Args:
        baseline: label or name of the strategy that all others are compared with; None: in-batch, else all-corpus,
            else the first.
        margin: differences inside plus or minus this do not matter, in the unit of the metrics (0.005 = 0.5 points).
        alpha: level of the tests; intervals have the level 1 - alpha.
        metric: what the verdicts are about, by name or as tables print it; None: the data set's main metric.
    """

    baseline: str | None = None
    margin: float = 0.005
    alpha: float = 0.05
    metric: str | None = None

    @classmethod
    def of_flags(cls, baseline: str | None, margin: float, alpha: float, metric: str | None = None) -> Rules:
        """From the command line, where the margin is in points.

        Raises:
            OptionError: a value out of range.
        """
        check_option("--margin", margin, 0 <= margin < 100, "points, at least 0 and below 100")
        check_option("--alpha", alpha, 0 < alpha < 1, "between 0 and 1")
        return cls(baseline, margin / 100, alpha, metric)

    def check(self, strategies: Iterable[str], metrics: Iterable[Sequence[str]] = ()) -> None:
        """Before anything is computed: labels of the strategies, and the metrics of each data set.

        Raises:
            UnknownNameError: the baseline is none of the strategies, or a data set has no such metric.
        """
        labels = sorted(set(strategies))
        if self.baseline is not None and _named(self.baseline, labels) is None:
            raise UnknownNameError("--baseline", self.baseline, labels)
        for names in metrics if self.metric is not None else ():
            self.main(names[0], names)

    def main(self, default: str, metrics: Sequence[str]) -> str:
        """The metric that verdicts are about: the default, or the one of these that was asked for.

        Raises:
            UnknownNameError: there is none of this name, nor one that tables print so.
        """
        if self.metric is None or self.metric in metrics:
            return self.metric or default
        printed = [m for m in metrics if self.metric in (label_of(m), label_of(m).removeprefix("average "))]
        if not printed:
            raise UnknownNameError("--metric", self.metric, list(metrics))
        return next((name for name in headline_metrics(metrics) if name in printed), printed[0])

    def choose(self, strategies: Sequence[str]) -> str | None:
        """The baseline among these labels; None where the one asked for has no finished cell."""
        if self.baseline is not None:
            return _named(self.baseline, strategies)
        by_default = (label for name in DEFAULT_BASELINES for label in strategies if _plugin(label) == name)
        return next(by_default, strategies[0])


def _named(name: str, labels: Sequence[str]) -> str | None:
    """The label, or the only one of a plug-in of this name."""
    if name in labels:
        return name
    of_plugin = [label for label in labels if _plugin(label) == name]
    return of_plugin[0] if len(of_plugin) == 1 else None


def _plugin(label: str) -> str:
    """Of `qure(variant=release)` and `qure x5`: qure."""
    return label.split("(")[0].split(" ")[0]


@dataclass(frozen=True)
class VerdictRow:
    """One strategy on one metric. Numbers are in the unit of the metric; NaN where there is nothing to compare.

    `verdict` is one of `negbench.statistics.Verdict`, 'baseline', or 'not compared' (no seed in common with the
    baseline, or no baseline). `beaten_by` names the strategies that beat it (none where strategies have no seed in
    common). `negatives`: per query and step. The rest is as in `negbench.statistics`: `mean`, `sd` over seeds, `low`
    and `high` of its `Summary` (`models_` of these models alone), and what its `Comparison` says of the difference to
    the baseline.
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
    models_low: float
    models_high: float
    seeds: int
    queries: int
    baseline: str
    verdict: str
    beaten_by: tuple[str, ...] = ()
    negatives: float = math.nan
    difference: float = math.nan
    diff_low: float = math.nan
    diff_high: float = math.nan
    diff_models_low: float = math.nan
    diff_models_high: float = math.nan
    p_value: float = math.nan
    p_models: float = math.nan
    p_adjusted: float = math.nan
    effect_size: float = math.nan
    minimum_detectable: float = math.nan
    paired_seeds: int = 0
    margin: float = math.nan
    alpha: float = math.nan

    @property
    def compared(self) -> bool:
        """Whether there is a difference to a baseline."""
        return not math.isnan(self.difference)

    def plain(self) -> dict[str, Any]:
        """For JSON and CSV: rounded to 10 decimals; no infinity (an effect without any spread) either."""
        return {k: _finite(v) if isinstance(v, float) else v for k, v in asdict(self).items()}

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> VerdictRow:
        """From what `plain` wrote as JSON, where a gap is null."""
        known: dict[str, Any] = {k: math.nan if v is None else v for k, v in found.items()}
        return cls(**{**known, "beaten_by": tuple(known["beaten_by"])})


def _finite(value: float) -> float:
    return math.nan if math.isinf(value) else round(value, 10)


@dataclass(frozen=True, eq=False)
class VerdictTable:
    """What shares a test: the strategies of one data set, loss and backbone.

    `values`: metric -> strategy -> values; `main`: the metric that verdicts are about; `negatives`: strategy ->
    negatives per query and step.
    """

    dataset: str
    loss: str
    backbone: str
    main: str
    values: dict[str, dict[str, Values]]
    negatives: Mapping[str, float] = field(default_factory=dict)


# --- reading -----------------------------------------------------------------------------------------------------


def headline_metrics(metrics: Sequence[str]) -> list[str]:
    """The averages where a benchmark has groups, else the metrics of all queries."""
    averaged = [name for name in metrics if name.startswith("average/")]
    return averaged or [name for name in metrics if "/" not in name] or list(metrics)


def negatives_of(group: Group) -> float:
    """Negatives that a query meets in a step, on average over the run; NaN where a run does not know.

    Drawn: the number of draws. Of a batch: its other members (times the slots that are corrupted).
    """
    found = []
    for config, manifest, seen in zip(group.configs, group.manifests, group.values("negatives_seen"), strict=False):
        train, evaluated = config.train, config.eval
        queries = manifest.get("dataset", {}).get("train_queries", 0)
        fitted = queries - (round(evaluated.dev_fraction * queries) if evaluated.select == "dev" else 0)
        if fitted and train.epochs:
            found.append(seen / (train.epochs * fitted))
    return float(np.mean(found)) if found else math.nan


def tables_of(groups: Sequence[Group], rules: Rules = Rules()) -> list[VerdictTable]:  # frozen
    """Per-query values of all groups on the headline metrics, the one that verdicts are about first.

    Args:
        groups: of a comparison.
        rules: whose metric it is.

    Raises:
        UnknownNameError: a data set has no such metric.
        RunError: two runs of one data set whose stored ranks are of different queries.
    """
    found: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        found.setdefault((group.labels["dataset"], group.labels["loss"], group.labels["backbone"]), []).append(group)
    tables = []
    queries: dict[str, tuple[str, ...]] = {}
    for (dataset, loss, backbone), members in sorted(found.items()):
        result = members[0].results[0]
        main = rules.main(result["main_metric"], list(result["metrics"]))
        metrics = list(dict.fromkeys([main, *headline_metrics(list(result["metrics"]))]))
        values: dict[str, dict[str, Values]] = {}
        for group in sorted(members, key=lambda g: g.labels["strategy"]):
            for name, mine in values_of(group.runs, metrics, queries.get(dataset, ())).items():
                values.setdefault(name, {})[group.labels["strategy"]] = mine
                queries[dataset] = mine.queries
        negatives = {group.labels["strategy"]: negatives_of(group) for group in members}
        tables.append(VerdictTable(dataset, loss, backbone, main, values, negatives))
    return tables


# --- testing -----------------------------------------------------------------------------------------------------


def rows_of(table: VerdictTable, rules: Rules) -> list[VerdictRow]:
    """Statistics of one table, metric by metric, the strategies by label.

    A metric whose values cannot be tested (a gallery group with a single query) has no rows.
    """
    rows: list[VerdictRow] = []
    for metric, values in table.values.items():
        try:
            rows += _rows(table, metric, values, rules)
        except ValueError:  # the only one left to a table that was read here: too few queries in a stratum
            continue
    return rows


def _rows(table: VerdictTable, metric: str, values: Mapping[str, Values], rules: Rules) -> list[VerdictRow]:
    names = list(values)
    strata = values[names[0]].strata
    baseline = rules.choose(names)
    generator = _generator(table, metric, values)
    means = statistics.summarise_table(
        {name: mine.values for name, mine in values.items()},
        generator=generator,
        strata=strata,
        level=1 - rules.alpha,
    )
    compared = {} if baseline is None else _compared(values, baseline, rules, generator)
    beaten = _beaten(values, rules, generator)
    rows = []
    for name, mean in means.items():
        found = compared.get(name)
        verdict: str = "not compared" if found is None else found.verdict
        rows.append(
            VerdictRow(
                dataset=table.dataset,
                loss=table.loss,
                backbone=table.backbone,
                strategy=name,
                metric=metric,
                main=metric == table.main,
                mean=mean.mean,
                sd=mean.sd,
                low=mean.interval.low,
                high=mean.interval.high,
                models_low=mean.models.low,
                models_high=mean.models.high,
                seeds=mean.seeds,
                queries=mean.queries,
                baseline=baseline or "",
                verdict="baseline" if name == baseline else verdict,
                beaten_by=beaten.get(name, ()),
                negatives=table.negatives.get(name, math.nan),
                margin=rules.margin,
                alpha=rules.alpha,
                **({} if found is None else _of_comparison(found)),
            )
        )
    return rows


def _of_comparison(found: statistics.Comparison) -> dict[str, Any]:
    return {
        "difference": found.difference,
        "diff_low": found.interval.low,
        "diff_high": found.interval.high,
        "diff_models_low": found.models.low,
        "diff_models_high": found.models.high,
        "p_value": found.p_value,
        "p_models": found.p_models,
        "p_adjusted": found.p_adjusted,
        "effect_size": found.effect_size,
        "minimum_detectable": found.minimum_detectable,
        "paired_seeds": found.seeds,
    }


def _compared(
    values: Mapping[str, Values], baseline: str, rules: Rules, generator: np.random.Generator
) -> dict[str, statistics.Comparison]:
    """Strategy -> its comparison, of those that have a seed in common with the baseline."""
    base = values[baseline]
    pairable = {name: mine for name, mine in values.items() if set(mine.seeds) & set(base.seeds)}
    found = statistics.compare_table(
        {name: mine.values for name, mine in pairable.items()},
        baseline,
        generator=generator,
        strata=base.strata,
        seeds={name: mine.seeds for name, mine in pairable.items()},
        margin=rules.margin,
        alpha=rules.alpha,
    )
    return {comparison.name: comparison for comparison in found}


def _beaten(values: Mapping[str, Values], rules: Rules, generator: np.random.Generator) -> dict[str, tuple[str, ...]]:
    """Strategy -> those that beat it, on the seeds that all strategies have."""
    common = sorted(set.intersection(*(set(mine.seeds) for mine in values.values())))
    if not common:
        return {}
    shared = {name: mine.values[[mine.seeds.index(seed) for seed in common]] for name, mine in values.items()}
    strata = next(iter(values.values())).strata
    return statistics.pairs(shared, generator=generator, strata=strata, alpha=rules.alpha).beaten()


def _generator(table: VerdictTable, metric: str, values: Mapping[str, Values]) -> np.random.Generator:
    """Seeded by all that is tested, so that the same cells give the same bytes."""
    digest = hashlib.sha256("\n".join([table.dataset, table.loss, table.backbone, metric]).encode())
    for name, mine in values.items():
        digest.update(f"{name} {mine.seeds}".encode())
        digest.update(np.ascontiguousarray(mine.values).tobytes())
    return np.random.default_rng(int.from_bytes(digest.digest()[:8], "big"))


# --- calibration -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibrated:
    """Level and power of one comparison of a table's design, by simulation.

    Attributes:
        dataset, metric: of the table.
        source: "the baseline's own runs" or "a model of hits and misses".
        seeds, queries: of the simulated design; with a baseline's own runs as the source, half of its seeds a side.
        alpha: level asked for.
        rejection: share of comparisons without a difference that were found different.
        sd: of that share if its true value were alpha.
        power: true difference -> share found.
        simulations: comparisons behind each share.
    """

    dataset: str
    metric: str
    source: str
    seeds: int
    queries: int
    alpha: float
    rejection: float
    sd: float
    power: dict[str, float]
    simulations: int

    def line(self) -> str:
        """One line for people."""
        power = ", ".join(f"{100 * float(e):g} points are found in {share:.0%}" for e, share in self.power.items())
        return (
            f"calibration, {self.seeds} seeds and {self.queries:,} queries a side, simulated with {self.source} "
            f"({self.simulations} comparisons): no difference is called one in {self.rejection:.1%} (asked for at most "
            f"{self.alpha:.0%}, ± {self.sd:.1%}); true differences of {power}"
        )


def calibrated(table: VerdictTable, rules: Rules) -> Calibrated | None:
    """What the test does with this table's number of seeds and queries, on the main metric; None without a baseline.

    With 4 seeds or more of the baseline its own runs are split in two halves, again and again; with fewer, runs are
    simulated that have its recalls and its spread over seeds, and that prefer different queries (see
    docs/statistics.md). The number of simulations falls with the number of queries, so that it takes a second or two.
    """
    values = table.values.get(table.main, {})
    baseline = rules.choose(list(values)) if values else None
    if baseline is None:
        return None
    mine = values[baseline]
    runs, queries = mine.values.shape
    simulations = max(20, min(1000, _WORK // queries))
    own = runs >= 4
    source = mine.values if own else _world(mine)
    seeds = runs // 2 if own else runs
    found = statistics.calibrate(
        source,
        seeds=seeds,
        generator=_generator(table, table.main, {baseline: mine}),
        effects=_EFFECTS,
        simulations=simulations,
        alpha=rules.alpha,
        resamples=500,
    )
    return Calibrated(
        dataset=table.dataset,
        metric=table.main,
        source="the baseline's own runs" if own else "a model of hits and misses",
        seeds=seeds,
        queries=queries,
        alpha=rules.alpha,
        rejection=found.rejection,
        sd=found.sd,
        power={str(effect): share for effect, share in found.power.items()},
        simulations=found.simulations,
    )


def _world(mine: Values) -> statistics.Simulation:
    """A population of runs with this strategy's recall at each cutoff and its sd over seeds (one seed: 0.3 points)."""
    levels = next((n for n in (1, 2, 3, 4) if np.allclose(mine.values * n, np.round(mine.values * n))), 1)
    cuts = [float((mine.values >= (level - 0.5) / levels).mean()) for level in range(levels, 0, -1)]
    if levels == 1 and not np.isin(mine.values, (0, 1)).all():  # average precisions
        cuts = [float(mine.values.mean())]
    recalls = tuple(min(max(recall, 0.02), 0.95) for recall in cuts)
    spread = float(mine.values.mean(axis=1).std(ddof=1)) if len(mine.values) > 1 else 0.003
    return statistics.Simulation(mine.values.shape[1], recalls, seed_sd=min(spread, 0.05), preference_sd=1.5)
