"""People's choices between two sets of five images: judgements, and how well a scorer agrees with them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from negbench.datasets.dataset import Dataset, ScoreBlock
from negbench.errors import DataError
from negbench.metrics.metric import Metric
from negbench.metrics.preference import agreement, normality_p, preference_rate, set_scores, spearman_test
from negbench.metrics.query_ranks import QueryRanks

if TYPE_CHECKING:
    import pandas as pd

SET_SIZE = 5
MEASURES = (
    "preference_rate",
    "preference_rate_with_ties",
    "preference_rate_equal_recall",
    "chance",
    "accuracy",
    "spearman",
    "spearman_p",
    "normality_p",
)

_BLOCK = 256  # queries scored at once


@dataclass(frozen=True)
class Judgement:
    """One participant's judgement of one query's two sets.

    Args:
        participant: name in the file.
        sets: five distinct images each, in no particular order.
        ratings: Likert scores of the sets, 1 (no match) to 5 (a very good one).
        first: whether set 1 was preferred.
    """

    participant: str
    sets: tuple[tuple[str, ...], tuple[str, ...]]
    ratings: tuple[int, int]
    first: bool

    @property
    def images(self) -> tuple[str, ...]:
        """Images of both sets."""
        return (*self.sets[0], *self.sets[1])

    @property
    def contradicts_itself(self) -> bool:
        """Whether the preferred set has the lower Likert score."""
        return self.ratings[0] != self.ratings[1] and (self.ratings[0] > self.ratings[1]) != self.first


@dataclass(frozen=True, eq=False)
class PreferenceFormat(Dataset):
    """Queries with two candidate sets and a person's choice: one query per judgement, evaluated by the sets' scores.

    Args:
        judgements: query id -> judgement.
    """

    judgements: Mapping[str, Judgement] = field(default_factory=dict)

    def sharing(self) -> list[str]:
        """Say nothing: choices between sets have no R@1."""
        return []

    # --- judgements as tensors -----------------------------------------------------------------------------------

    @cached_property
    def _judgement_of_query(self) -> list[Judgement]:
        """One judgement per query, in the order of the queries, which may be only a part of all."""
        return [self.judgements[query.id] for query in self.queries]

    @cached_property
    def sets(self) -> Tensor:
        """[Q, 2, 5] int64, columns of the images of either set."""
        columns = []
        for judgement in self._judgement_of_query:
            for members in judgement.sets:
                columns.append([self.column_of[image] for image in members])
        return torch.tensor(columns, dtype=torch.int64).reshape(-1, 2, SET_SIZE)

    @cached_property
    def first(self) -> Tensor:
        """[Q] bool, whether set 1 was preferred."""
        return torch.tensor([judgement.first for judgement in self._judgement_of_query], dtype=torch.bool)

    @cached_property
    def ratings(self) -> Tensor:
        """[Q, 2] int64, Likert scores of the sets, 1 to 5."""
        ratings = [judgement.ratings for judgement in self._judgement_of_query]
        return torch.tensor(ratings, dtype=torch.int64).reshape(-1, 2)

    @cached_property
    def hits(self) -> Tensor:
        """[Q, 2] bool, whether the set holds the target: its recall at 5."""
        return (self.sets == self.target_columns[:, None, None]).any(-1)

    # --- judging -------------------------------------------------------------------------------------------------

    def score_sets(self, score_block: ScoreBlock) -> Tensor:
        """[Q, 2] float64 scores of the sets, `score_block` being as for `rank`; the full table is never held.

        Raises:
            NegbenchError: a block of the wrong shape, or a score that is not finite.
        """
        columns = torch.arange(len(self.images))
        parts = []
        for rows in torch.arange(len(self.queries)).split(_BLOCK):
            scores = self._scores(score_block, rows, columns)
            parts.append(set_scores(scores, self.sets[rows]).cpu())
        return torch.cat(parts)

    def measure(self, score_block: ScoreBlock) -> dict[str, float]:
        """Compute `judge` from the sets' scores, which determine all published measures."""
        return self.judge(self.score_sets(score_block))

    def judge(self, sets: Tensor) -> dict[str, float]:
        """Measure how well scores of the sets agree with the people.

        Args:
            sets: [Q, 2] scores of the sets, any sign.

        Returns:
            Values in [0, 1], or [-1, 1] for `spearman`; nan if a measure is not defined:

            preference_rate: P(1 chosen | S1 > S2), QuRe eq. 9; preference_rate_with_ties: given S1 >= S2, CIRQRS
            eq. 8; preference_rate_equal_recall: given S1 > S2 where both sets hold the target or neither does, CIRQRS
            eq. 9.
            chance: share of judgements for set 1, the value of these three rates for a scorer that knows nothing.
            accuracy: symmetric, a tie counts one half. spearman, spearman_p: of the scores of all sets with their
            Likert scores, and the p of no correlation; normality_p: of the Shapiro-Wilk test that the scores are normal
            (CIRQRS tables 2 and 3; scipy's p is inexact above 5,000 scores).
        """
        first = self.first
        hits = self.hits
        values = (
            preference_rate(sets, first),
            preference_rate(sets, first, ties=True),
            preference_rate(sets, first, among=hits[:, 0] == hits[:, 1]),
            float(first.double().mean()),
            float(agreement(sets, first).mean()),
            *spearman_test(sets, self.ratings),
            normality_p(sets),
        )
        return dict(zip(MEASURES, values, strict=True))

    def table(self, sets: Tensor) -> "pd.DataFrame":
        """Return one row per judgement: scores, ratings and recall of both sets, the set preferred (1 or 2)."""
        import pandas as pd

        columns: dict[str, Any] = {
            "query": [query.id for query in self.queries],
            "participant": [judgement.participant for judgement in self._judgement_of_query],
        }
        for name, values in (("score", sets), ("rating", self.ratings), ("recall_at_5", self.hits)):
            columns[f"{name}_1"] = values[:, 0].numpy()
            columns[f"{name}_2"] = values[:, 1].numpy()
        columns["preferred"] = (2 - self.first.long()).numpy()
        return pd.DataFrame(columns)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """Raise DataError: choices between sets are judged by scores (`evaluate`, `judge`), which ranks do not hold."""
        raise DataError("preferences are judged by the scores of sets, not by ranks: score a run, or use evaluate()")
