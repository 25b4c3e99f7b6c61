"""Measures of a run: one value, or one for each query. `negbench.metrics` has the formulas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from negbench.metrics.average_precision import average_precision_at_k
from negbench.metrics.epochs import event_effect, falls, late_slope, slope
from negbench.metrics.preference import agreement, cirqrs_at_k
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.recall import hits_at_k
from negbench.metrics.relevant import false_negative_rate, other_recall_at_k
from negbench.metrics.similarity import semantic_separation
from negbench.papers.evidence import MissingEvidence, SettingRun
from negbench.scoring.evaluation import block_scorer
from negbench.scoring.scorers import Encoded
from negbench.scoring.stored import preferences_of
from negbench.scoring.values import values_of


class Unit(NamedTuple):
    """Unit of a measure: values are printed times `scale`, followed by `name`.

    An effect tested against 0 counts as none if its whole interval is nearer to 0 than `none`.
    """

    name: str
    scale: float = 1.0
    none: float = 0.0


POINTS = Unit("points", 100, none=0.005)
PERCENT = Unit("%", 100)
COSINE = Unit("cosine")


class Measured(NamedTuple):
    """`values` [] or [Q] float64, nan where a query has none; `strata` and `clusters` [Q] as in `Design`, or None."""

    values: NDArray[np.float64]
    strata: NDArray[np.str_] | None = None
    clusters: NDArray[np.str_] | None = None


class Formula(NamedTuple):
    """Function of a run and a measure's options; if `across`, of the runs of all seeds, returning one value each.

    It raises MissingEvidence if a run lacks what it reads.
    """

    function: Callable[..., Any]
    unit: Unit
    across: bool = False


FORMULAS: dict[str, Formula] = {}  # by name, as claims.toml gives it


def measure(name: str, unit: Unit, *, across: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the formula of a measure."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        FORMULAS[name] = Formula(function, unit, across)
        return function

    return register


@dataclass(frozen=True)
class Measure:
    """A measure with its options."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def unit(self) -> Unit:
        """Unit of its values."""
        return FORMULAS[self.name].unit

    @property
    def settings(self) -> tuple[str, ...]:
        """Other settings whose runs with the same seed it reads."""
        options = dict(self.options)
        return (options["scorer"],) if "scorer" in options else ()

    def of(self, run: SettingRun) -> Measured:
        """Return its values for one run."""
        return self.of_seeds([run])[0]

    def of_seeds(self, runs: Sequence[SettingRun]) -> list[Measured]:
        """Return its values for a setting's runs, one per seed."""
        formula = FORMULAS[self.name]
        options = dict(self.options)
        if formula.across:
            return list(formula.function(runs, **options))
        measured = []
        for run in runs:
            cache = run.evidence.cache
            key = (self, run.setting, run.seed)
            if key not in cache:
                cache[key] = formula.function(run, **options)
            measured.append(cache[key])
        return measured

    def __str__(self) -> str:
        options = ", ".join(f"{name} {value}" for name, value in self.options)
        return f"{self.name} ({options})" if options else self.name


def _plain(values: ArrayLike | Tensor) -> Measured:
    return Measured(np.asarray(values, dtype=np.float64))


def _of_queries(values: Tensor, ranks: QueryRanks, strata: NDArray[np.str_] | None = None) -> Measured:
    return Measured(values.double().numpy(), strata, None if ranks.cluster is None else np.array(ranks.cluster))


# --- retrieval ---------------------------------------------------------------------------------------------------


@measure("recall", POINTS)
def recall(run: SettingRun) -> Measured:
    """[Q] the data set's main metric on the reported split."""
    main = run.result["main_metric"]
    by_metric = values_of([run.folder], [main])
    if main not in by_metric:
        raise MissingEvidence(f"the main metric {main} is not a mean over queries")
    return Measured(by_metric[main].values[0], by_metric[main].strata, by_metric[main].clusters)


@measure("average-precision", POINTS)
def average_precision(run: SettingRun, k: int = 10) -> Measured:
    """[Q] average precision at k over all relevant images; several groups count by the mean of their means."""
    ranks = run.ranks
    strata = np.array(ranks.group) if len(ranks.groups) > 1 else None
    return _of_queries(average_precision_at_k(ranks.relevant_ranks, k), ranks, strata)


