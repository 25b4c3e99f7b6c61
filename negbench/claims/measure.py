"""Measures of a run: one value, or one for each query. `negbench.metrics` has the formulas."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from negbench.claims.evidence import SettingRun, Untestable
from negbench.metrics.average_precision import average_precision_at_k
from negbench.metrics.epochs import event_effect, falls, late_slope, slope
from negbench.metrics.preference import agreement, cirqrs_at_k, simulated_choices
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.recall import hits_at_k
from negbench.metrics.relevant import false_negative_rate, other_recall_at_k
from negbench.metrics.similarity import semantic_separation
from negbench.scoring.evaluation import block_scorer
from negbench.scoring.scorers import Encoded
from negbench.scoring.stored import preferences_of, values_of

SET_SIZE = 5  # images of a set that people, or simulated ones, judge


class Unit(NamedTuple):
    """How a measure prints: times `scale`, with `name` behind it."""

    name: str
    scale: float = 1.0


POINTS = Unit("points", 100)
PERCENT = Unit("%", 100)


class Measured(NamedTuple):
    """`values` [] or [Q] float64, nan where a query has none; `strata` [Q] groups whose means are averaged, or None."""

    values: NDArray[np.float64]
    strata: NDArray[np.str_] | None = None


@dataclass(frozen=True)
class Measure(ABC):
    """A measure; its fields are its options. Raises Untestable where a run does not hold what it looks at."""

    unit: ClassVar[Unit]

    @abstractmethod
    def of(self, run: SettingRun) -> Measured:
        """Its values of one run."""

    def of_seeds(self, runs: Sequence[SettingRun]) -> list[Measured]:
        """Its values of a setting's runs, one a seed."""
        known = runs[0].evidence.known
        for run in runs:
            if (self, run.setting, run.seed) not in known:
                known[self, run.setting, run.seed] = self.of(run)
        return [known[self, run.setting, run.seed] for run in runs]

    @property
    def settings(self) -> tuple[str, ...]:
        """Other settings whose runs of the same seed it looks at."""
        return ()

    def __str__(self) -> str:
        name = next(name for name, cls in MEASURES.items() if cls is type(self))
        shown = [f"{f.name} {value}" for f in dataclasses.fields(self) if (value := getattr(self, f.name)) != f.default]
        return f"{name} ({', '.join(shown)})" if shown else name


def _plain(values: ArrayLike | Tensor) -> Measured:
    return Measured(np.asarray(values, dtype=np.float64))


def _by_group(values: Tensor, ranks: QueryRanks) -> Measured:
    """The mean of the groups' means counts, where there are several."""
    return Measured(values.double().numpy(), np.array(ranks.group) if len(ranks.groups) > 1 else None)


# --- retrieval ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recall(Measure):
    """The data set's main metric on the reported split, per query."""

    unit = POINTS

    def of(self, run: SettingRun) -> Measured:
        """[Q]."""
        main = run.result["main_metric"]
        found = values_of([run.folder], [main])
        if main not in found:
            raise Untestable(f"the main metric {main} is no mean over queries")
        return Measured(found[main].values[0], found[main].strata)


@dataclass(frozen=True)
class AveragePrecision(Measure):
    """Average precision at k over all relevant images, per query."""

    unit = POINTS
    k: int = 10

    def of(self, run: SettingRun) -> Measured:
        """[Q]."""
        return _by_group(average_precision_at_k(run.ranks.relevant_ranks, self.k), run.ranks)


@dataclass(frozen=True)
class SubsetRecall(Measure):
    """Recall at k within the benchmark's own subset of look-alikes (CIRR), per query."""

    unit = POINTS
    k: int = 1

    def of(self, run: SettingRun) -> Measured:
        """[Q]."""
        if run.ranks.subset_rank is None:
            raise Untestable(f"{run.folder.config.dataset.name} has no subset of look-alikes for a query: needs cirr")
        return _plain(hits_at_k(run.ranks.subset_rank, self.k))


# --- curves and pools --------------------------------------------------------------------------------------------


def _main_curve(run: SettingRun) -> tuple[list[int], list[float]]:
    return run.series(f"{run.folder.manifest['dataset']['scored']}/{run.result['main_metric']}")


@dataclass(frozen=True)
class Falls(Measure):
    """How far the seeds' mean curve of the main metric ends below its best (`negbench.metrics.epochs.falls`)."""

    unit = POINTS

    def of(self, run: SettingRun) -> Measured:
        """One value: of a run alone, from its own best."""
        return self.of_seeds([run])[0]

    def of_seeds(self, runs: Sequence[SettingRun]) -> list[Measured]:
        """One value each. Raises Untestable where the runs were evaluated at different epochs."""
        curves = [_main_curve(run) for run in runs]
        if len({tuple(epochs) for epochs, _ in curves}) > 1:
            raise Untestable(f"the runs of '{runs[0].setting}' were evaluated at different epochs")
        return [_plain(value) for value in falls([values for _, values in curves])]