@measure("subset-recall", POINTS)
def subset_recall(run: SettingRun, k: int = 1) -> Measured:
    """[Q] recall at k within the benchmark's own subset of look-alikes (CIRR)."""
    if run.ranks.subset_rank is None:
        raise MissingEvidence(f"{run.folder.config.dataset.name} has no subset of look-alikes for a query: needs cirr")
    return _of_queries(hits_at_k(run.ranks.subset_rank, k), run.ranks)


# --- along training, and pools -----------------------------------------------------------------------------------


def _main_curve(run: SettingRun) -> tuple[list[int], list[float]]:
    return run.series(f"{run.folder.manifest['dataset']['scored']}/{run.result['main_metric']}")


@measure("falls", POINTS, across=True)
def falls_of_seeds(runs: Sequence[SettingRun]) -> list[Measured]:
    """How far each seed's curve of the main metric ends below its best (`negbench.metrics.epochs.falls`)."""
    epochs_of_runs = set()
    curves = []
    for run in runs:
        epochs, values = _main_curve(run)
        epochs_of_runs.add(tuple(epochs))
        curves.append(values)
    if len(epochs_of_runs) > 1:
        raise MissingEvidence(f"the runs of '{runs[0].setting}' were evaluated at different epochs")
    return [_plain(value) for value in falls(curves)]


@measure("late-slope", Unit("points an epoch", 100))
def slope_at_the_end(run: SettingRun) -> Measured:
    """Slope of the main metric over the last third of the training."""
    epochs, values = _main_curve(run)
    return _plain(late_slope(values, epochs))


@measure("recall-at-refresh", POINTS)
def recall_at_refresh(run: SettingRun) -> Measured:
    """Change of the main metric in the epoch right after a refresh, minus the mean change in the epochs beside it."""
    return _at_refresh(run, _main_curve(run))


@measure("loss-at-refresh", Unit("of loss"))
def loss_at_refresh(run: SettingRun) -> Measured:
    """Same as `recall_at_refresh`, of the training loss."""
    return _at_refresh(run, run.series("train/loss"))


def _longer(run: SettingRun) -> str:
    """Return the option that doubles a run's training."""
    return f"--set train.epochs={2 * run.folder.metrics()[-1]['epoch']}"


def _at_refresh(run: SettingRun, series: tuple[list[int], list[float]]) -> Measured:
    """Return the change of a series (epochs, values) right after a refresh, minus that in the epochs beside it."""
    epochs, values = series
    is_complete = epochs == list(range(len(epochs)))
    effect = event_effect(values, run.result["refresh_epochs"]) if is_complete else float("nan")
    if np.isnan(effect):
        raise MissingEvidence(f"needs every epoch scored, and epochs between two refreshes: {_longer(run)}")
    return _plain(effect)


@measure("pool-trend", Unit("images a refresh", none=10.0))  # ours: half a percent of claims-world's gallery
def pool_trend(run: SettingRun) -> Measured:
    """[Q] slope of each query's pool size over the refreshes."""
    sizes = [frame["pool_size"].to_numpy() for frame in run.mining_tables()]
    if len(sizes) < 2:
        raise MissingEvidence(f"'{run.setting}' defines its pools only once here: {_longer(run)}")
    return Measured(slope(np.stack(sizes)))


@measure("mined", PERCENT)
def mined_statistic(run: SettingRun, column: str) -> Measured:
    """[Q] mean over the refreshes of a column of `mining-NN.parquet` that is a share (band_mean, ...)."""
    refreshes = [frame[column].to_numpy(dtype=np.float64) for frame in run.mining_tables()]
    return Measured(np.stack(refreshes).mean(0))


@measure("drops-place", PERCENT)
def drops_position(run: SettingRun, moment: str = "start") -> Measured:
    """[S] mean position in the ranking of the two steepest drops below the target: 0 at its head, 1 at its end.

    S sampled queries, at the "start" of training or after the warm-up ("warm").
    """
    return Measured(run.curves(moment).shares.mean(1))


@measure("drops-rise", PERCENT)
def drops_rise(run: SettingRun) -> Measured:
    """[S] how far, as a share of the ranking, the two drops rise from the start to the end of the warm-up."""
    return Measured(drops_position(run).values - drops_position(run, "warm").values)