@dataclass(frozen=True)
class LateSlope(Measure):
    """Slope of the main metric over the last third of the training."""

    unit = Unit("points an epoch", 100)

    def of(self, run: SettingRun) -> Measured:
        """One value."""
        epochs, values = _main_curve(run)
        return _plain(late_slope(values, epochs))


@dataclass(frozen=True)
class RecallAtRefresh(Measure):
    """Change of the main metric in the epochs right after a refresh beyond that of the epochs beside them."""

    unit = POINTS

    def of(self, run: SettingRun) -> Measured:
        """One value."""
        return _at_refresh(run, _main_curve(run))


@dataclass(frozen=True)
class LossAtRefresh(Measure):
    """The same of the training loss."""

    unit = Unit("of loss")

    def of(self, run: SettingRun) -> Measured:
        """One value."""
        return _at_refresh(run, run.series("train/loss"))


def _at_refresh(run: SettingRun, series: tuple[list[int], list[float]]) -> Measured:
    epochs, values = series
    whole = epochs == list(range(len(epochs)))
    found = event_effect(values, run.result["refresh_epochs"]) if whole else float("nan")
    if np.isnan(found):
        raise Untestable("needs every epoch scored, and epochs between two refreshes: more of train.epochs")
    return _plain(found)


@dataclass(frozen=True)
class PoolTrend(Measure):
    """Slope of each query's pool size over the refreshes."""

    unit = Unit("images a refresh")

    def of(self, run: SettingRun) -> Measured:
        """[Q]."""
        sizes = [frame["pool_size"].to_numpy() for frame in run.mined()]
        if len(sizes) < 2:
            raise Untestable(f"'{run.setting}' defines its pools once here: more of train.epochs")
        return Measured(slope(np.stack(sizes)))


@dataclass(frozen=True)
class MinedStatistic(Measure):
    """A statistic of mining, per query, mean over the refreshes.

    Args:
        column: of a run's `mining-NN.parquet`, a share, e.g. band_mean.
    """

    unit = PERCENT
    column: str

    def of(self, run: SettingRun) -> Measured:
        """[Q]."""
        return Measured(np.stack([frame[self.column].to_numpy(dtype=np.float64) for frame in run.mined()]).mean(0))


@dataclass(frozen=True)
class DropsPlace(Measure):
    """Where in the ranking the two steepest drops below the target lie, their mean: 0 at its head, 1 at its end.

    Args:
        moment: "start", "warm" (after the warm-up) or "end" of training.
    """

    unit = PERCENT
    moment: str = "start"

    def of(self, run: SettingRun) -> Measured:
        """[S], of the sampled queries."""
        curves = run.curves(self.moment)
        return Measured(curves.shares(curves.drops).mean(1))


@dataclass(frozen=True)
class DropsRise(Measure):
    """By how much of the ranking the two drops have risen from the start of the training to the end of the warm-up."""

    unit = PERCENT

    def of(self, run: SettingRun) -> Measured:
        """[S], of the sampled queries."""
        return Measured(DropsPlace("start").of(run).values - DropsPlace("warm").of(run).values)


# --- false negatives ---------------------------------------------------------------------------------------------


def _known(run: SettingRun, split: str) -> QueryRanks:
    ranks = run.ranks if split == "val" else run.encoded(split).ranks()
    if int(ranks.relevant_ranks.lengths.max()) < 2:
        raise Untestable(f"only the targets of {split} are known to be relevant")
    return ranks


@dataclass(frozen=True)
class Suppression(Measure):
    """Recall at k of the target minus that of the other relevant images, per query that has others."""

    unit = POINTS
    k: int = 10
    split: str = "train"

    def of(self, run: SettingRun) -> Measured:
        """[Q]."""
        ranks = _known(run, self.split)
        return _plain(hits_at_k(ranks.target_rank, self.k) - other_recall_at_k(ranks.relevant_ranks, self.k))


@dataclass(frozen=True)
class FalseNegatives(Measure):
    """Share of the images of one part of the ranking that are known to be relevant, targets left out.

    Args:
        band: as `negbench.metrics.relevant.false_negative_rate` takes it.
        split: whose queries.
    """

    unit = PERCENT
    band: str
    split: str = "train"

    def of(self, run: SettingRun) -> Measured:
        """One value."""
        ranks = _known(run, self.split)
        rate = false_negative_rate(ranks.relevant_ranks, ranks.gallery_size, self.band)
        if np.isnan(rate):
            raise Untestable(f"no image of {self.split} lies in the part '{self.band}' of a ranking")
        return _plain(rate)