@measure("regime", PERCENT)
def regime(run: SettingRun, number: str) -> Measured:
    """A share on the regime cards of the run's refreshes (docs/regimes.md), mean over those where it is known."""
    values = []
    for card in run.result["regime_by_refresh"]:
        if card["epoch"] in run.result["refresh_epochs"] and card.get(number) is not None:
            values.append(card[number])
    if not values:
        raise MissingEvidence(f"the regime cards of '{run.setting}' have no {number} here")
    return _plain(np.mean(values))


# --- false negatives ---------------------------------------------------------------------------------------------


def _relevant_ranks(run: SettingRun, split: str) -> QueryRanks:
    """Return the ranks of all relevant images of a split, of which some queries have several."""
    ranks = run.ranks if split == "val" else run.encode(split).ranks()
    if int(ranks.relevant_ranks.lengths.max()) < 2:
        raise MissingEvidence(f"only the targets of {split} are known to be relevant")
    return ranks


@measure("suppression", POINTS)
def suppression(run: SettingRun, k: int = 10, split: str = "train") -> Measured:
    """[Q] recall at k of the target minus that of the other relevant images, nan for queries without others."""
    ranks = _relevant_ranks(run, split)
    return _of_queries(hits_at_k(ranks.target_rank, k) - other_recall_at_k(ranks.relevant_ranks, k), ranks)


@measure("false-negatives", PERCENT)
def false_negatives(run: SettingRun, band: str, split: str = "train") -> Measured:
    """Share of a part of the ranking (`band`: see `false_negative_rate`) known to be relevant, targets left out."""
    ranks = _relevant_ranks(run, split)
    rate = false_negative_rate(ranks.relevant_ranks, ranks.gallery_size, band)
    if np.isnan(rate):
        raise MissingEvidence(f"no ranking of {split} has an image in the part '{band}'")
    return _plain(rate)


# --- what queries and people say ---------------------------------------------------------------------------------


@measure("semantic-separation", COSINE)
def separation(run: SettingRun) -> Measured:
    """Mean cosine of queries that share their reference and differ in their text: the lower, the more distinct."""
    encoded = run.encode("val")
    queries = encoded.dataset.queries
    references = [query.reference for query in queries]
    texts = [query.text for query in queries]
    cosine = semantic_separation(encoded.embeddings.queries.cpu(), references, texts)
    if np.isnan(cosine):
        raise MissingEvidence("needs queries that share a reference and differ in their text")
    return _plain(cosine)


@measure("cirqrs", COSINE)
def cirqrs(run: SettingRun, scorer: str, k: int = 10) -> Measured:
    """[Q] CIRQRS@k of the run's ranking, scored by another setting's run."""
    columns = run.encode("val").top(k).columns
    scorer_run = run.evidence.run(scorer, run.seed)
    relevance = scorer_run.encode("val").relevance_of(columns)
    return _plain(cirqrs_at_k(relevance, k))


@measure("cirqrs-fall", COSINE)
def cirqrs_fall(run: SettingRun, scorer: str, k: int = 10, last: int = 50) -> Measured:
    """[Q] CIRQRS@k minus CIRQRS@last."""
    return Measured(cirqrs(run, scorer, k).values - cirqrs(run, scorer, last).values)


@measure("preference", POINTS)
def preference(run: SettingRun) -> Measured:
    """[judgements] agreement with people's choices between two sets: 1, or 0, or 1/2 where the scores tie.

    Judgements count as independent, although one participant's are correlated, so intervals are too narrow.
    """
    scores, first = _preferences(run.encode_people())
    return _plain(agreement(scores, first))


@measure("agreement-over-recall", POINTS)
def agreement_over_recall(run: SettingRun) -> Measured:
    """[judgements] how well the run's scores agree with choices between sets of five, minus recall at 5's agreement."""
    encoded = run.encode_people()
    scores, first = _preferences(encoded)
    hits = preferences_of(encoded.dataset).hits.double()
    return _plain(agreement(scores, first) - agreement(hits, first))


def _preferences(encoded: Encoded) -> tuple[Tensor, Tensor]:
    """Return [Q, 2] scores of the sets, and [Q] whether people chose the first."""
    data = preferences_of(encoded.dataset)
    embeddings = encoded.embeddings
    return data.score_sets(block_scorer(embeddings.queries, embeddings.candidates)), data.first