# --- what queries and people say ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class SemanticSeparation(Measure):
    """Mean cosine of queries that share their reference and differ in their text: the lower, the more distinct."""

    unit = Unit("cosine")

    def of(self, run: SettingRun) -> Measured:
        """One value."""
        encoded = run.encoded("val")
        queries = encoded.dataset.queries
        references, texts = [query.reference for query in queries], [query.text for query in queries]
        found = semantic_separation(encoded.embeddings.queries.cpu(), references, texts)
        if np.isnan(found):
            raise Untestable("needs queries that share a reference and differ in their text")
        return _plain(found)


@dataclass(frozen=True)
class CirqrsUnder(Measure):
    """CIRQRS@k under the run of another setting, per query."""

    unit = Unit("cosine")
    scorer: str
    k: int = 10

    @property
    def settings(self) -> tuple[str, ...]:
        """The scorer."""
        return (self.scorer,)

    def of(self, run: SettingRun) -> Measured:
        """[Q]."""
        columns = run.encoded("val").top(self.k).columns
        return _plain(cirqrs_at_k(run.beside(self.scorer).encoded("val").relevance_of(columns), self.k))


@dataclass(frozen=True)
class CirqrsFall(CirqrsUnder):
    """CIRQRS@k minus CIRQRS@last, per query."""

    last: int = 50

    def of(self, run: SettingRun) -> Measured:
        """[Q]."""
        near, far = (CirqrsUnder(self.scorer, k).of(run).values for k in (self.k, self.last))
        return Measured(near - far)


@dataclass(frozen=True)
class Preference(Measure):
    """Agreement with people's choices between two sets: 1, or 0, or 1/2 where the scores tie; per judgement.

    Judgements count as independent, though one participant's are alike: intervals are too narrow by that.
    """

    unit = POINTS

    def of(self, run: SettingRun) -> Measured:
        """[judgements]."""
        return _plain(agreement(*_judged(_people(run))))


@dataclass(frozen=True)
class AgreementOverRecall(Measure):
    """Agreement with choices between sets of five by the run's scores, minus that by recall at 5; per judgement.

    Where no people have judged the data set, a judge who knows all relevant images chooses between the first five of
    two runs, the set that holds more of them, by a coin where both hold as many.

    Args:
        rankers: the two settings.
    """

    unit = POINTS
    rankers: tuple[str, ...] = ()

    @property
    def settings(self) -> tuple[str, ...]:
        """The rankers."""
        return self.rankers

    def of(self, run: SettingRun) -> Measured:
        """[judgements]."""
        if run.people() is None:
            scores, hits, first = self._simulated(run)
        else:
            scores, first = _judged(_people(run))
            hits = preferences_of(_people(run).dataset).hits
        return _plain(agreement(scores, first) - agreement(hits.double(), first))

    def _simulated(self, run: SettingRun) -> tuple[Tensor, Tensor, Tensor]:
        """[Q, 2] scores of the sets, [Q, 2] whether they hold the target, [Q] whether the first was chosen."""
        sets = torch.stack([run.beside(name).encoded("val").top(SET_SIZE).columns for name in self.rankers], 1)
        encoded = run.encoded("val")
        data, scores = encoded.dataset, torch.stack([encoded.relevance_of(s) for s in sets.unbind(1)], 1).nanmean(-1)
        if data.relevant is None:
            raise Untestable("a simulated judge must know the relevant images")
        known = [torch.isin(row, data.relevant.row(i)).sum(-1) for i, row in enumerate(sets)]
        generator = torch.Generator().manual_seed(run.seed)
        first = simulated_choices(torch.stack(known).double() / SET_SIZE, generator)
        return scores, (sets == data.target_columns[:, None, None]).any(-1), first


def _people(run: SettingRun) -> Encoded:
    found = run.people()
    if found is None:
        raise Untestable("nobody has judged sets of this data set's images")
    return found


def _judged(encoded: Encoded) -> tuple[Tensor, Tensor]:
    """[Q, 2] scores of the sets, and [Q] whether people chose the first."""
    data = preferences_of(encoded.dataset)
    embeddings = encoded.embeddings
    return data.score_sets(block_scorer(embeddings.queries, embeddings.candidates)), data.first


MEASURES: dict[str, type[Measure]] = {
    "recall": Recall,
    "average-precision": AveragePrecision,
    "subset-recall": SubsetRecall,
    "falls": Falls,
    "late-slope": LateSlope,
    "recall-at-refresh": RecallAtRefresh,
    "loss-at-refresh": LossAtRefresh,
    "pool-trend": PoolTrend,
    "mined": MinedStatistic,
    "drops-place": DropsPlace,
    "drops-rise": DropsRise,
    "suppression": Suppression,
    "false-negatives": FalseNegatives,
    "semantic-separation": SemanticSeparation,
    "cirqrs": CirqrsUnder,
    "cirqrs-fall": CirqrsFall,
    "preference": Preference,
    "agreement-over-recall": AgreementOverRecall,
}
